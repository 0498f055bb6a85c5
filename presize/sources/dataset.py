"""Presize datasets as a source: records take the place of files, and are copied where nothing changes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import DatasetError, SourceError
from presize.formatting import plural
from presize.options import Size, Stream
from presize.sources.columns import python_values, with_column
from presize.sources.contents import Source
from presize.sources.folder import names_of
from presize.sources.labels import check_classes, naming
from presize.sources.spellings import Spellings
from presize.store.data_files import DataFile, fixes
from presize.store.filenames import path_problem
from presize.store.index import COMPANION_COLUMNS, INDEX_COLUMNS, open_settled, read_index, record_columns
from presize.store.manifest import Manifest, read_manifest, replaced
from presize.store.rejects_file import Rejects, read_rejects
from presize.store.shard import ENGINE
from presize.store.verify import check_data_file
from presize.system.files import check_file, expanded

Rows = npt.NDArray[np.int64]

OF_SAMPLES = ("several datasets", "some of the samples", "other classes", "prefixed paths")
"""Values that a manifest may have under ``derived``, besides options that differed."""


@dataclass(frozen=True)
class PublishedDataset:
    """A published LMDB dataset. `roots`, `manifests` and `indexes` have one element per size.

    Attributes:
        samples: ``path``, ``source_nbytes``, ``source_mtime_ns`` (with checksums, ``source_crc32``), the same of
            companions, ``shard`` and ``row`` of each record, in dataset order; then of each rejected file that an
            update need not try again, with shard -1 and its position in `rejects` as row.
        rows: for each shard its records, as rows of `samples`, in the order in which the shard stores them.
        damaged: numbers of shards that are missing or have the wrong file size in any size; none of them is used.
    """

    roots: tuple[Path, ...]
    manifests: tuple[Manifest, ...]
    indexes: tuple[pa.RecordBatch, ...]
    samples: pa.Table
    rows: tuple[Rows, ...]
    rejects: Rejects
    damaged: tuple[int, ...] = ()

    @property
    def companions(self) -> tuple[str, ...]:
        return tuple(companion.name for companion in self.manifests[0].companions)

    @cached_property
    def sizes(self) -> tuple[Size, ...]:
        return tuple(Size.parse(manifest.size) for manifest in self.manifests)

    @cached_property
    def shards(self) -> dict[Stream, tuple[tuple[Path, DataFile], ...]]:
        return {
            Stream(name, size): tuple((root, file) for file in files)
            for root, manifest, size in zip(self.roots, self.manifests, self.sizes, strict=True)
            for name, files in [("", manifest.shards), *((each.name, each.shards) for each in manifest.companions)]
        }

    def columns(self, stream: Stream, rows: Rows, checksum: bool) -> dict[str, Rows]:
        """Return these rows of a stream's index columns, as a ShardTable holds them."""
        index = self.indexes[self.sizes.index(stream.size)]
        names = record_columns(stream.name, checksum)
        return {name: numbers_of(index, stream.column(name))[rows].astype(np.int64) for name in names}


@dataclass(frozen=True, kw_only=True)
class DatasetSource(Source):
    """Samples of datasets that have one size each and the same streams. For each sample, `dataset_of` and `row_of` give
    the dataset and the row in its index. `derived` says how they differ from all samples of one dataset, in words of
    OF_SAMPLES. With `resizes`, images that do not fit the size of the build are resized; otherwise all are copied."""

    datasets: tuple[PublishedDataset, ...]
    dataset_of: Rows
    row_of: Rows
    derived: tuple[str, ...] = ()
    resizes: bool = False

    @property
    def manifests(self) -> list[Manifest]:
        return [dataset.manifests[0] for dataset in self.datasets]

    def texts(self, option: str) -> list[str]:
        """Return the recorded values of an option that is a list of texts, such as ``boxes``, each once."""
        recorded = [manifest.identity["options"].get(option, []) for manifest in self.manifests]
        texts = [text for value in recorded for text in (value if isinstance(value, list) else [value])]
        if not all(isinstance(text, str) for text in texts):
            raise DatasetError(f"{self.root}: the options in the manifest are damaged: {option}")
        return list(dict.fromkeys(texts))

    def numbers(self, name: str) -> Rows:
        values = np.zeros(len(self.dataset_of), np.int64)
        for at, dataset in enumerate(self.datasets):
            mine = self.dataset_of == at
            values[mine] = numbers_of(dataset.indexes[0], name)[self.row_of[mine]]
        return values

    @property
    def nbytes(self) -> int:
        return sum(int(self.numbers(stream.column("nbytes")).sum()) for stream in self.datasets[0].shards)

    def replaced(self) -> DatasetError | None:
        """Return the error to raise if a dataset was replaced after it was read; otherwise None."""
        errors = (replaced(dataset.roots[0], dataset.manifests[0]) for dataset in self.datasets)
        return next(filter(None, errors), None)


