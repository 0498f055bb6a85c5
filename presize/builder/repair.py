"""Rebuilds the damaged shards of a dataset from its source: an update with the dataset's own options and samples, in
which no sample moves. Intact records are copied, and a rebuilt record has to equal the lost one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.builder.executors.executor import executor_for
from presize.builder.like import recorded_options
from presize.builder.output_dir import BuildJournal, OutputDir
from presize.builder.plan import Plan
from presize.builder.reuse import find_damage
from presize.builder.shard_table import ShardTable
from presize.builder.work import Records, find_work
from presize.errors import DatasetError, SourceError
from presize.options import BuildOptions, RunOptions, SourceOptions
from presize.sources.companions import companion_paths
from presize.sources.containers import recognize
from presize.sources.contents import Source
from presize.sources.dataset import PublishedDataset, read_published
from presize.sources.scan import scan
from presize.sources.source_files import Url
from presize.store.data_files import MANIFEST, STATE, DataFile
from presize.store.filenames import unsafe_paths
from presize.store.manifest import Manifest, read_manifest
from presize.store.verify import Problem, check_data_file
from presize.system.files import expanded, names_in, working_in
from presize.system.resources import usable_cores


@dataclass(frozen=True)
class Repair:
    """Result of a repair.

    Attributes:
        shards: number of shards checked, all sizes together.
        repaired: shards that were damaged and are intact again, as paths relative to OUT.
        problems: files that are still damaged, and why.
    """

    shards: int
    repaired: tuple[str, ...]
    problems: tuple[Problem, ...]


def repair_dataset(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    samples: SourceOptions = SourceOptions(),
    on_begin: Callable[[int], None] = lambda _: None,
    on_shard: Callable[[], None] = lambda: None,
) -> Repair:
    """Read all shards of the dataset in `out`, in every size, and rebuild those that are damaged or missing.

    Intact records are copied; the others are built from the source files in the index. A shard is replaced only if each
    of its records has the length and the CRC-32 in the index. If its SHA-256 differs from the manifest, the shard gets
    another name and a new manifest is published. Readers that have a shard open keep reading the old file.

    Args:
        source: the folder or file that the dataset was built from.
        out: the dataset. All its sizes are repaired together.
        jobs: number of processes; all cores by default.
        samples: how the source was read; only ``keys`` matters.
        on_begin: called with the number of shards.
        on_shard: called after each shard has been read.

    Raises:
        SourceError: `source` is missing, or its containers cannot be listed.
        DatasetError: `out` does not hold a dataset of shards, or holds those of several builds.
        BuildError: a build is writing to `out`, `out` cannot be written, or a container changes during the repair.
    """
    source, out = expanded(source), Path(os.path.abspath(expanded(out)))
    with working_in(out):
        output = _output_dir(out, source)  # raises before anything is written, even the lock
    found = _scanned(source, out, samples, recorded_options(read_manifest(output.roots[0]), out))
    with (
        working_in(output.path),
        OutputDir.of(output.path.parent).lock() if (output.path.parent / STATE).exists() else nullcontext(),
        output.lock(),
    ):
        abandoned = output.recover()
        output = _output_dir(out, source)  # a build may have published meanwhile
        if not set(here := _datasets_in(out)).issubset(output.roots):  # nobody would check the others
            each = ", ".join(folder.name for folder in here)
            raise DatasetError(f"{out} holds datasets of several builds ({each}); repair each, such as {here[0]}")
        manifests = [read_manifest(root) for root in output.roots]
        roots, identity = list(zip(output.roots, manifests, strict=True)), manifests[0].identity
        shards = [(root, file) for root, manifest in roots for file in manifest.every_shard]
        on_begin(len(shards))
        fix = "derive the dataset again, with --overwrite" if manifests[0].derived else ""
        problems = [
            Problem(
                os.path.relpath(root / file.file, out),
                f"{what}; only shards can be rebuilt; {fix or 'presize build --overwrite rebuilds the dataset'}",
            )
            for root, manifest in roots
            for file in manifest.files()
            if file not in manifest.every_shard
            for what in check_data_file(root, file)
        ]
        try:
            dataset = read_published(output.roots, with_rejects=False)
        except DatasetError as error:
            if not problems:
                raise
            damaged = ((root / file.file, what) for root, file in shards for what in check_data_file(root, file))
            problems += (Problem(os.path.relpath(path, out), f"{what}; {error}") for path, what in damaged)
            return Repair(len(shards), (), tuple(problems))
        lost, damage = find_damage(dataset, jobs or usable_cores(), on_shard)
        options = replace(recorded_options(manifests[0], out), boxes=(), keypoints=())  # already scaled in the index
        # The unfinished work may be a build, or a repair of this dataset, which is resumed.
        begun = abandoned if abandoned and abandoned.update and abandoned.identity == identity else None
        tables = {}
        if damage:
            plan = Plan(_samples(found, dataset, options), options, identity, dataset.rows, manifests[0].versions)
            journal = begun or output.start(identity, plan.versions, abandoned, update=True)
            numbers = sorted({number for _, number in damage})
            tables = _remade(plan, output, journal, dataset, lost, numbers, RunOptions(jobs, report=False))
        elif begun is abandoned:
            output.discard()
    for (stream, number), what in damage.items():
        table, (root, file) = tables[number], dataset.shards[stream][number]
        if table.rejects:
            row, _, reason = table.rejects[0]
            path = dataset.indexes[0].column("path")[row].as_py()
            again = fix or "presize build --update builds from the current source"
            what = f"{what}; it cannot be rebuilt: {path}: {reason}; {again}"
            problems.append(Problem(os.path.relpath(root / file.file, out), what))
    repaired = (dataset.shards[stream][n] for stream, n in damage if not tables[n].rejects)
    names = tuple(os.path.relpath(root / file.file, out) for root, file in repaired)
    return Repair(len(shards), names, tuple(problems))


def _scanned(source: str | os.PathLike[str], out: Path, samples: SourceOptions, options: BuildOptions) -> Source:
    """Return the source: with the samples of its containers, or, for a folder or URL, with an empty table."""
    url = Url.of(source)
    follow_links = options.follow_links
    if url is None and recognize(source, samples.keys is not None, follow_links) is not None:
        return scan(source, samples, follow_links, companions=options.companions)
    if url is None and not os.path.isdir(source):
        raise SourceError(f"the source {os.fspath(source)} is not a folder; give the one that {out} was built from")
    return Source(url or Path(source), pa.table({}), None)


def _datasets_in(out: Path) -> list[Path]:
    """Return `out` if it is a dataset, else the datasets in it."""
    folders = [out] if (out / MANIFEST).exists() else [out / name for name in sorted(names_in(out))]
    return [folder for folder in folders if (folder / MANIFEST).exists()]


def _output_dir(out: Path, source: str | os.PathLike[str]) -> OutputDir:
    """Return the folders of the dataset in `out`, of all sizes that exist. Raises DatasetError if there is none."""
    here = _datasets_in(out)
    if not here and os.path.exists(os.path.join(source, MANIFEST)):
        raise DatasetError(f"{out} is not a presize dataset, but {source} is one; did you swap SRC and OUT?")
    first = read_manifest(here[0] if here else out)  # its error says what is there instead of a dataset
    if first.layout != "lmdb":
        raise DatasetError(f"{here[0]} holds image files, not shards; presize build --overwrite rebuilds them")
    sizes = recorded_options(first, here[0]).image.sizes
    if len(sizes) == 1 or here[0].name != first.size:
        return OutputDir.of(here[0])
    roots = [here[0].parent / str(size) for size in sizes]
    together = (each for each in roots if (each / MANIFEST).exists() and read_manifest(each).digest == first.digest)
    return OutputDir(here[0].parent, tuple(together))


def _remade(
    plan: Plan,
    output: OutputDir,
    journal: BuildJournal,
    dataset: PublishedDataset,
    lost: npt.NDArray[np.bool_],
    numbers: Sequence[int],
    run: RunOptions,
) -> dict[int, ShardTable]:
    """Rebuild these shards, and publish those without a reject. `lost` is True for each damaged sample."""
    rows = np.arange(len(dataset.indexes[0]))
    records = Records([dataset], np.zeros_like(rows), rows, lost=lost[rows])
    in_sizes = replace(plan.options, image=replace(plan.options.image, sizes=dataset.sizes))
    work = find_work(replace(plan, options=in_sizes), run, output, journal, records, numbers)
    # An image is encoded in all sizes of its build, even if some of them no longer exist.
    work.tasks = [replace(task, options=plan.options, probes=()) for task in work.tasks]
    work.carry_out(executor_for(run))
    tables = {table.number: table for table in work.tables()}
    moved: dict[Path, DataFile] = {}
    for number, table in tables.items():
        olds = {stream: files[number] for stream, files in dataset.shards.items()}
        if table.rejects:
            continue
        if all(replace(table.files[stream], file=old.file) == old for stream, (_, old) in olds.items()):
            output.put_back({root / table.files[stream].file: root / old.file for stream, (root, old) in olds.items()})
        else:
            moved |= {root / old.file: table.files[stream] for stream, (root, old) in olds.items()}
    if moved:
        manifests = zip(output.roots, dataset.manifests, strict=True)
        output.publish(journal, [_with_shards(*each, moved, journal.generation) for each in manifests])
    else:
        output.discard()
    return tables


def _samples(found: Source, dataset: PublishedDataset, options: BuildOptions) -> Source:
    """Return the dataset's samples, located in the source. Raises DatasetError if a path leads out of the source."""
    table = pa.Table.from_batches([dataset.indexes[0]])
    for paths in (table.column("path"), *(companion_paths(companion, table) for companion in options.companions)):
        if pc.any(unsafe_paths(paths)).as_py():
            raise DatasetError(
                f"the index of {dataset.roots[0]} is damaged: a path leads out of the source; "
                "presize build --overwrite rebuilds it"
            )
    if not found.containers:
        return replace(found, table=table)
    # Missing samples are mapped to the first one, whose record differs, so that they are rejected.
    at = pc.fill_null(pc.index_in(table.column("path"), value_set=found.table.column("path")), 0)
    listed = found.table.take(at)
    return replace(found, table=listed.set_column(listed.column_names.index("path"), "path", table.column("path")))


def _with_shards(root: Path, manifest: Manifest, moved: Mapping[Path, DataFile], generation: int) -> Manifest:
    def now(files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
        return tuple(moved.get(root / file.file, file) for file in files)

    return replace(
        manifest,
        generation=generation,
        shards=now(manifest.shards),
        companions=tuple(replace(each, shards=now(each.shards)) for each in manifest.companions),
        report=manifest.report if manifest.report and (root / manifest.report.file).exists() else None,
    )
