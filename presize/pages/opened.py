"""A dataset that is looked at, in shards or in a folder: its columns, its pixels, and its sources in the raw folder."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from presize.codecs.decode import decode
from presize.codecs.stored_value import DAMAGE, Pixels, decode_value
from presize.errors import DatasetError, ImageError, OptionError
from presize.options import MAX_PIXELS
from presize.store.dataset import Dataset
from presize.store.filenames import is_safe
from presize.store.index import index_columns, read_index
from presize.store.manifest import Manifest, read_manifest
from presize.store.rejects_file import Rejects, read_rejects
from presize.system.files import is_url, open_at_once

_MAX_BYTES = 1 << 30
_FIT_SCALES = (8, 4, 2)


@dataclass(frozen=True, eq=False)
class ViewedDataset:
    """A dataset, opened for looking at it. Safe across threads.

    Attributes:
        root: its folder.
        manifest, index: as they were read.
        raw: the folder that it was built from; None where sources are not to be shown.
        data: its shards; None for a folder of image files.
    """

    root: Path
    manifest: Manifest
    index: pa.RecordBatch
    raw: Path | None = None
    data: Dataset | None = None

    @classmethod
    def of(cls, root: str | os.PathLike[str], raw: str | os.PathLike[str] | None = None) -> ViewedDataset:
        """Open the dataset in `root`.

        Raises:
            DatasetError: `root` is no dataset, a URL, or damaged.
            OptionError: `raw` is not a folder.
        """
        name = os.fspath(root)
        if is_url(name):
            raise DatasetError(
                f"{name} is a URL, and a page shows samples from nearly all shards: "
                f"`presize fetch {name} DIR`, then view DIR"
            )
        if raw is not None and not os.path.isdir(raw):
            raise OptionError(
                f"raw: {os.fspath(raw)!r} is not a folder; expected the one that the dataset was built from"
            )
        source = None if raw is None else Path(os.path.realpath(raw))
        manifest = read_manifest(root)
        if manifest.layout == "folder":
            return cls(Path(os.path.realpath(root)), manifest, read_index(root, manifest), source)
        data = Dataset(root, readahead=False)
        return replace(cls.reading(data), raw=source)

    @classmethod
    def reading(cls, data: Dataset) -> ViewedDataset:
        """What a Dataset reads that is open already."""
        return cls(data.root, data.manifest, data.index, data=data)

    def check_sources(self) -> None:
        """Raise OptionError when of several samples not one source is in the raw folder: it is another."""
        last = self.manifest.samples - 1
        paths = [self.row(sample)["path"] for sample in sorted({0, last // 4, last // 2, last})]
        if self.raw is not None and not any(is_safe(path) and os.path.lexists(self.raw / path) for path in paths):
            raise OptionError(
                f"raw: {str(self.raw)!r} has no {paths[0]!r}, nor others of its images; expected the folder of files "
                "that the dataset was built from"
            )

    @cached_property
    def rejects(self) -> Rejects:
        """Files that were not stored."""
        return read_rejects(self.root / self.manifest.rejects.file)

    @cached_property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of the label table, ``label`` apart where it numbers the classes."""
        own = index_columns(self.manifest.layout, True, [companion.name for companion in self.manifest.companions])
        classes = {"label"} if self.manifest.classes is not None else set()
        schema = self.index.schema
        names = (name for name in schema.names if name not in {*own, *classes})
        return tuple(name for name in names if schema.get_field_index(name) >= 0)  # -1 when there are two of them

    @cached_property
    def text_columns(self) -> tuple[str, ...]:
        """The path, and the label columns of text."""
        kinds = {name: self.index.schema.field(name).type for name in self.label_columns}
        texts = (name for name, kind in kinds.items() if pa.types.is_large_string(kind) or pa.types.is_string(kind))
        return ("path", *texts)

    def column(self, name: str) -> pa.Array:
        """A column whose offsets are checked, once, so that Arrow can compute with it.

        Raises:
            DatasetError: it is damaged.
        """
        column = self.index.column(self.index.schema.get_field_index(name))
        if name not in self._checked:
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                what = str(error).partition("\n")[0]
                raise DatasetError(f"column {name!r} of {self.root} is damaged: {what}") from None
            self._checked.add(name)
        return column

    @cached_property
    def _checked(self) -> set[str]:
        return set()

    def row(self, sample: int) -> dict[str, Any]:
        """All columns of one sample.

        Raises:
            DatasetError: they are damaged.
        """
        row = self.index.slice(sample, 1)
        try:
            row.validate(full=True)
            return dict(row.to_pylist()[0])
        except (ValueError, OverflowError) as error:  # such as a date in the year 10,000
            raise self._damage(sample, str(error).partition("\n")[0]) from None

    def pixels(self, sample: int) -> Pixels:
        """The stored image, as Dataset.pixels gives it.

        Raises:
            DatasetError: it is damaged.
        """
        if self.data is not None:
            return next(pixels for _, pixels in self.data.pixels([sample]))
        manifest, row = self.manifest, self.row(sample)
        try:
            value = memoryview(_read(self.root, row["file"]))
            shape = row["height"], row["width"]
            return decode_value(value, manifest.format, manifest.color, shape, MAX_PIXELS, manifest.depth)
        except DAMAGE as error:
            raise self._damage(sample, str(error)) from None

    def companion(self, name: str, sample: int) -> Pixels:
        """A further image of the sample, such as its mask; see Dataset.companion."""
        if self.data is None:
            raise DatasetError(f"{self.root} is a folder of image files, which has no companions")
        if name not in self._companions:
            self._companions[name] = self.data.companion(name)
        return next(pixels for _, pixels in self._companions[name].pixels([sample]))

    @cached_property
    def _companions(self) -> dict[str, Dataset]:
        return {}

    def source(self, sample: int, side: int) -> Pixels:
        """The source image, upright, 8 bits, RGB, (height, width, 3); scaled down where that is fast, to no less than
        `side` pixels of its longer side.

        Raises:
            ImageError: the file is not in the raw folder, or not an image.
        """
        row = self.row(sample)
        if self.raw is None:
            raise ImageError("no raw folder was given")
        longer = max(row["source_height"], row["source_width"])
        scale = next((scale for scale in _FIT_SCALES if longer >= side * scale), 1)
        return decode(_read(self.raw, row["path"]), scale=scale).pixels

    def _damage(self, sample: int, what: str) -> DatasetError:
        return DatasetError(f"sample {sample} of {self.root} is damaged: {what or 'not enough memory'}")


def _read(folder: Path, path: str) -> bytes:
    """A file below `folder`. Raises ImageError when there is none that can be read."""
    if not is_safe(path):
        raise ImageError("its path leads out of the folder")
    try:
        with open(folder / path, "rb", opener=open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ImageError("it is not a regular file")
            if status.st_size > _MAX_BYTES:
                raise ImageError(f"it has {status.st_size} bytes, more than the {_MAX_BYTES} that are read")
            return file.read()
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror}") from None
