"""Fingerprint of this machine's codecs: two machines with the same fingerprint make the same dataset."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import PIL
import pyarrow as pa
import pyarrow.compute as pc

from presize.codecs import plugins
from presize.codecs.fingerprint import codecs_digest
from presize.errors import BuildError
from presize.options import BuildOptions, Layout
from presize.store.dealing import assign_shards
from presize.store.index import index_columns, write_index
from presize.store.shard import ShardWriter

_WRITERS = (
    "lmdb", "numpy", "opencv-python-headless", "pillow", "presize", "pyarrow", "simplejpeg",
)  # fmt: skip

_RECORD_BYTES = (0, 1, 100, 1900, 2100, 4080, 9000, 30_000)
"""Sizes around those at which LMDB moves a value to overflow pages, and at which it needs one more of them."""


class CodecFingerprint(NamedTuple):
    """SHA-256 of what this machine's libraries produce for known images and records, and their versions."""

    digest: str
    versions: dict[str, str]


def codec_fingerprint(options: BuildOptions, suffixes: Sequence[str] = ()) -> CodecFingerprint:
    """Return the fingerprint of codecs, LMDB, Arrow and the assignment of samples to shards; takes about 50 ms, once
    per process. It includes the versions of the plug-ins that read files with these `suffixes`."""
    return _fingerprint(options, plugins.versions(suffixes))


def same_codecs(options: BuildOptions, then: CodecFingerprint, now: CodecFingerprint) -> bool:
    """Return True if two builds with `options` make the same record of any file that both have. They may have files of
    other formats, and so need other plug-ins, but the plug-ins that both need must have the same versions."""
    names = [plugin.distribution for plugin in plugins.PLUGINS.values()]
    theirs, ours = ({name: each.versions[name] for name in names if name in each.versions} for each in (then, now))
    known = then.digest == _fingerprint(options, theirs).digest and now.digest == _fingerprint(options, ours).digest
    return known and theirs | ours == ours | theirs


def _fingerprint(options: BuildOptions, found: dict[str, str]) -> CodecFingerprint:
    """Return the fingerprint for these versions of plug-ins."""
    tried = hashlib.sha256(f"{codecs_digest(options.image)} {container_digest(options.layout)}".encode())
    for companion in options.companions:
        tried.update(codecs_digest(companion.image_options(options.image)).encode())
    for shard in assign_shards(97, 5):
        tried.update(shard.astype("<i8").tobytes())
    digest, versions = tried.hexdigest(), codec_versions()
    if found:
        digest = hashlib.sha256(f"{digest} {found}".encode()).hexdigest()
    return CodecFingerprint(digest, versions | found)


def suffixes_of(paths: pa.ChunkedArray) -> list[str]:
    """Return the distinct suffixes of file names, in lower case."""
    suffixes: list[str] = pc.unique(pc.utf8_lower(pc.replace_substring_regex(paths, r"^.*\.", "."))).to_pylist()
    return suffixes


def codec_versions() -> dict[str, str]:
    # pillow-simd, a replacement for Pillow, is another distribution with other versions.
    opencv = next(iter(plugins.installed(plugins.OPENCVS).values()), "")
    of_others = {"pillow": PIL.__version__, "opencv-python-headless": opencv}
    return {name: of_others.get(name) or importlib.metadata.version(name) for name in _WRITERS}


@functools.cache
def container_digest(layout: Layout) -> str:
    """Return the SHA-256 of an index of known records and, if the layout is "lmdb", of a shard of them."""
    digest = hashlib.sha256()
    rows = len(_RECORD_BYTES)
    columns = {
        name: pa.array(map(str, range(rows)) if kind == pa.large_string() else range(rows), kind)
        for name, kind in index_columns(layout, checksum=True).items()
    }
    try:
        temporary = tempfile.TemporaryDirectory(prefix="presize-", ignore_cleanup_errors=True)
    except OSError as error:
        raise BuildError(
            f"cannot write to a temporary folder: {error.strerror}; set TMPDIR to a folder that can be written to"
        ) from None
    with temporary as folder:
        if layout == "lmdb":
            with ShardWriter(Path(folder, "0.lmdb"), 1 << 20, 5) as writer:
                for number, nbytes in enumerate(_RECORD_BYTES):
                    writer.append(bytes((number,)) * nbytes)
                digest.update(writer.publish()[1].encode())
        digest.update(write_index(Path(folder), "index.arrow", pa.table(columns)).sha256.encode())
    return digest.hexdigest()
