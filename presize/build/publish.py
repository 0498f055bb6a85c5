"""Finished shards -> a dataset: its index, rejects and manifest put in place, what they replace removed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.build import staging
from presize.build.cleanup import finish_publishing, remove_replaced, remove_unpublished
from presize.build.plan import Plan
from presize.build.sidecar import Sidecar
from presize.build.state import NEW_MANIFEST, Place, State
from presize.errors import BuildError
from presize.options import Size
from presize.store import shard
from presize.store.index import INDEX_COLUMNS, index_columns, write_index
from presize.store.manifest import (
    MANIFEST,
    DataFile,
    Manifest,
    generation_name,
    publish_manifest,
)
from presize.store.rejects import NOT_AN_IMAGE, UNREAD, Reject, to_jsonl
from presize.system.files import sync_folder, write_atomically, writing


def publish(
    plan: Plan,
    state: State,
    sidecars: Sequence[Sidecar],
    names: Sequence[str],
    place: Place,
    files: pa.ChunkedArray | None,
    report: bool = False,
) -> list[Manifest]:
    """Publish the dataset of each size in its root, with a report if asked for, and return the manifests.

    `sidecars` are those of all shards, and `names` the names of these. `files` are the files of a folder
    dataset, one a row of the source table. Interrupted at any point, it can be called again with the same
    arguments; an update's, once all is written down, with finish_publishing.
    Raises BuildError when not one image could be stored.
    """
    order = np.concatenate([sidecar.columns["sample"] for sidecar in sidecars]).argsort()
    if not len(order):
        raise BuildError(
            f"none of the {len(plan.source.table)} files of {plan.source.root} could be stored{_why(sidecars)}"
        )
    merged = {
        name: np.concatenate([sidecar.columns[name] for sidecar in sidecars])[order] for name in sidecars[0].columns
    }
    lengths = [len(sidecar.columns["sample"]) for sidecar in sidecars]
    merged["shard"] = np.repeat(np.arange(len(sidecars)), lengths)[order]
    merged["row"] = np.concatenate([np.arange(length) for length in lengths])[order]
    rejects = _rejects(plan, sidecars)
    indexes = [_index(plan, merged, k, files) for k in range(len(place.roots))]
    manifests = [
        _write_data(plan, state, sidecars, names, k, root, index, rejects)
        for k, (root, index) in enumerate(zip(place.roots, indexes, strict=True))
    ]
    if report:
        manifests = [
            _write_report(plan, root, manifest, index, rejects, merged["sample"])
            for root, manifest, index in zip(place.roots, manifests, indexes, strict=True)
        ]
    if state.update:
        for root, manifest in zip(place.roots, manifests, strict=True):
            sync_folder(root / "shards")
            publish_manifest(root, manifest, NEW_MANIFEST)
        replace(state, publishing=True).write(place.out)
        finish_publishing(place)
        return manifests
    if files is not None and not state.publishing:  # the indexes are there by now, to tell which files are ours
        state = replace(state, publishing=True)
        state.write(place.out)
    for root, index, manifest in zip(place.roots, indexes, manifests, strict=True):
        if files is None:
            sync_folder(root / "shards")
        else:
            _name_files(root, index, merged["sample"])
        publish_manifest(root, manifest)
        remove_replaced(root, state, index)
        remove_unpublished(root, manifest)
        if plan.options.layout == "folder" and plan.source.by_folder:
            _keep_empty_classes(root, plan.source.classes or ())
    return manifests


def _why(sidecars: Sequence[Sidecar]) -> str:
    reasons = [reason for sidecar in sidecars for _, _, reason in sidecar.rejects]
    return f"; the first: {reasons[0]}" if reasons else ""


def _index(plan: Plan, merged: dict[str, npt.NDArray[np.int64]], size: int, files: pa.ChunkedArray | None) -> pa.Table:
    stored = plan.source.table.take(pa.array(merged["sample"]))
    values = merged | {name: merged[f"{name}_{size}"] for name in ("height", "width", "nbytes", "crc32")}
    if files is not None:
        stored = stored.append_column("file", files.take(pa.array(merged["sample"])))
    columns = {
        name: stored.column(name) if name in stored.column_names else pa.array(values[name], kind)
        for name, kind in index_columns(plan.options.layout, plan.options.checksum).items()
    }
    labels = [name for name in stored.column_names if name not in INDEX_COLUMNS]
    return pa.table(columns | {name: stored.column(name) for name in labels})


def _rejects(plan: Plan, sidecars: Sequence[Sidecar]) -> list[Reject]:
    rejected = [reject for sidecar in sidecars for reject in sidecar.rejects]
    rows = plan.source.table.take(pa.array([sample for sample, _, _ in rejected], pa.int64()))
    files = zip(*(rows.column(name).to_pylist() for name in ("path", "source_nbytes", "source_mtime_ns")), strict=True)
    found = [
        Reject(path, error, reason, *(() if reason.startswith(UNREAD) else (nbytes, mtime_ns)))
        for (path, nbytes, mtime_ns), (_, error, reason) in zip(files, rejected, strict=True)
    ]
    return [*plan.source.rejects, *found]


def _write_data(
    plan: Plan,
    state: State,
    sidecars: Sequence[Sidecar],
    names: Sequence[str],
    size: int,
    root: Path,
    index: pa.Table,
    rejects: list[Reject],
) -> Manifest:
    rejects_name = generation_name("rejects.jsonl", state.generation)
    write_atomically(root / rejects_name, to_jsonl(rejects))
    lmdb = plan.options.layout == "lmdb"
    shards = [
        DataFile(name, *sidecar.shards[size], len(sidecar.columns["sample"]))
        for name, sidecar in zip(names, sidecars, strict=False)  # files that stay rejected have no shard
        if lmdb
    ]
    skipped = sum(reject.error == NOT_AN_IMAGE for reject in rejects)
    return Manifest(
        layout=plan.options.layout,
        identity=plan.identity,
        digest=plan.digest,
        generation=state.generation,
        size=str(plan.options.image.sizes[size]),
        classes=plan.source.classes,
        samples=len(index),
        bytes=pc.sum(index.column("nbytes")).as_py(),
        left_out={
            "rejected": len(rejects) - skipped,
            "skipped": skipped,
            "hidden": plan.source.hidden,
            "outside": plan.source.outside,
        },
        engine=shard.ENGINE if lmdb else None,
        index=write_index(root, generation_name("index.arrow", state.generation), index),
        rejects=DataFile.of(root, rejects_name, len(rejects)),
        shards=tuple(shards),
    )


def _write_report(
    plan: Plan,
    root: Path,
    manifest: Manifest,
    index: pa.Table,
    rejects: list[Reject],
    samples: npt.NDArray[np.int64],
) -> Manifest:
    """Write the page about a dataset that is whole but for its manifest, and return that with the page in it."""
    from presize.report.build_report import BuildReport, build_page
    from presize.report.comparison import compare  # OpenCV and jinja2, which nothing else of a build needs

    def value_of(row: dict[str, Any]) -> bytes:
        if manifest.layout == "folder":
            return staging.read(root, row["file"], row["sample"])
        with shards[row["shard"]] as get:
            return bytes(get(row["row"]))

    # Of the index its own columns alone: one of the label table may be called sample, too.
    numbered = index.select(list(index_columns(manifest.layout))).append_column("sample", pa.array(samples))
    with ExitStack() as stack:
        shards = [stack.enter_context(closing(shard.ShardReader(root / f.file, f.bytes))) for f in manifest.shards]
        comparisons, failures = compare(plan, Size.parse(manifest.size), numbered, value_of)
    name = generation_name("report.html", manifest.generation)
    page = build_page(BuildReport(manifest, index, rejects, comparisons, failures))
    write_atomically(root / name, page.encode())
    return replace(manifest, report=DataFile.of(root, name, len(comparisons)))


def shard_name(number: int, generation: int) -> str:
    return generation_name(f"shards/{number:05d}.lmdb", generation)


def _name_files(root: Path, index: pa.Table, samples: npt.NDArray[np.int64]) -> None:
    """Give staged files their names. A folder cannot change in one step, so first it stops being a dataset."""
    (root / MANIFEST).unlink(missing_ok=True)
    for file, sample in zip(index.column("file").to_pylist(), samples.tolist(), strict=True):
        staging.unstage(root, file, sample)
    os.sync()  # one for all folders: the manifest must not outlive the names


def _keep_empty_classes(root: Path, classes: tuple[str, ...]) -> None:
    """A folder for each class, so that ImageFolder numbers those of `root` as those of its source."""
    for name in classes:
        with writing(root / name):
            (root / name).mkdir(exist_ok=True)
