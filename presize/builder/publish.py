"""Publishes finished shards as a dataset: writes index, rejects, report and manifest, and removes replaced files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.builder.annotations import scaled, warn_of_bad_boxes
from presize.builder.output_dir import BuildJournal, StagedFiles
from presize.builder.plan import Plan
from presize.builder.shard_table import Rejected
from presize.builder.tasks import staging
from presize.builder.work import BuildWork
from presize.codecs.source_facts import are_rgb, unpack_facts
from presize.errors import BuildError, warn
from presize.formatting import plural, printable
from presize.options import Companion, Size, Stream
from presize.sources.contents import Source
from presize.sources.source_files import SourceReader, check_containers
from presize.store import shard
from presize.store.data_files import REPORT, CompanionFiles, DataFile, generation_name
from presize.store.index import INDEX_COLUMNS, index_columns, write_index
from presize.store.manifest import Manifest
from presize.store.rejects import NOT_AN_IMAGE
from presize.store.rejects_file import Rejects, to_jsonl
from presize.store.shard_reader import ShardReader
from presize.system.files import write_atomically


class _Merged(NamedTuple):
    """Tables of all shards, merged in dataset order: each stored sample's row in the source table, its ``shard`` and
    ``row``, each stream's columns in the types of the index, each shard's files, all rejects, the source's first."""

    samples: npt.NDArray[np.int64]
    places: dict[str, npt.NDArray[Any]]
    columns: dict[Stream, dict[str, npt.NDArray[Any]]]
    shards: list[Mapping[Stream, DataFile]]
    rejects: Rejects

    def files(self, stream: Stream) -> tuple[DataFile, ...]:
        """Return the shards of a stream; none for a folder dataset."""
        return tuple(files[stream] for files in self.shards if files)


def publish(work: BuildWork) -> list[Manifest]:
    """Publish the dataset of each size. May be called again. Raises BuildError if no image could be stored, or if an
    update would remove images because their files cannot be read."""
    plan, output, journal = work.plan, work.output, work.journal
    merged = _merge(work)
    _check_readable(work, merged)
    if not len(merged.samples):
        output.discard()
        tried = [merged.rejects[i] for i in range(len(plan.source.rejects), len(merged.rejects))]
        tried.sort(key=lambda each: each.error == NOT_AN_IMAGE)
        first = f"; the first: {tried[0].path}: {tried[0].reason}" if tried else ""
        raise BuildError(
            f"no image could be stored ({plural(len(plan.source.table), 'file')} in {plan.source.name}){first}"
        )
    manifests = []
    for size, root in zip(plan.options.image.sizes, output.roots, strict=True):
        index = _index(plan, merged, size)
        manifest = _write_data(plan, journal, merged, size, root, index)
        manifests.append(_write_report(plan, merged, manifest, root, index) if work.run.report else manifest)
    # Checked again on this host: workers on other hosts compare only sizes and modification times.
    check_containers(plan.source.root, plan.source.containers)
    staged = None
    if plan.file_names is not None:
        classes = plan.source.classes if plan.source.by_folder else None
        staged = StagedFiles(plan.file_names.take(pa.array(merged.samples)), merged.samples, classes or ())
    output.publish(journal, manifests, staged)
    return manifests


def _merge(work: BuildWork) -> _Merged:
    """Read the tables of the shards one by one."""
    source = work.plan.source
    files = len(source.table)
    is_stored = np.zeros(files, bool)
    places = {name: np.zeros(files, np.int32) for name in ("shard", "row")}
    columns: dict[Stream, dict[str, npt.NDArray[Any]]] = {}
    shards, rejects = [], [source.rejects]
    for number, table in enumerate(work.tables()):
        is_stored[table.samples] = True
        places["shard"][table.samples] = number
        places["row"][table.samples] = np.arange(len(table.samples))
        for stream, of_stream in table.columns.items():
            whole = columns.setdefault(stream, {})
            for name, values in of_stream.items():
                if name not in whole:
                    whole[name] = np.zeros(files, str(INDEX_COLUMNS[name]))
                whole[name][table.samples] = values
        shards.append(table.files)
        if table.rejects:
            rejects.append(_rejects(source, table.rejects))
    if not is_stored.all():
        for whole in (places, *columns.values()):
            for name in whole:
                whole[name] = whole[name][is_stored]
    if work.records is not None:
        rejects.append(work.records.still_rejected.forgetting())
    return _Merged(np.flatnonzero(is_stored), places, columns, shards, Rejects.joined(rejects))


def _check_readable(work: BuildWork, merged: _Merged) -> None:
    """Raise BuildError if an update could not read the files of images that its dataset holds."""
    if not work.journal.update or work.records is None:
        return
    stored = work.records.datasets[0].indexes[0].column("path")
    # The source's own rejects come first. They were checked before the update was started.
    unreadable = Rejects(merged.rejects.columns.slice(len(work.plan.source.rejects))).unreadable
    lost = np.flatnonzero(pc.is_in(unreadable.columns.column("path"), value_set=stored))
    if len(lost):
        first = unreadable[int(lost[0])]
        raise BuildError(
            f"OUT {work.output.path} holds {plural(len(lost), 'image')} that --update would remove, because their "
            f"files cannot be read now; the first: {printable(first.path)}: {first.reason}; run again when they can "
            "be read, or move them out of the source"
        )


def _rejects(source: Source, rejected: Sequence[Rejected]) -> Rejects:
    samples, errors, reasons = zip(*rejected, strict=True)
    files = source.table.select(["path", "source_nbytes", "source_mtime_ns"])
    path, *state = files.take(pa.array(samples)).columns
    return Rejects.with_columns([path, errors, reasons, *state]).forgetting()


