"""The datasets that another one is derived from: read, checked, and joined to one table of samples."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.builder.output_dir import OutputDir
from presize.builder.reuse import PublishedDataset, copies_of, read_base
from presize.builder.tasks.task import Task
from presize.builder.work import Finished
from presize.errors import DatasetError, SourceError
from presize.formatting import plural
from presize.sources.labels import check_classes, naming
from presize.sources.scan import Source
from presize.store.filenames import path_problem
from presize.store.index import COMPANION_COLUMNS, INDEX_COLUMNS, open_settled
from presize.store.manifest import Manifest, replaced
from presize.store.rejects_file import Rejects

Rows = npt.NDArray[np.int64]

_OF_SOURCES = ("path", "source_nbytes", "source_mtime_ns")

_SEVERAL, _SOME, _CLASSES, _PREFIX = "several datasets", "some of the samples", "other classes", "prefixed paths"
OF_SAMPLES = frozenset((_SEVERAL, _SOME, _CLASSES, _PREFIX))
"""How the samples of a derived dataset may differ from those of one source: what its manifest has under ``derived``
beside options that differed."""


@dataclass(frozen=True)
class Inputs:
    """Datasets, and the samples that are taken from them.

    Attributes:
        bases: the datasets.
        base_of: for each sample the position of its dataset.
        row_of: for each sample its row in the index of that dataset.
        source: the samples, as a build would list them; their files are the records of the datasets.
        derived: how they differ from all samples of one dataset, in words of OF_SAMPLES.
        resizes: whether images that do not fit the size of the build are resized. Otherwise all are copied.
    """

    bases: tuple[PublishedDataset, ...]
    base_of: Rows
    row_of: Rows
    source: Source
    derived: tuple[str, ...] = ()
    resizes: bool = False

    @property
    def manifests(self) -> list[Manifest]:
        return [base.manifests[0] for base in self.bases]

    def texts(self, option: str) -> list[str]:
        """What the datasets have recorded under an option that is a list of texts, such as ``boxes``."""
        found = [text for manifest in self.manifests for text in _list(manifest.identity["options"].get(option, []))]
        if not all(isinstance(text, str) for text in found):
            raise DatasetError(f"{self.bases[0].roots[0]}: the options in the manifest are damaged: {option}")
        return list(dict.fromkeys(found))

    def numbers(self, name: str) -> npt.NDArray[np.int64]:
        """A numeric column of the indexes, for each sample."""
        found = np.zeros(len(self.base_of), np.int64)
        for at, base in enumerate(self.bases):
            mine = self.base_of == at
            found[mine] = base.indexes[0].column(name).to_numpy()[self.row_of[mine]]
        return found

    def copying(self, task: Task) -> Task:
        """`task`, which copies all of its samples. Its digest then says, too, what from."""
        base_of, row_of = self.base_of[task.samples], self.row_of[task.samples]
        made_of = hashlib.sha256(task.digest.encode() + base_of.tobytes() + row_of.tobytes())
        for manifest in self.manifests:
            made_of.update(manifest.index.sha256.encode())
        copies = copies_of(self.bases, base_of, row_of, task.options, self.resizes)
        return replace(task, digest=made_of.hexdigest(), copies=copies)

    def replaced(self) -> DatasetError | None:
        """The error to raise when one of the datasets is another one by now; None while all are as they were read."""
        errors = (replaced(base.roots[0], base.manifests[0]) for base in self.bases)
        return next(filter(None, errors), None)

    def finished(self) -> Finished:
        """Nothing is taken over without a task."""
        return Finished()


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def join(
    roots: Sequence[str | os.PathLike[str]],
    only: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    prefix: bool = False,
) -> Inputs:
    """The samples of several datasets, one dataset after the other.

    Args:
        roots: the datasets.
        only: the paths of those that are taken; None takes all.
        classes: the class list; None joins those of the datasets.
        prefix: put the number of its dataset before each path, ``0/cats/1.jpg``.

    Raises:
        DatasetError: a dataset is missing or damaged.
        SourceError: the datasets cannot be one; or `only` has a path that is in none of them.
    """
    folders = [Path(os.path.realpath(root)) for root in roots]
    bases = tuple(open_settled(folder, partial(_opened, folder)) for folder in folders)
    for other in bases[1:]:
        _check_alike(bases[0], other)
    known = _class_list(bases, classes)
    table = _concatenated(bases, prefix)
    lengths = [len(base.indexes[0]) for base in bases]
    base_of = np.repeat(np.arange(len(bases)), lengths)
    row_of = np.concatenate([np.arange(length) for length in lengths])
    if only is not None:
        taken = _taken(table.column("path"), only)
        table, base_of, row_of = table.filter(pa.array(taken)), base_of[taken], row_of[taken]
    problem = path_problem(table.column("path").combine_chunks())
    if problem is not None:
        hint = "" if prefix or len(bases) == 1 else "; --prefix puts the number of its dataset before each path"
        raise SourceError(f"the datasets have {problem}{hint}")
    if known is not None:
        labels = _renumbered(bases, base_of, table.column("label").to_numpy(), known)
        table = table.set_column(table.column_names.index("label"), "label", pa.array(labels))
    left_out = [base.manifests[0].left_out for base in bases]
    source = Source(
        bases[0].roots[0],
        table,
        known,
        Rejects.joined(_rejects(bases, prefix)) if only is None else Rejects(),
        sum(counts.get("hidden", 0) for counts in left_out),
        sum(counts.get("outside", 0) for counts in left_out),
    )
    differs = {
        _SEVERAL: len(bases) > 1,
        _SOME: only is not None,
        _CLASSES: known not in [base.manifests[0].classes for base in bases],
        _PREFIX: prefix,
    }
    return Inputs(bases, base_of, row_of, source, tuple(how for how, it_does in differs.items() if it_does))


def _opened(root: Path, _: Manifest) -> PublishedDataset:
    base = read_base(OutputDir.of(root))
    try:
        base.indexes[0].validate(full=True)
    except pa.ArrowInvalid as error:
        raise DatasetError(f"the index of {root} is damaged: {str(error).splitlines()[0]}") from None
    for name in (stream.column(side) for stream in base.shards for side in ("height", "width")):
        if pc.min(base.indexes[0].column(name)).as_py() < 1:
            raise DatasetError(f"the index of {root} is damaged: a {name} is less than 1")
    if base.damaged:
        count = plural(len(base.damaged), "shard is", "shards are")
        raise DatasetError(f"{root}: {count} missing or damaged; presize repair makes shards again")
    return base


def _kind(manifest: Manifest) -> dict[str, Any]:
    """What a reader takes to be so of all records of a dataset, and of the columns of its index."""
    options = manifest.identity["options"]
    image = ("format", "color", "depth")
    return {
        **{name: options["image"].get(name) for name in image},
        **{name: value for name, value in options.items() if name not in _NOT_READ},
    }


_NOT_READ = {"image", "layout", "shard_samples", "follow_links", "checksum", "column_types", "derived"}
"""Options that readers do not ask for. All others say what is in the records or in columns."""


def _check_alike(first: PublishedDataset, other: PublishedDataset) -> None:
    labelled = {"label" in base.indexes[0].schema.names: base.roots[0] for base in (first, other)}
    if len(labelled) == 2:
        raise SourceError(f"{labelled[True]} has labels and {labelled[False]} has none")
    kinds = [_kind(base.manifests[0]) for base in (first, other)]
    for name in sorted({*kinds[0], *kinds[1]}):
        values = [kind.get(name) for kind in kinds]
        if values[0] != values[1]:
            raise SourceError(
                f"{first.roots[0]} and {other.roots[0]} cannot be one dataset: {name} is {values[0] or 'not given'} in "
                f"the one, {values[1] or 'not given'} in the other"
            )


def _concatenated(bases: Sequence[PublishedDataset], prefix: bool) -> pa.Table:
    """The indexes, without what a build computes anew. A column that a dataset lacks is null there."""
    tables = []
    for number, base in enumerate(bases):
        index = pa.Table.from_batches([base.indexes[0]])
        made = {*INDEX_COLUMNS, *(f"{name}_{column}" for name in base.companions for column in COMPANION_COLUMNS)}
        made -= {*_OF_SOURCES, *(f"{name}_{column}" for name in base.companions for column in _OF_SOURCES)}
        table = index.select([name for name in index.column_names if name not in made])
        if prefix:
            paths = _prefixed(table.column("path"), number)
            table = table.set_column(table.column_names.index("path"), "path", paths)
        tables.append(table.replace_schema_metadata(None))
    try:
        return pa.concat_tables(tables, promote_options="default").combine_chunks()
    except pa.ArrowException as error:
        raise SourceError(f"the datasets have a column of different types: {str(error).splitlines()[0]}") from None


def _taken(paths: pa.ChunkedArray, only: Sequence[str]) -> npt.NDArray[np.bool_]:
    """True for each of `paths` that is in `only`."""
    listed = pa.array(only, pa.large_string())
    unknown = listed.filter(pc.invert(pc.is_in(listed, value_set=paths.combine_chunks())))
    if len(unknown):
        raise SourceError(
            f"--only: {len(unknown)} of {len(listed)} paths are in no dataset, the first is {unknown[0].as_py()!r}"
        )
    return np.asarray(pc.is_in(paths, value_set=listed).to_numpy(), np.bool_)


def _class_list(bases: Sequence[PublishedDataset], classes: Sequence[str] | None) -> tuple[str, ...] | None:
    """The classes of the new dataset: those given; or the one list of all datasets, the longest where the others are
    its beginning, or all names sorted where each list is."""
    lists = [base.manifests[0].classes for base in bases]
    known = [names for names in lists if names is not None]
    if not known:
        if classes is not None:
            raise SourceError(f"--classes: {bases[0].roots[0]} has no classes")
        return None
    if len(known) < len(lists):
        with_classes = {names is not None: base.roots[0] for names, base in zip(lists, bases, strict=True)}
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
        f"the class lists disagree: class {place} is {ours!r} in {bases[known.index(longest)].roots[0]} and {theirs!r} "
        f"in {bases[other].roots[0]}; --classes FILE|DATASET settles it"
    )


def _renumbered(
    bases: Sequence[PublishedDataset], base_of: Rows, labels: npt.NDArray[np.int32], classes: tuple[str, ...]
) -> npt.NDArray[np.int32]:
    """The labels of all samples as positions in `classes`."""
    place = {name: i for i, name in enumerate(classes)}
    found = np.empty(len(labels), np.int32)
    for at, base in enumerate(bases):
        names, mine = base.manifests[0].classes or (), base_of == at
        if len(old := labels[mine]) and not 0 <= old.min() <= old.max() < len(names):
            raise DatasetError(f"the index of {base.roots[0]} is damaged: a label is out of range")
        found[mine] = np.array([place.get(name, -1) for name in names], np.int32)[old]
        if len(old) and found[mine].min() < 0:
            name = names[old[found[mine].argmin()]]
            raise SourceError(f"--classes: {base.roots[0]} has the class {name!r}, which is not in the list")
    return found


def _rejects(bases: Sequence[PublishedDataset], prefix: bool) -> Iterator[Rejects]:
    for number, base in enumerate(bases):
        path, *others = base.rejects.columns.columns
        yield Rejects.with_columns([_prefixed(path, number), *others]) if prefix else base.rejects


def _prefixed(paths: pa.Array | pa.ChunkedArray, number: int) -> pa.Array | pa.ChunkedArray:
    number_text, slash = (pa.scalar(text, pa.large_string()) for text in (str(number), "/"))
    return pc.binary_join_element_wise(number_text, paths, slash)
