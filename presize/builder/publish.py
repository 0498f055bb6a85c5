"""Finished shards -> a dataset: writes its index, rejects and manifest, and removes what they replace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.builder.annotations import scaled, warn_of_bad_boxes
from presize.builder.output_dir import BuildJournal, OutputDir, StagedFiles
from presize.builder.plan import Plan
from presize.builder.tasks import staging
from presize.builder.tasks.sidecar import Finished, Rejected, size_columns
from presize.codecs.source_facts import unpack
from presize.errors import BuildError
from presize.formatting import plural
from presize.options import Size
from presize.sources.scan import Source
from presize.sources.source_files import check_containers
from presize.sources.source_reader import SourceReader
from presize.store import shard
from presize.store.data_files import REPORT, CompanionFiles, DataFile, companion_shard, generation_name
from presize.store.index import INDEX_COLUMNS, index_columns, write_index
from presize.store.manifest import Manifest
from presize.store.rejects_file import REPEATED_TEXT, Rejects, to_jsonl
from presize.store.shard_reader import ShardReader
from presize.system.files import write_atomically


class _Merged(NamedTuple):
    """All side-cars together, in the order of the dataset.

    Attributes:
        samples: the row in the source table of each record.
        columns: those of a Sidecar but ``sample``, each in the type of the index; and ``shard`` and ``row``, where each
            record lies.
        shards: the name of each shard, for each size and companion its bytes and SHA-256, and its records.
        rejects: the files that were not stored, those that the source rejected first.
    """

    samples: npt.NDArray[np.int64]
    columns: dict[str, npt.NDArray[Any]]
    shards: list[tuple[str, list[tuple[int, str]], int]]
    rejects: Rejects


@dataclass(frozen=True)
class _Dataset:
    """The dataset of one size, as far as it is known before anything of it is written.

    Attributes:
        number: the place of its size among those of the plan.
        root: its folder.
        index: its index.
        samples: the row in the source table of each row of the index.
    """

    number: int
    root: Path
    index: pa.Table
    samples: npt.NDArray[np.int64]


def publish(
    plan: Plan,
    journal: BuildJournal,
    finished: Finished,
    output: OutputDir,
    files: pa.ChunkedArray | None,
    report: bool = False,
) -> list[Manifest]:
    """Publish the dataset of each size in its root.

    Interrupted at any point, it can be called again with the same arguments (OutputDir.publish says how).

    Args:
        plan: what was built.
        journal: of the build, under whose generation files are named.
        finished: all shards.
        output: where they are.
        files: the name of each sample's file in a folder dataset; None for shards.
        report: write report.html, too.

    Raises:
        BuildError: not one image could be stored, a file cannot be written, or a container of the source has changed.
    """
    merged = _merge(finished, plan.source)
    if not len(merged.samples):
        output.discard()
        unread = len(plan.source.rejects)
        first = ""
        if len(merged.rejects) > unread:
            first = f"; the first: {merged.rejects[unread].path}: {merged.rejects[unread].reason}"
        raise BuildError(
            f"of {plural(len(plan.source.table), 'file')} in {plan.source.root} none could be stored{first}"
        )
    datasets = [
        _Dataset(k, root, _index(plan, merged, k, files), merged.samples) for k, root in enumerate(output.roots)
    ]
    manifests = [_write_data(plan, journal, merged, dataset) for dataset in datasets]
    if report:
        manifests = [
            _write_report(plan, dataset, manifest, merged.rejects)
            for dataset, manifest in zip(datasets, manifests, strict=True)
        ]
    # Once more on this host: on others, workers have compared no more than sizes and modification times.
    check_containers(plan.source.root, plan.source.containers)
    output.publish(journal, manifests, None if files is None else _staged(plan, datasets[0]))
    return manifests


def _staged(plan: Plan, dataset: _Dataset) -> StagedFiles:
    classes = plan.source.classes if plan.source.by_folder else None
    return StagedFiles(dataset.index.column("file"), dataset.samples, classes or ())


_REJECTED = pa.schema({"sample": pa.int64(), "error": REPEATED_TEXT, "reason": REPEATED_TEXT})


def _merge(finished: Finished, source: Source) -> _Merged:
    """Read the side-cars one by one."""
    files = len(source.table)
    is_stored = np.zeros(files, bool)
    columns: dict[str, npt.NDArray[Any]] = {}
    shards, rejected = [], []
    for number, (name_of_shard, read) in enumerate(finished.shards):
        sidecar = read()
        samples = sidecar.samples
        is_stored[samples] = True
        places = {"shard": np.full(len(samples), number), "row": np.arange(len(samples))}
        for name, values in (sidecar.columns | places).items():
            if name != "sample":
                columns.setdefault(name, np.zeros(files, _dtype(name)))[samples] = values
        shards.append((name_of_shard, sidecar.shards, len(samples)))
        if sidecar.rejects:
            rejected.append(_rejected_columns(sidecar.rejects))
    if not is_stored.all():
        columns = {name: columns.pop(name)[is_stored] for name in list(columns)}
    rejects = [source.rejects, _rejects(source, pa.Table.from_batches(rejected, _REJECTED))]
    if finished.still_rejected is not None:
        rejects.append(finished.still_rejected.forgetting())
    return _Merged(np.flatnonzero(is_stored), columns, shards, Rejects.joined(rejects))


def _rejected_columns(rejected: Sequence[Rejected]) -> pa.RecordBatch:
    arrays = [pa.array(values, kind) for values, kind in zip(zip(*rejected, strict=True), _REJECTED.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_REJECTED)


def _rejects(source: Source, rejected: pa.Table) -> Rejects:
    """The files of samples that were rejected."""
    files = source.table.select(["path", "source_nbytes", "source_mtime_ns"])
    path, *state = files.take(rejected.column("sample").combine_chunks()).columns
    return Rejects.with_columns([path, rejected.column("error"), rejected.column("reason"), *state]).forgetting()


def _dtype(name: str) -> Any:
    """The type of a side-car's column, such as ``nbytes_0`` or ``mask_nbytes_0``, in the index."""
    stem = re.sub(r"_\d+$", "", name)
    column = next(column for column in INDEX_COLUMNS if stem == column or stem.endswith(f"_{column}"))
    return INDEX_COLUMNS[column].to_pandas_dtype()


