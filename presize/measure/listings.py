"""The samples of each variant of a benchmark, and those that all variants share. Reads names, sizes and indexes; opens
no image."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import BenchError, DatasetError
from presize.formatting import plural
from presize.options import BuildOptions, ImageOptions, RunOptions, Size
from presize.sources.scan import scan_images
from presize.store.index import read_index
from presize.store.manifest import Manifest, read_manifest
from presize.store.rejects_file import read_rejects
from presize.system.files import AGAIN, writing

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Listing:
    """Samples of a folder or dataset, in the order of their numbers: 0, 1, ..."""

    root: str
    paths: pa.Array  # in the source
    source_nbytes: Numbers
    labels: npt.NDArray[Any] | None  # class names; None without classes
    files: tuple[Path, ...]  # one per sample, or the shards
    rejected: frozenset[str] = frozenset()  # paths that the build rejected
    manifest: Manifest | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def files_of(self, numbers: Numbers) -> list[Path]:
        """Return the files that reading these samples opens."""
        return [self.files[i] for i in numbers.tolist()] if len(self.files) == len(self) else list(self.files)


def list_raw(root: str | os.PathLike[str]) -> Listing:
    """List a folder of images, in the order of FolderDataset. Raises SourceError."""
    source = scan_images(root)
    labels = None if source.classes is None else np.array(source.classes, object)[_numbers(source.table, "label")]
    paths = _paths(source.table, "path")
    files = tuple(source.root / path for path in paths.to_pylist())
    return Listing(os.fspath(root), paths, _numbers(source.table, "source_nbytes"), labels, files)


def list_presized(root: str | os.PathLike[str]) -> Listing:
    """List an output of ``presize build --to folder``, in the order of FolderDataset. Raises DatasetError and, for
    samples with the same path, BenchError."""
    manifest, index = _open(root, "folder")
    folder = scan_images(root)
    there = _paths(folder.table, "path")
    rows = pc.index_in(there, value_set=_paths(index, "file"))
    if len(there) != len(index) or rows.null_count:
        raise DatasetError(
            f"{os.fspath(root)} has {plural(len(there), 'image')}, not the {len(index)} that its manifest lists; "
            "build it again"
        )
    return _listing(root, manifest, index.take(rows), tuple(folder.root / path for path in there.to_pylist()))


def list_lmdb(root: str | os.PathLike[str]) -> Listing:
    """List an LMDB dataset, in the order of LMDBDataset. Raises DatasetError and, for equal paths, BenchError."""
    manifest, index = _open(root, "lmdb")
    return _listing(root, manifest, index, tuple(Path(root, shard.file) for shard in manifest.shards))


LISTERS = {"raw": list_raw, "presized": list_presized, "lmdb": list_lmdb}


def link_samples(raw: Listing, chosen: Numbers, folder: Path) -> str:
    """Replace `folder` by links to the `chosen` files of a raw folder, and return its path. Raises BuildError."""
    shutil.rmtree(folder, ignore_errors=True)
    with writing(folder, AGAIN):
        for path, file in zip(raw.paths.take(pa.array(chosen)).to_pylist(), raw.files_of(chosen), strict=True):
            link = folder / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
    return str(folder)


def _open(root: str | os.PathLike[str], layout: str) -> tuple[Manifest, pa.RecordBatch]:
    manifest = read_manifest(root)
    if manifest.layout != layout:
        wanted = "an LMDB dataset" if layout == "lmdb" else "a folder that presize build --to folder made"
        raise DatasetError(f"{os.fspath(root)}: expected {wanted}, got layout {manifest.layout}")
    return manifest, read_index(root, manifest)


def _listing(
    root: str | os.PathLike[str], manifest: Manifest, index: pa.RecordBatch, files: tuple[Path, ...]
) -> Listing:
    paths, labels = _paths(index, "path"), None
    if pc.count_distinct(paths).as_py() < len(paths):
        raise BenchError(f"{os.fspath(root)} has two samples with the same path; a benchmark needs distinct paths")
    if manifest.classes is not None:
        numbers = _numbers(index, "label")
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(manifest.classes):
            raise DatasetError(f"the index of {os.fspath(root)} is damaged: it has labels out of range")
        labels = np.array(manifest.classes, object)[numbers]
    rejected = frozenset(reject.path for reject in read_rejects(Path(root, manifest.rejects.file)))
    return Listing(os.fspath(root), paths, _numbers(index, "source_nbytes"), labels, files, rejected, manifest)


def _paths(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    column = table.column(name)
    flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return flat.cast(pa.large_string())


def _numbers(table: pa.Table | pa.RecordBatch, name: str) -> Numbers:
    return np.asarray(table.column(name).to_numpy(), np.int64)


def common_samples(listings: Mapping[str, Listing], images: int | None = None, seed: int = 0) -> dict[str, Numbers]:
    """Return for each listing the numbers of the samples that all listings have, in the order of the first one.
    `images`: number of samples to draw at random; None for all. Samples that a build rejected are left out. Raises
    BenchError if a sample is missing, has another label, or was built from a file of another size."""
    first, *_ = listings.values()
    wanted = np.arange(len(first))
    if images is not None and images < len(first):
        wanted = np.sort(np.random.default_rng(seed).choice(len(first), images, replace=False))
    asked = first.paths.take(pa.array(wanted))
    found = {name: _places(listing, asked, first) for name, listing in listings.items()}
    everywhere = np.logical_and.reduce([places >= 0 for places in found.values()])
    if not everywhere.any():
        raise BenchError(f"none of the {len(asked)} chosen samples of {first.root} is in all variants")
    numbers = {name: places[everywhere] for name, places in found.items()}
    for name, listing in listings.items():
        if images is None:
            more = listing.paths.filter(pc.index_in(listing.paths, value_set=first.paths).is_null()).to_pylist()
            if extra := [path for path in more if path not in first.rejected]:
                raise BenchError(
                    f"the variants have different samples: {first.root} lacks {len(extra)} of {listing.root}, such as "
                    f"{extra[0]}; is it the source of that dataset?"
                )
        _check_alike(listing, numbers[name], first, wanted[everywhere])
    return numbers


def _places(listing: Listing, asked: pa.Array, first: Listing) -> Numbers:
    """Return the number of each path in `listing`, -1 if the path or a folder above it was rejected by the build."""
    places = pc.fill_null(pc.index_in(asked, value_set=listing.paths), -1).to_numpy(zero_copy_only=False)
    missing = asked.take(pa.array(np.flatnonzero(places < 0))).to_pylist()
    lost = [path for path in missing if listing.rejected.isdisjoint([path, *map(str, PurePosixPath(path).parents)])]
    if len(lost) == len(asked):
        raise BenchError(
            f"{listing.root} was not built from {first.root}: it lacks all {len(asked)} samples, such as {lost[0]}"
        )
    if lost:
        raise BenchError(
            f"the variants have different samples: {listing.root} lacks {len(lost)} of {first.root}, such as "
            f"{lost[0]}; update it with presize build --update, or build it again"
        )
    return np.asarray(places, np.int64)


def _check_alike(listing: Listing, numbers: Numbers, first: Listing, others: Numbers) -> None:
    sizes = listing.source_nbytes[numbers], first.source_nbytes[others]
    for at in np.flatnonzero(sizes[0] != sizes[1])[:1].tolist():
        raise BenchError(
            f"the variants have different images: {first.paths[int(others[at])]} has {sizes[1][at]} bytes in "
            f"{first.root}, and had {sizes[0][at]} when {listing.root} was built; update with presize build --update"
        )
    if listing.labels is None or first.labels is None:
        return
    labels = listing.labels[numbers], first.labels[others]
    for at in np.flatnonzero(labels[0] != labels[1])[:1].tolist():
        raise BenchError(
            f"the variants have different labels: {first.paths[int(others[at])]} is {labels[1][at]!r} in "
            f"{first.root} and {labels[0][at]!r} in {listing.root}"
        )


def build_trial(root: str, folder: Path, size: Size, *, images: int = 512, seed: int = 0) -> Path:
    """Build an LMDB dataset in `folder` from up to `images` random images of the folder `root`, and return its path.
    Raises SourceError if there are no images, and BuildError, also if no image can be stored."""
    from presize.builder.run import build_dataset  # imports joblib

    raw = list_raw(root)
    chosen = common_samples({"raw": raw}, images, seed)["raw"]
    source = link_samples(raw, chosen, folder / "raw")
    build_dataset(
        source, folder / "lmdb", BuildOptions(ImageOptions(sizes=(size,)), follow_links=True), RunOptions(report=False)
    )
    return folder / "lmdb"
