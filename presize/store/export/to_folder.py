"""A dataset as a folder of image files, each at the path that it had in its source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from presize.store.export.exported import Exported
from presize.store.filenames import is_safe

_BATCH = 256


def write_folder(exported: Exported, out: Path, on_image: Callable[[], None]) -> None:
    """Write a file for each image into `out`, and a folder for each class, whether or not it has images.

    With companions, images and each of those have a folder of their own, such as ``out/image`` and ``out/mask``.

    Raises:
        OSError: a file cannot be written.
        DatasetError: a record is damaged.
    """
    folders = exported.all_files() if exported.companions else {"": exported.images}
    for folder, files in folders.items():
        root = out / folder
        root.mkdir(parents=True, exist_ok=True)
        for start in range(0, len(files.names), _BATCH):
            names = files.names.slice(start, _BATCH).to_pylist()
            for i, content in files.contents(range(start, start + len(names))):
                file = root / names[i]
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("xb") as new:  # two records may not share a file
                    new.write(content)
                if files is exported.images:
                    on_image()
        for name in exported.dataset.manifest.classes or ():
            if is_safe(name):
                (root / name).mkdir(parents=True, exist_ok=True)
