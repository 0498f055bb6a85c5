"""What an export writes of a dataset: its images, their file names, and the columns of its label table."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from presize.codecs.encode import encode
from presize.errors import DatasetError
from presize.options import ImageOptions
from presize.store.dataset import Dataset
from presize.store.filenames import SUFFIXES, file_names, path_problem
from presize.store.index import index_columns

_RAW_AS = ImageOptions(format="png")


@dataclass(frozen=True)
class ImageFiles:
    """An image file for each sample: the images of a dataset, or one of its companions.

    Attributes:
        dataset: the dataset, or Dataset.companion.
        names: for each sample the path of its file, with the suffix of what is in it; all are safe and distinct.
    """

    dataset: Dataset
    names: pa.ChunkedArray

    @classmethod
    def of(cls, dataset: Dataset) -> ImageFiles:
        return cls(dataset, file_names(dataset.column("path"), dataset.manifest.format))

    @property
    def suffix(self) -> str:
        """That of the format, such as ``.jpg``."""
        return SUFFIXES[self.dataset.manifest.format][0]

    def contents(self, samples: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """For each of `samples` its position in that list and the content of its file, in the order on disk."""
        if self.dataset.manifest.format == "raw":
            yield from ((position, encode(pixels, _RAW_AS)) for position, pixels in self.dataset.pixels(samples))
        else:
            yield from ((position, bytes(value)) for position, value in self.dataset.values(samples))

    def content(self, sample: int) -> bytes:
        """The content of one file."""
        return next(content for _, content in self.contents((sample,)))


@dataclass(frozen=True)
class Exported:
    """A dataset that is exported.

    Attributes:
        dataset: the dataset, its paths and columns checked.
        images: its images.
        companions: its companions by name.
        columns: the names of the columns of the label table, ``label`` among them.
    """

    dataset: Dataset
    images: ImageFiles
    companions: dict[str, ImageFiles]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, root: str | os.PathLike[str]) -> Exported:
        """Raises DatasetError when the dataset in `root` is damaged, or has a path that is no file of a folder."""
        dataset = Dataset(root, readahead=True)  # shards are read from beginning to end
        own = index_columns(dataset.manifest.layout, True, dataset.companions)
        columns = tuple(name for name in dataset.index.schema.names if name not in own)
        for name in ("path", *columns):
            dataset.check_column(name)
        problem = path_problem(dataset.column("path"))
        if problem is not None:
            raise DatasetError(f"the index of {dataset.root} has {problem}; nothing was written")
        companions = {name: ImageFiles.of(dataset.companion(name)) for name in dataset.companions}
        return cls(dataset, ImageFiles.of(dataset), companions, columns)

    def all_files(self, taken: Collection[str] = ()) -> dict[str, ImageFiles]:
        """The images, called ``image``, then the companions by name; with ``_`` behind a name that is taken."""
        companions: dict[str, ImageFiles] = {}
        for name, files in self.companions.items():
            companions[_free(name, {*taken, *companions})] = files
        return {_free("image", {*taken, *companions}): self.images, **companions}


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name