def _index(plan: Plan, merged: _Merged, size: Size) -> pa.Table:
    stored = plan.source.table
    if len(merged.samples) < len(stored):
        stored = stored.take(pa.array(merged.samples))
    values = merged.places | {
        stream.column(name): column
        for stream, columns in merged.columns.items()
        for name, column in columns.items()
        if stream.size == size
    }
    sides = values["source_height"], values["source_width"]
    if size == plan.options.image.sizes[0]:
        warn_of_bad_boxes(stored, plan.options, *sides)
    stored = scaled(stored, plan.options, size, *sides)
    if plan.file_names is not None:
        stored = stored.append_column("file", plan.file_names.take(pa.array(merged.samples)))
    companions = [companion.name for companion in plan.options.companions]
    columns = {
        name: stored.column(name) if name in stored.column_names else pa.array(values[name], kind)
        for name, kind in index_columns(plan.options.layout, plan.options.checksum, companions).items()
    }
    labels = [name for name in plan.source.fields if name not in columns]
    return pa.table(columns | {name: stored.column(name) for name in labels})


def _write_data(
    plan: Plan, journal: BuildJournal, merged: _Merged, size: Size, root: Path, index: pa.Table
) -> Manifest:
    """Write the index and the rejects. Returns the manifest that names them and the shards."""
    rejects_name = generation_name("rejects.jsonl", journal.generation)
    write_atomically(root / rejects_name, to_jsonl(merged.rejects))
    rejects = len(merged.rejects)
    skipped, unreadable = merged.rejects.skipped, len(merged.rejects.unreadable)
    return Manifest(
        layout=plan.options.layout,
        identity=plan.identity,
        digest=plan.digest,
        generation=journal.generation,
        size=str(size),
        classes=plan.source.classes,
        samples=len(index),
        bytes=pc.sum(index.column("nbytes")).as_py(),
        left_out={
            "rejected": rejects - skipped - unreadable,
            "skipped": skipped,
            **({"unreadable": unreadable} if unreadable else {}),
            "hidden": plan.source.hidden,
            "outside": plan.source.outside,
        },
        engine=shard.ENGINE if plan.options.layout == "lmdb" else None,
        index=write_index(root, generation_name("index.arrow", journal.generation), index),
        rejects=DataFile.of(root, rejects_name, rejects),
        shards=merged.files(Stream("", size)),
        versions=plan.versions,
        companions=tuple(_companion_files(companion, merged, size) for companion in plan.options.companions),
        listed=plan.source.has_table,
    )


def _companion_files(companion: Companion, merged: _Merged, size: Size) -> CompanionFiles:
    stream = Stream(companion.name, size)
    columns = merged.columns[stream]
    if companion.is_array:
        like_image = unpack_facts(columns["source_facts"], "like_image") == 1
        if like_image.any() and not like_image.all():
            warn(
                f"{companion.name}: stored {int((~like_image).sum()):,} of {plural(len(like_image), 'array')} "
                "unchanged, because the shape does not match the height and width of the upright image; the "
                "others are resized with their image"
            )
    is_mask, is_rgb = companion.is_exact and not companion.is_array, are_rgb(columns["source_facts"])
    if is_mask and is_rgb.any() and not is_rgb.all():
        warn(
            f"{companion.name}: {int(is_rgb.sum()):,} of {plural(len(is_rgb), 'mask')} are RGB, and the others have "
            "one channel; they can be read together only without a crop"
        )
    is_deep = is_mask and bool(unpack_facts(columns["source_facts"], "deep").any())
    return CompanionFiles(
        name=companion.name,
        format=companion.format,
        filter=companion.filter,
        depth=16 if is_deep else 8,
        bytes=int(columns["nbytes"].sum()),
        shards=merged.files(stream),
    )


def _write_report(plan: Plan, merged: _Merged, manifest: Manifest, root: Path, index: pa.Table) -> Manifest:
    """Write the report of a dataset whose other files are written. Returns the manifest with the report in it."""
    from presize.pages.build_report import build_page, leaner_quality, report_columns
    from presize.pages.comparison import compare  # imports OpenCV and jinja2, needed here only for the report

    reader = SourceReader(plan.source.root)

    def source_of(row: dict[str, Any]) -> bytes:
        (file,) = plan.source.files(np.array([row["sample"]]))
        return reader.read(file, for_report=True)

    def value_of(row: dict[str, Any]) -> bytes:
        if manifest.layout == "folder":
            return staging.read(root, row["file"], row["sample"])
        with shards[row["shard"]] as get:
            return bytes(get(row["row"]))

    # Without the columns of the label table, which may have one named "sample".
    numbered = index.select(list(index_columns(manifest.layout)))
    numbered = numbered.append_column("sample", pa.array(merged.samples))
    with ExitStack() as stack:
        shards = [stack.enter_context(closing(ShardReader(root / f.file, f.bytes))) for f in manifest.shards]
        leaner = leaner_quality(report_columns(index), manifest.identity["options"]["image"])
        size = Size.parse(manifest.size)
        comparisons, failures = compare(plan.options.image, size, numbered, source_of, value_of, leaner)
    name = generation_name(REPORT, manifest.generation)
    page = build_page(manifest, index, merged.rejects, comparisons, failures)
    write_atomically(root / name, page.encode())
    return replace(manifest, report=DataFile.of(root, name, len(comparisons)))
