"""Exports a dataset as image files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from presize.codecs.encode import encode
from presize.errors import BuildError, DatasetError
from presize.options import ImageOptions
from presize.store.dataset import Dataset
from presize.store.filenames import file_names, is_safe, path_problem

_BATCH = 256


def export_dataset(
    root: str | os.PathLike[str], out: str | os.PathLike[str], on_image: Callable[[], None] = lambda: None
) -> int:
    """Write every image of a dataset, at the path that it had in its source, and return their number.

    The files hold the stored bytes; raw pixels become PNG. Suffixes follow the stored format, as with
    ``--to folder``.

    Args:
        root: the dataset.
        out: the folder to write, absent or empty.
        on_image: called after each file.

    Raises:
        DatasetError: the dataset is damaged.
        BuildError: `out` is not empty, or cannot be written.
    """
    dataset, out = Dataset(root, readahead=True), Path(out)  # shards are read from beginning to end
    if os.path.exists(out) and (not out.is_dir() or os.listdir(out)):  # which a name of any length may be asked
        raise BuildError(f"export: {out} is not an empty folder; choose a new one")
    dataset.check_column("path")
    problem = path_problem(dataset.column("path"))
    if problem is not None:
        raise DatasetError(f"the index of {dataset.root} has {problem}; nothing was written")
    names = file_names(dataset.column("path"), dataset.manifest.format).to_pylist()
    raw_as_png = ImageOptions(format="png")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in dataset.manifest.classes or ():
            if is_safe(name):
                (out / name).mkdir(parents=True, exist_ok=True)
        for start in range(0, len(names), _BATCH):
            batch = names[start : start + _BATCH]
            samples = range(start, start + len(batch))
            if dataset.manifest.format == "raw":
                files = ((i, encode(pixels, raw_as_png)) for i, pixels in dataset.pixels(samples))
            else:
                files = ((i, bytes(value)) for i, value in dataset.values(samples))
            for i, content in files:
                file = out / batch[i]
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("xb") as new:  # two records may not share a file
                    new.write(content)
                on_image()
    except OSError as error:
        raise BuildError(f"export: cannot write {error.filename or out}: {error.strerror}") from None
    return len(names)