def _index(plan: Plan, merged: _Merged, size: int, files: pa.ChunkedArray | None) -> pa.Table:
    stored = plan.source.table
    if len(merged.samples) < len(stored):
        stored = stored.take(pa.array(merged.samples))
    values = merged.columns
    sides = values["source_height"], values["source_width"]
    if size == 0:
        warn_of_bad_boxes(stored, plan.options, *sides)
    stored = scaled(stored, plan.options, plan.options.image.sizes[size], *sides)
    companions = [companion.name for companion in plan.options.companions]
    values = values | {name: values[f"{name}_{size}"] for name in size_columns(companions)}
    if files is not None:
        stored = stored.append_column("file", files.take(pa.array(merged.samples)))
    columns = {
        name: stored.column(name) if name in stored.column_names else pa.array(values[name], kind)
        for name, kind in index_columns(plan.options.layout, plan.options.checksum, companions).items()
    }
    labels = [name for name in plan.source.fields if name not in columns]
    return pa.table(columns | {name: stored.column(name) for name in labels})


def _write_data(plan: Plan, journal: BuildJournal, merged: _Merged, dataset: _Dataset) -> Manifest:
    """Write the index and the rejects. Returns the manifest that names them, and the shards."""
    root = dataset.root
    rejects_name = generation_name("rejects.jsonl", journal.generation)
    write_atomically(root / rejects_name, to_jsonl(merged.rejects))
    lmdb = plan.options.layout == "lmdb"
    shards = [DataFile(name, *written[dataset.number], rows) for name, written, rows in merged.shards if lmdb]
    rejects = len(merged.rejects)
    skipped, unreadable = merged.rejects.skipped, len(merged.rejects.unreadable)
    companions = (_companion_files(plan, merged, dataset, number) for number in range(len(plan.options.companions)))
    return Manifest(
        layout=plan.options.layout,
        identity=plan.identity,
        digest=plan.digest,
        generation=journal.generation,
        size=str(plan.options.image.sizes[dataset.number]),
        classes=plan.source.classes,
        samples=len(dataset.index),
        bytes=pc.sum(dataset.index.column("nbytes")).as_py(),
        left_out={
            "rejected": rejects - skipped - unreadable,
            "skipped": skipped,
            **({"unreadable": unreadable} if unreadable else {}),
            "hidden": plan.source.hidden,
            "outside": plan.source.outside,
        },
        engine=shard.ENGINE if lmdb else None,
        index=write_index(root, generation_name("index.arrow", journal.generation), dataset.index),
        rejects=DataFile.of(root, rejects_name, rejects),
        shards=tuple(shards),
        versions=plan.versions,
        companions=tuple(companions),
    )


def _companion_files(plan: Plan, merged: _Merged, dataset: _Dataset, number: int) -> CompanionFiles:
    """The shards of the companion of this number, in one size."""
    companion = plan.options.companions[number]
    place = (1 + number) * len(plan.options.image.sizes) + dataset.number
    facts = dataset.index.column(f"{companion.name}_source_facts").to_numpy()
    is_deep = companion.is_exact and bool(unpack(facts, "deep").any())
    return CompanionFiles(
        name=companion.name,
        format=companion.format,
        filter=companion.filter,
        depth=16 if is_deep else 8,
        bytes=pc.sum(dataset.index.column(f"{companion.name}_nbytes")).as_py(),
        shards=tuple(
            DataFile(companion_shard(companion.name, name), *written[place], rows)
            for name, written, rows in merged.shards
        ),
    )


def _write_report(plan: Plan, dataset: _Dataset, manifest: Manifest, rejects: Rejects) -> Manifest:
    """Write the page about a dataset that lacks just its manifest. Returns that, with the page in it."""
    from presize.pages.build_report import BuildReport, build_page, leaner_quality
    from presize.pages.comparison import compare  # OpenCV and jinja2, which nothing else of a build needs

    root = dataset.root
    reader = SourceReader(plan.source.root)

    def source_of(row: dict[str, Any]) -> bytes:
        (file,) = plan.source.files(np.array([row["sample"]]))
        return reader.read_again(file)

    def value_of(row: dict[str, Any]) -> bytes:
        if manifest.layout == "folder":
            return staging.read(root, row["file"], row["sample"])
        with shards[row["shard"]] as get:
            return bytes(get(row["row"]))

    # Of the index its own columns alone: one of the label table may be called sample, too.
    numbered = dataset.index.select(list(index_columns(manifest.layout)))
    numbered = numbered.append_column("sample", pa.array(dataset.samples))
    with ExitStack() as stack:
        shards = [stack.enter_context(closing(ShardReader(root / f.file, f.bytes))) for f in manifest.shards]
        leaner = leaner_quality(dataset.index.column("source_facts").to_numpy(), manifest.identity["options"]["image"])
        size = Size.parse(manifest.size)
        comparisons, failures = compare(plan.options.image, size, numbered, source_of, value_of, leaner)
    name = generation_name(REPORT, manifest.generation)
    page = build_page(BuildReport(manifest, dataset.index, rejects, comparisons, failures))
    write_atomically(root / name, page.encode())
    return replace(manifest, report=DataFile.of(root, name, len(comparisons)))
