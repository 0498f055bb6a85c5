"""What the libraries of this machine make of a few images that are known: two that make the same of them make the same
dataset."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence

import PIL
import pyarrow as pa
import pyarrow.compute as pc

from presize.builder.plan import TriedCodecs
from presize.codecs import plugins
from presize.codecs.fingerprint import codecs_digest
from presize.options import BuildOptions
from presize.store.dealing import deal
from presize.store.specimen import container_digest

_WRITERS = (
    "cykooz.resizer", "lmdb", "numpy", "opencv-python-headless", "pillow", "presize", "pyarrow", "simplejpeg",
)  # fmt: skip


def try_codecs(options: BuildOptions) -> TriedCodecs:
    """What the codecs make of the golden images, LMDB and Arrow of a specimen, and the deal of 97 samples to 5 shards.
    Takes about 50 ms, once a process; and as long again where OpenCV is not imported yet."""
    made = hashlib.sha256(f"{codecs_digest(options.image)} {container_digest(options.layout)}".encode())
    for companion in options.companions:
        made.update(codecs_digest(companion.image_options(options.image)).encode())
    for shard in deal(97, 5):
        made.update(shard.astype("<i8").tobytes())
    return TriedCodecs(made.hexdigest(), codec_versions())


def suffixes_of(paths: pa.ChunkedArray) -> list[str]:
    """The endings of files' names, in lower case, each once."""
    suffixes: list[str] = pc.unique(pc.utf8_lower(pc.replace_substring_regex(paths, r"^.*\.", "."))).to_pylist()
    return suffixes


def with_plugins(codecs: TriedCodecs, suffixes: Sequence[str]) -> TriedCodecs:
    """`codecs`, and the plug-ins that the endings of names call for: the golden images are of other formats."""
    found = plugins.versions(suffixes)
    if not found:
        return codecs
    return TriedCodecs(hashlib.sha256(f"{codecs.digest} {found}".encode()).hexdigest(), codecs.versions | found)


def codec_versions() -> dict[str, str]:
    """The versions of all libraries that decide the bytes of a dataset."""
    # pillow-simd, where it replaces Pillow, is another distribution, with a version of its own.
    return {name: PIL.__version__ if name == "pillow" else importlib.metadata.version(name) for name in _WRITERS}
