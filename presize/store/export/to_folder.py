"""A dataset as a folder of image files, each at the path that it had in its source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from presize.store.export.contents import Contents
from presize.store.filenames import is_safe

_BATCH = 256


def write_folder(contents: Contents, out: Path, on_image: Callable[[], None]) -> None:
    """Write a file for each image into `out`, and a folder for each class, whether or not it has images.

    Raises:
        OSError: a file cannot be written.
        DatasetError: a record is damaged.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in contents.dataset.manifest.classes or ():
        if is_safe(name):
            (out / name).mkdir(parents=True, exist_ok=True)
    for start in range(0, len(contents.names), _BATCH):
        names = contents.names.slice(start, _BATCH).to_pylist()
        for i, content in contents.images(range(start, start + len(names))):
            file = out / names[i]
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as new:  # two records may not share a file
                new.write(content)
            on_image()
