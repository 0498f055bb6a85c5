"""Work of a run: a task for each shard of the plan, the finished ones among them, and the records that are copied."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from presize.builder import estimate
from presize.builder.annotations import extents
from presize.builder.executors.executor import Executor
from presize.builder.output_dir import BuildJournal, OutputDir, TooManyRejectsError, remove_attempts
from presize.builder.plan import Plan
from presize.builder.shard_table import ShardDone, ShardTable
from presize.builder.tasks.task import Copies, FileList, Task, finished
from presize.codecs import transcode
from presize.errors import BuildError, ImageError
from presize.formatting import plural, printable, size_text
from presize.options import RunOptions, Stream
from presize.sources.contents import Source
from presize.sources.dataset import DatasetSource, PublishedDataset, Rows, numbers_of
from presize.store.data_files import companion_shard, generation_name
from presize.store.rejects import NOT_AN_IMAGE
from presize.store.rejects_file import Rejects
from presize.store.shard_reader import ShardReader
from presize.system.child import ChildDiedError
from presize.system.files import writing

_PROBES = 16
"""Number of samples that a task tries to read when it cannot read its own."""

_PAGE_BYTES, _CARD_BYTES, _MOST_CARDS = 60_000, 14_000, 48
"""Bytes of report.html without pictures, and of its pictures of one sample; largest number of samples that it shows."""


@dataclass(frozen=True)
class Records:
    """Records that a build copies from the dataset that it updates, or from the datasets that it derives from.

    Attributes:
        dataset_of, row_of: for each sample of the build the position of its dataset, and its row in that dataset's
            index; -1 for a sample that is built.
        kept: shards of the first dataset that stay, ascending.
        still_rejected: files that an update does not try again, because they are unchanged.
        lost: True for each sample whose record is damaged. It is rebuilt, and has to match the index.
        resizes: for a derived dataset, True if records that do not fit are resized; None for other builds.
    """

    datasets: Sequence[PublishedDataset]
    dataset_of: Rows
    row_of: Rows
    kept: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    still_rejected: Rejects = field(default_factory=Rejects)
    lost: npt.NDArray[np.bool_] | None = None
    resizes: bool | None = None

    def kept_tables(self) -> Iterator[ShardTable]:
        if not len(self.kept):
            return
        base = self.datasets[0]
        sample_of = np.full(len(base.samples), -1, np.int64)
        sample_of[self.row_of[self.row_of >= 0]] = np.flatnonzero(self.row_of >= 0)
        for number in self.kept.tolist():
            rows = base.rows[number]
            columns = {stream: base.columns(stream, rows, base.manifests[0].checksum) for stream in base.shards}
            files = {stream: shards[number][1] for stream, shards in base.shards.items()}
            yield ShardTable(number, sample_of[rows], columns, files, [])

    def copying(self, task: Task) -> Task:
        """Return `task`, set to copy the records that it can. Its digest then covers them."""
        dataset_of, row_of = self.dataset_of[task.samples], self.row_of[task.samples]
        made_of = hashlib.sha256(task.digest.encode())
        lost = None if self.lost is None else self.lost[task.samples]
        for numbers in (task.samples, dataset_of, row_of, *(() if lost is None else (lost,))):
            made_of.update(numbers.tobytes())
        for dataset in self.datasets:
            made_of.update(dataset.manifests[0].index.sha256.encode())
        task = replace(task, digest=made_of.hexdigest())
        if not (row_of >= 0).any():
            return task
        streams = task.options.streams
        shard, row = np.full((2, len(row_of)), -1, np.int64)
        shards: dict[Stream, list[ShardReader]] = {stream: [] for stream in streams}
        columns: dict[Stream, dict[str, Rows]] = {stream: {} for stream in streams}
        first = 0
        for at, dataset in enumerate(self.datasets):
            mine = np.flatnonzero((dataset_of == at) & (row_of >= 0))
            rows = row_of[mine]
            numbers, position = np.unique(numbers_of(dataset.indexes[0], "shard")[rows], return_inverse=True)
            shard[mine], row[mine] = first + position, numbers_of(dataset.indexes[0], "row")[rows]
            first += len(numbers)
            for stream in streams:
                stored = stream if self.resizes is None else stream._replace(size=dataset.sizes[0])
                files = [dataset.shards[stored][number] for number in numbers.tolist()]
                shards[stream] += (ShardReader(root / file.file, file.bytes) for root, file in files)
                for name, values in dataset.columns(stored, rows, task.options.checksum).items():
                    columns[stream].setdefault(name, np.zeros(len(row_of), np.int64))[mine] = values
        if lost is not None:
            shard[lost] = -1
        return replace(task, copies=Copies(shards, shard, row, columns, self.resizes, must_match=lost is not None))


@dataclass
class BuildWork:
    """Work of a plan: all tasks; in `found` the finished ones by number; in `again` the numbers of those to run again,
    because files could not be read; and the records to copy."""

    plan: Plan
    run: RunOptions
    output: OutputDir
    journal: BuildJournal
    tasks: list[Task]
    found: dict[int, ShardDone]
    again: set[int]
    records: Records | None

    @property
    def waiting(self) -> list[Task]:
        return [task for task in self.tasks if task.number not in self.found]

    @property
    def to_make(self) -> int:
        """Return the number of samples that this run builds rather than copies."""
        return sum(task.to_make for task in self.waiting)

    def carry_out(self, executor: Executor, on_shard: Callable[[ShardDone], None] = lambda _: None) -> None:
        """Run the waiting tasks. Raises TooManyRejectsError or ImageError if more images are rejected than allowed."""
        rejected = len(self.plan.source.rejects.of_images)
        try:
            with closing(self._dones(executor)) as dones:  # otherwise workers would outlive an error
                for done in dones:
                    rejected += done.rejected + done.unreadable
                    on_shard(done)
                    check_rejects(rejected, self.plan, self.run, partial(self._a_reject, done.number))
        except (ImageError, TooManyRejectsError):
            replace(self.journal, failed=True).write(self.output.path)
            raise
        finally:
            shards = [path for task in self.waiting if not task.files for path in task.targets.values()]
            remove_attempts([*(task.sidecar for task in self.waiting), *shards])
        self.tasks = list(map(_without_samples, self.tasks))

    def _dones(self, executor: Executor) -> Generator[ShardDone, None, None]:
        if self.records is not None:
            yield from (table.done._replace(earlier=True) for table in self.records.kept_tables())
            if rejects := self.records.still_rejected:
                yield ShardDone(None, 0, len(rejects) - rejects.skipped, rejects.skipped, 0, earlier=True)
        yield from (done._replace(earlier=True) for done in self.found.values())
        if waiting := self.waiting:
            yield from executor(waiting)

    def _a_reject(self, number: int | None) -> str:
        """Return the part of a message that names a reject of the source, or of shard `number`."""
        found = [(each.path, each.reason) for each in islice(self.plan.source.rejects.of_images, 1)]
        for task in [] if found else self.tasks:
            if task.number == number and (table := ShardTable.read(task.sidecar, task.number, task.digest)) is not None:
                paths = self.plan.source.table.column("path")
                rejects = (each for each in table.rejects if each[1] != NOT_AN_IMAGE)
                found += [(paths[sample].as_py(), reason) for sample, _, reason in islice(rejects, 1)]
        return "".join(f"; one is {printable(path)}: {reason}" for path, reason in found)

    def tables(self) -> Iterator[ShardTable]:
        """Yield the tables of all shards in index order, one at a time: those of ten million samples take 1 GB."""
        yield from () if self.records is None else self.records.kept_tables()
        for task in self.tasks:
            table = finished(task, self.journal.publishing)
            if table is None:
                raise BuildError(
                    f"finished shard {task.number} is missing from {self.output.path}; run again to rebuild it"
                )
            yield table

    def check_space(self) -> None:
        """Raise BuildError, before anything is written, if the disk cannot hold the result and its report, if any."""
        plan, files, roots = self.plan, len(self.plan.source.table), self.output.roots
        samples = sum(len(task.samples) for task in self.waiting)
        free = shutil.disk_usage(self.output.path).free
        largest = sum(transcode.record_bytes(plan.options.image, stream.size) for stream in plan.options.streams)
        pages = self.run.report * len(roots) * (_PAGE_BYTES + _CARD_BYTES * min(_MOST_CARDS, files))
        if samples == 0 or free > samples * largest + pages:
            return
        try:
            needed = estimate.stored_bytes(plan) * samples // files + pages
        except ChildDiedError:  # killed by an image that the build will reject
            return
        if needed > free:
            raise BuildError(
                f"OUT {self.output.path} has {size_text(free)} free and needs about {size_text(needed)}; "
                "make room, or choose a smaller --size or another disk"
            )


def check_rejects(rejected: int, plan: Plan, run: RunOptions, which: Callable[[], str]) -> None:
    """Raise ImageError or TooManyRejectsError if more images are rejected than `run` allows. `which`: function that
    returns the part of the message that says which."""
    were = plural(rejected, "image was", "images were") + " rejected or unreadable"
    if rejected and run.on_error == "fail":
        raise ImageError(
            f"{were} before this run{which()}; repair or remove such files and run again, or retry them with "
            "--overwrite"
        )
    if not run.max_errors.allows(rejected, of=len(plan.source.table) + len(plan.source.rejects)):
        raise TooManyRejectsError(
            f"{were}, more than --max-errors {run.max_errors} allows{which()}; repair or remove such files, or run "
            "again with a larger --max-errors to resume"
        )


def _without_samples(task: Task) -> Task:
    """Return a finished task without its samples. The names of ten million files take half a gigabyte."""
    if task.options.layout == "folder":
        return task
    return replace(task, samples=task.samples[:0], sources=(), copies=None, extents=None)


def find_work(
    plan: Plan,
    run: RunOptions,
    output: OutputDir,
    journal: BuildJournal,
    records: Records | None = None,
    numbers: Sequence[int] | None = None,
) -> BuildWork:
    """Return the work of `plan`, or of the shards of these `numbers`. Updates and repairs copy `records`."""
    if records is None and isinstance(plan.source, DatasetSource):
        source = plan.source
        records = Records(source.datasets, source.dataset_of, source.row_of, resizes=source.resizes)
    # If a manifest already names the shards of this build, they must not change.
    is_published = journal.publishing or any(m and m.generation == journal.generation for m in output.manifests())
    work = BuildWork(plan, run, output, journal, [], {}, set(), records)
    for task in _tasks(plan, run, output, journal.generation, range(len(plan.shards)) if numbers is None else numbers):
        if records is not None:
            task = records.copying(task)
        table = finished(task, journal.publishing)
        if table is not None and table.done.unreadable and not is_published:
            work.again.add(task.number)
        elif table is not None:
            work.found[task.number] = table.done
            task = _without_samples(task)
        work.tasks.append(task)
    return work


def _tasks(plan: Plan, run: RunOptions, output: OutputDir, generation: int, numbers: Sequence[int]) -> Iterator[Task]:
    files = plan.file_names
    for root in output.roots:
        with writing(root):
            (root / "shards" if files is None else root).mkdir(parents=True, exist_ok=True)
    root_of = dict(zip(plan.options.image.sizes, output.roots, strict=True))
    table = plan.source.table
    around = extents(table, plan.options)
    probes = tuple(plan.files(np.linspace(0, len(table) - 1, min(_PROBES, len(table))).astype(np.int64)))
    for number in numbers:
        samples = plan.shards[number]
        if files is None:
            name = generation_name(f"shards/{number:05d}.lmdb", generation)
            targets = {
                stream: root_of[stream.size] / companion_shard(stream.name, name) for stream in plan.options.streams
            }
        else:
            targets = {stream: root_of[stream.size] for stream in plan.options.streams}
        yield Task(
            number=number,
            digest=plan.shard_digest(number),
            source=plan.source.root,
            sidecar=output.sidecar(number),
            targets=targets,
            options=plan.options,
            on_error=run.on_error,
            samples=samples,
            sources=tuple(map(_file_list, plan.sources(samples))),
            files="" if files is None else "\0".join(files.take(pa.array(samples)).to_pylist()),
            extents=None if around is None else around[samples],
            probes=probes,
        )


def _file_list(source: Source) -> FileList:
    paths, nbytes = (source.table.column(name) for name in ("path", "source_nbytes"))
    return FileList(nbytes.to_numpy(), "\0".join(paths.to_pylist()), source.places(np.arange(len(paths))))
