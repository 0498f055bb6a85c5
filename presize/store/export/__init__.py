"""Exports a dataset: as image files, as tar shards for WebDataset, or as Parquet for Hugging Face's datasets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from presize.errors import BuildError
from presize.options import ExportLayout, check_choice
from presize.store.export.exported import Exported
from presize.store.export.to_folder import write_folder
from presize.store.export.to_parquet import write_parquet
from presize.store.export.to_tar import write_tars

_WRITERS: dict[ExportLayout, Callable[[Exported, Path, Callable[[], None]], None]] = {
    "folder": write_folder,
    "tar": write_tars,
    "parquet": write_parquet,
}


def export_dataset(
    root: str | os.PathLike[str],
    out: str | os.PathLike[str],
    on_image: Callable[[], None] = lambda: None,
    layout: ExportLayout = "folder",
) -> int:
    """Write every image of a dataset for other programs, and return their number.

    They are the stored bytes, at the path that each image had in its source, with the suffix of the stored format as
    with ``--to folder``; raw pixels become PNG. The same dataset gives the same bytes in every file.

    Args:
        root: the dataset.
        out: the folder to write, absent or empty.
        on_image: called after each image.
        layout: "folder" writes image files. "tar" and "parquet" write labels and the other columns of the label table,
            too (docs/derive.md), and name their files when all of them are whole.

    Raises:
        DatasetError: the dataset is damaged, or `layout` has no place for one of its columns.
        BuildError: `out` is not empty, or cannot be written.
        OptionError: there is no such layout.
    """
    check_choice("to", layout, ExportLayout)
    out = Path(os.path.abspath(out))
    if os.path.exists(out) and (not out.is_dir() or os.listdir(out)):  # which a name of any length may be asked
        raise BuildError(f"export: {out} is not an empty folder; choose a new one")
    exported = Exported.of(root)
    try:
        _WRITERS[layout](exported, out, on_image)
    except OSError as error:
        raise BuildError(f"export: cannot write {error.filename or out}: {error.strerror or error}") from None
    return len(exported.dataset)