def read_published(roots: Sequence[Path], with_rejects: bool = True) -> PublishedDataset:
    """Read the dataset in `roots`, one folder per size. Shards are not read: only their file sizes are checked."""
    manifests = tuple(read_manifest(root) for root in roots)
    indexes = tuple(
        _checked_index(root, manifest, with_rejects) for root, manifest in zip(roots, manifests, strict=True)
    )
    index, shards = indexes[0], manifests[0].shards
    same = ("path", "shard", "row", *_states(manifests[0]))
    for root, other, manifest in zip(roots, indexes, manifests, strict=True):
        if [file.file for file in manifest.shards] != [file.file for file in shards] or not all(
            other.column(name).equals(index.column(name)) for name in same
        ):
            raise DatasetError(f"{root} and {roots[0]} are from different builds; {_FIX}")
    rejects = read_rejects(roots[0] / manifests[0].rejects.file) if with_rejects else Rejects()
    samples, rows = _samples(index, manifests[0], rejects), _rows(roots[0], index, shards)
    dataset = PublishedDataset(tuple(roots), manifests, indexes, samples, rows, rejects)
    damaged = set()
    for files in dataset.shards.values():
        for number, (root, file) in enumerate(files):
            try:
                check_file(root / file.file, file.bytes)
            except DatasetError:
                damaged.add(number)
    return replace(dataset, damaged=tuple(sorted(damaged)))


_FIX = "presize build --overwrite rebuilds it"


def _checked_index(root: Path, manifest: Manifest, with_rejects: bool) -> pa.RecordBatch:
    if manifest.layout != "lmdb":
        raise DatasetError(
            f"{root} is a folder of image files, without shards; presize build makes shards from its source"
        )
    if manifest.engine != ENGINE:
        raise DatasetError(f"{root} has no shards that this version of presize reads; {_FIX}")
    for file in (manifest.index, *([manifest.rejects] if with_rejects else [])):  # the report may have been removed
        for what in check_data_file(root, file):
            raise DatasetError(f"{root / file.file}: {what}; {'; '.join(fixes([file.file]))}")
    index = read_index(root, manifest, check=False)  # its SHA-256 was compared above
    try:
        index.column("path").validate(full=True)
    except pa.ArrowInvalid as error:
        raise DatasetError(f"{root / manifest.index.file} is damaged: {str(error).splitlines()[0]}; {_FIX}") from None
    return index


def _rows(root: Path, index: pa.RecordBatch, shards: Sequence[DataFile]) -> tuple[Rows, ...]:
    lengths = np.array([file.rows for file in shards], np.int64)
    ends = np.cumsum(lengths)
    shard, row = numbers_of(index, "shard"), numbers_of(index, "row")
    order = np.lexsort((row, shard))
    expected = np.repeat(np.arange(len(shards)), lengths), np.arange(len(order)) - np.repeat(ends - lengths, lengths)
    if not (np.array_equal(shard[order], expected[0]) and np.array_equal(row[order], expected[1])):
        raise DatasetError(f"the index of {root} does not list each row of its shards once; {_FIX}")
    return tuple(order[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True))


def _states(manifest: Manifest, *names: str) -> list[str]:
    """Return the columns of the index that show whether a file has changed, and those of companions."""
    prefixes = ("", *(f"{companion.name}_" for companion in manifest.companions))
    return [f"{prefix}{name}" for prefix in prefixes for name in (*names, "source_nbytes", "source_mtime_ns")]


def _samples(index: pa.RecordBatch, manifest: Manifest, rejects: Rejects) -> pa.Table:
    rows = np.flatnonzero(rejects.columns.column("source_nbytes").is_valid())
    known = rejects.columns.select(["path", "source_nbytes", "source_mtime_ns"]).take(pa.array(rows))
    names = _states(manifest, *["source_crc32"] * manifest.checksum)
    columns: dict[str, Any] = {name: np.zeros(len(rows), np.int64) for name in names}
    columns |= {name: known.column(name) for name in known.schema.names}
    columns |= {"shard": np.full(len(rows), -1), "row": rows}
    stored = pa.Table.from_batches([index]).select(list(columns))
    return pa.concat_tables([stored, pa.table(columns, stored.schema)])


