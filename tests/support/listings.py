"""Small sources, and the facts of their listings."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from foreign import image_column, picture, write_lmdb, write_parquet, write_tar
from presize.sources.contents import Source
from presize.sources.source_files import SourceReader

OUT = "a link out of the source; use --follow-links if you trust it"


Make = Callable[[Path], Any]
"""A function that creates a source in the given current folder, and returns its path."""


def make(root: Path, *files: str) -> Path:
    """Create files below a folder; ``a/`` is a folder, ``a -> b`` a link, ``a = text`` a file with this text instead of
    one byte."""
    root.mkdir(parents=True, exist_ok=True)
    for file in files:
        name, _, target = file.partition(" -> ")
        name, _, content = name.partition(" = ")
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if target:
            path.symlink_to(target)
        elif not name.endswith("/"):
            path.write_bytes(content.encode() or b"x")
    return root


def files(*names: str) -> Make:
    return lambda folder: make(folder / "raw", *names)


def at(path: str, *names: str) -> Make:
    """Return a maker of a path among files of these names."""
    return lambda folder: (make(folder, *names), path)[1]


def table(text: str, *names: str, name: str = "t.csv") -> Make:
    """Return a maker of a folder and a label table next to it; ``{raw}`` in its text is the folder."""

    def write(folder: Path) -> Path:
        (folder / name).write_text(text.replace("{raw}", f"{folder}/raw"))
        return make(folder / "raw", *names)

    return write


def holding(name: str, content: bytes) -> Make:
    """Return a maker of a folder with one file."""
    return lambda folder: ((make(folder / "raw") / name).write_bytes(content), folder / "raw")[1]


def in_tar(*files: tuple[str, bytes], name: str = "raw/a.tar", form: int = tarfile.PAX_FORMAT) -> Make:
    return lambda folder: write_tar(folder / name, files, form).parent


def in_lmdb(records: Mapping[str | bytes, bytes]) -> Make:
    return lambda folder: write_lmdb(folder / "raw", records)


def labelled(*labels: bytes, **more: bytes) -> Make:
    """Return a maker of an LMDB of pictures with these labels."""
    images: dict[str | bytes, bytes] = {f"image-{n:09d}": picture(n) for n in range(1, len(labels) + 1)}
    return in_lmdb(images | {f"label-{n:09d}": label for n, label in enumerate(labels, 1)} | more)


def in_parquet(name: str = "a", **columns: object) -> Make:
    return lambda folder: write_parquet(folder / "raw" / f"{name}.parquet", columns) and folder / "raw"


def classes_in_parquet(*lists: Sequence[str], labels: Sequence[int] = (0, 1)) -> Make:
    """Return a maker of files a, b, ..., with labels that number these classes, like Hugging Face's ClassLabel."""

    def write(folder: Path) -> Path:
        for file, names in zip("abc", lists, strict=False):
            images = image_column([picture(n) for n in range(len(labels))])
            features = {"label": {"_type": "ClassLabel", "names": names}}
            noted = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
            columns = pa.table({"image": images, "label": labels}).replace_schema_metadata(noted)
            pq.write_table(columns, make(folder / "raw") / f"{file}.parquet")
        return folder / "raw"

    return write


def several(*makes: Make) -> Make:
    """Return a maker of all of these sources in one folder."""
    return lambda folder: [each(folder) for each in makes][-1]


def paths(source: Source) -> list[str]:
    return source.table.column("path").to_pylist()


def columns(source: Source) -> list[str]:
    return source.table.column_names


def labels(source: Source) -> list[Any] | None:
    return source.table.column("label").to_pylist() if "label" in source.table.column_names else None


def rejected(source: Source) -> dict[str, str]:
    return {reject.path: reject.reason for reject in source.rejects}


def errors(source: Source) -> dict[str, str]:
    return {reject.path: reject.error for reject in source.rejects}


def facts(source: Source, *names: str) -> dict[str, Any]:
    """Return facts of a source: by the functions of this module, its attributes, or its columns of these names."""
    told: dict[str, Any] = {}
    for name in names:
        if name in globals():
            told[name] = globals()[name](source)
        else:
            told[name] = getattr(source, name) if hasattr(source, name) else source.table.column(name).to_pylist()
    return told


def listed(source: Source) -> list[dict[str, Any]]:
    """Return the samples of containers, without their offsets."""
    return source.table.drop_columns(["source_nbytes", "source_mtime_ns", "container", "offset", "run"]).to_pylist()


def values(source: Source) -> list[bytes]:
    """Return the bytes of all samples."""
    reader = SourceReader(source.root)
    return [reader.read(file) for file in source.files(np.arange(len(source.table)))]


def not_utf8(folder: Path, name: bytes) -> Path:
    """Return a path whose name is not UTF-8."""
    return Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