def numbers_of(index: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    return np.asarray(index.column(name).to_numpy(zero_copy_only=True))


def join_datasets(
    roots: Sequence[str | os.PathLike[str]],
    only: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    prefix: bool = False,
) -> DatasetSource:
    """List the samples of datasets, one dataset after another. `prefix` puts the dataset's number before each path."""
    folders = [Path(os.path.realpath(expanded(root))) for root in roots]
    datasets = tuple(open_settled(folder, partial(_opened, folder)) for folder in folders)
    for other in datasets[1:]:
        _check_alike(datasets[0], other)
    known = _class_list(datasets, classes)
    table = _concatenated(datasets, prefix)
    lengths = [len(dataset.indexes[0]) for dataset in datasets]
    dataset_of = np.repeat(np.arange(len(datasets)), lengths)
    row_of = np.concatenate([np.arange(length) for length in lengths])
    if only is not None:
        taken = _taken(table.column("path"), only)
        table, dataset_of, row_of = table.filter(pa.array(taken)), dataset_of[taken], row_of[taken]
    problem = path_problem(table.column("path").combine_chunks())
    if problem is not None:
        hint = "" if prefix or len(datasets) == 1 else "; --prefix puts the number of its dataset before each path"
        raise SourceError(f"the datasets have {problem}{hint}")
    if known is not None:
        labels = _renumbered(datasets, dataset_of, table.column("label").to_numpy(), known)
        table = with_column(table, "label", pa.array(labels))
    left_out = [dataset.manifests[0].left_out for dataset in datasets]
    has_other_classes = known not in [dataset.manifests[0].classes for dataset in datasets]
    differs = (len(datasets) > 1, only is not None, has_other_classes, prefix)
    return DatasetSource(
        datasets[0].roots[0],
        table,
        known,
        Rejects.joined(_rejects(datasets, prefix)) if only is None else Rejects(),
        sum(counts.get("hidden", 0) for counts in left_out),
        sum(counts.get("outside", 0) for counts in left_out),
        has_table=any(dataset.manifests[0].listed for dataset in datasets),
        datasets=datasets,
        dataset_of=dataset_of,
        row_of=row_of,
        derived=tuple(compress(OF_SAMPLES, differs)),
    )


def _opened(root: Path, _: Manifest) -> PublishedDataset:
    dataset = read_published([root])
    try:
        dataset.indexes[0].validate(full=True)
    except pa.ArrowInvalid as error:
        raise DatasetError(f"the index of {root} is damaged: {str(error).splitlines()[0]}") from None
    for name in (stream.column(side) for stream in dataset.shards for side in ("height", "width")):
        if pc.min(dataset.indexes[0].column(name)).as_py() < 1:
            raise DatasetError(f"the index of {root} is damaged: a {name} is less than 1")
    if dataset.damaged:
        count = plural(len(dataset.damaged), "shard is", "shards are")
        raise DatasetError(f"{root}: {count} missing or damaged; {'; '.join(fixes())}")
    return dataset


def _kind(manifest: Manifest) -> dict[str, Any]:
    """Return the properties that a reader assumes of all records of a dataset, and of the columns of its index."""
    options = manifest.identity["options"]
    image = {name: options["image"].get(name) for name in ("format", "color", "depth")}
    return image | {name: value for name, value in options.items() if name not in _NOT_READ}


_NOT_READ = {"image", "layout", "shard_samples", "follow_links", "checksum", "column_types", "derived"}
"""Options that do not matter to readers. All others determine the content of records or columns."""


def _check_alike(first: PublishedDataset, other: PublishedDataset) -> None:
    labelled = {"label" in dataset.indexes[0].schema.names: dataset.roots[0] for dataset in (first, other)}
    if len(labelled) == 2:
        raise SourceError(f"{labelled[True]} has labels and {labelled[False]} has none")
    ours, theirs = (_kind(dataset.manifests[0]) for dataset in (first, other))
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            raise SourceError(
                f"{first.roots[0]} and {other.roots[0]} cannot be one dataset: {name} is "
                f"{ours.get(name) or 'not given'} in the first, {theirs.get(name) or 'not given'} in the second"
            )


def _concatenated(datasets: Sequence[PublishedDataset], prefix: bool) -> pa.Table:
    """Concatenate the indexes, without the columns that a build computes. A column that a dataset lacks is null."""
    tables = []
    for number, dataset in enumerate(datasets):
        index = pa.Table.from_batches([dataset.indexes[0]]).replace_schema_metadata(None)
        made = {*INDEX_COLUMNS, *(f"{name}_{column}" for name in dataset.companions for column in COMPANION_COLUMNS)}
        made -= {*_states(dataset.manifests[0], "path")}
        table = index.drop_columns([name for name in index.column_names if name in made])
        tables.append(with_column(table, "path", _prefixed(table.column("path"), number)) if prefix else table)
    try:
        return pa.concat_tables(tables, promote_options="default").combine_chunks()
    except pa.ArrowException as error:
        raise SourceError(f"the datasets have a column of different types: {str(error).splitlines()[0]}") from None


def _taken(paths: pa.ChunkedArray, only: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return a mask of the `paths` that are in `only`, in any spelling."""
    known, listed = paths.combine_chunks(), pa.array(only, pa.large_string())
    is_strange = pc.invert(pc.is_in(listed, value_set=known))
    spellings = Spellings(names_of(python_values(paths)))
    spelled = map(spellings.spelled, listed.filter(is_strange).to_pylist())
    listed = pc.replace_with_mask(listed, is_strange, pa.array(spelled, listed.type))
    unknown = listed.filter(pc.invert(pc.is_in(listed, value_set=known)))
    if len(unknown):
        first = unknown[0].as_py()
        raise SourceError(
            f"--only: {len(unknown)} of {len(listed)} paths are in no dataset; the first is {first!r}"
            f"{spellings.hint(first)}"
        )
    return np.asarray(pc.is_in(paths, value_set=listed).to_numpy(), np.bool_)


def _class_list(datasets: Sequence[PublishedDataset], classes: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the given classes; else the longest list, if it begins with each of the others; else all names, sorted, if
    all lists are sorted. Raises SourceError for other lists. Returns None if there are no classes."""
    lists = [dataset.manifests[0].classes for dataset in datasets]
    known = [names for names in lists if names is not None]
    if not known and classes is None:
        return None
    if not known:
        raise SourceError(f"--classes: {datasets[0].roots[0]} has no classes")
    if len(known) < len(lists):
        with_classes = {names is not None: dataset.roots[0] for names, dataset in zip(lists, datasets, strict=True)}
        raise SourceError(f"{with_classes[True]} has classes and {with_classes[False]} has none")
    if classes is not None:
        with naming("--classes"):
            return check_classes(classes)
    longest = max(known, key=len)
    if all(longest[: len(names)] == names for names in known):
        return longest
    if all(list(names) == sorted(names) for names in known):
        return tuple(sorted({name for names in known for name in names}))
    other = next(at for at, names in enumerate(known) if longest[: len(names)] != names)
    place, ours, theirs = next((i, a, b) for i, (a, b) in enumerate(zip(longest, known[other], strict=False)) if a != b)
    raise SourceError(
        f"the class lists disagree: class {place} is {ours!r} in {datasets[known.index(longest)].roots[0]} and "
        f"{theirs!r} in {datasets[other].roots[0]}; choose a list with --classes FILE|DATASET"
    )


def _renumbered(
    datasets: Sequence[PublishedDataset], dataset_of: Rows, labels: npt.NDArray[np.int32], classes: tuple[str, ...]
) -> npt.NDArray[np.int32]:
    place = {name: i for i, name in enumerate(classes)}
    found = np.empty(len(labels), np.int32)
    for at, dataset in enumerate(datasets):
        names, mine = dataset.manifests[0].classes or (), dataset_of == at
        if len(old := labels[mine]) and not 0 <= old.min() <= old.max() < len(names):
            raise DatasetError(f"the index of {dataset.roots[0]} is damaged: a label is out of range")
        found[mine] = np.array([place.get(name, -1) for name in names], np.int32)[old]
        if len(old) and found[mine].min() < 0:
            name = names[old[found[mine].argmin()]]
            raise SourceError(f"--classes: {dataset.roots[0]} has the class {name!r}, which is not in the list")
    return found


def _rejects(datasets: Sequence[PublishedDataset], prefix: bool) -> Iterator[Rejects]:
    for number, dataset in enumerate(datasets):
        path, *others = dataset.rejects.columns.columns
        yield Rejects.with_columns([_prefixed(path, number), *others]) if prefix else dataset.rejects


def _prefixed(paths: pa.Array | pa.ChunkedArray, number: int) -> pa.Array | pa.ChunkedArray:
    number_text, slash = (pa.scalar(text, pa.large_string()) for text in (str(number), "/"))
    return pc.binary_join_element_wise(number_text, paths, slash)
