"""Derives a dataset from others, without their sources: a build that copies all samples, or resizes them to fit."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from presize.builder.annotations import scaled
from presize.builder.executors.executor import executor_for
from presize.builder.fingerprint import CodecFingerprint, codec_fingerprint
from presize.builder.like import naming_options
from presize.builder.output_dir import OutputDir
from presize.builder.plan import Plan, make_plan, words_of
from presize.builder.run import build_planned
from presize.builder.shard_table import ShardDone
from presize.codecs.resize import target
from presize.errors import DatasetError, OptionError, SourceError
from presize.options import (
    BuildOptions,
    Coordinates,
    DeriveOptions,
    ErrorBudget,
    ImageOptions,
    RunOptions,
    Size,
    check_type,
)
from presize.sources.columns import plain_column
from presize.sources.dataset import DatasetSource, join_datasets
from presize.store.rejects import Reject
from presize.store.rejects_file import REJECTS_TOLD, first_rejects
from presize.system.files import expanded


@dataclass(frozen=True)
class Derivation:
    """Plan of derive_dataset: `resized` samples will be decoded and encoded again; `nbytes` of records are read."""

    plan: Plan
    resized: int
    nbytes: int


@dataclass(frozen=True)
class DeriveResult:
    """Result of derive_dataset.

    Attributes:
        out: the output folder, as given.
        samples: stored images.
        copied: images whose bytes are unchanged.
        resized: images that were decoded and encoded again.
        rejected: records that could not be decoded.
        bytes: size of the stored images and their companions.
        shards: number of shards.
        seconds: time from opening the datasets to publishing the manifest.
        recompressed: True if resized images have gone through lossy compression twice.
        rejects_file: list of the rejected records.
        first_rejects: the first few of them.
    """

    out: Path
    samples: int
    copied: int
    resized: int
    rejected: int
    bytes: int
    shards: int
    seconds: float
    recompressed: bool
    rejects_file: Path
    first_rejects: tuple[Reject, ...]


def plan_derive(datasets: Sequence[str | os.PathLike[str]], options: DeriveOptions = DeriveOptions()) -> Derivation:
    """Return the plan of derive_dataset. Reads manifests and indexes, but no records.

    Raises:
        DatasetError: a dataset is missing or damaged.
        SourceError: the datasets cannot be combined.
        OptionError: the size is larger than that of a dataset.
    """
    if isinstance(datasets, str | os.PathLike) or not isinstance(datasets, Collection):
        got = os.fspath(datasets) if isinstance(datasets, os.PathLike) else datasets
        raise OptionError(f"datasets: expected a list of datasets, got {got!r}")
    check_type("options", options, DeriveOptions)
    if not datasets:
        raise SourceError("expected at least one dataset to derive from, got none")
    source = join_datasets(datasets, options.only, options.classes, options.prefix)
    build = _build_options(source, options.size)
    if options.size is not None:
        source = replace(source, table=_scaled(source, build), resizes=True)
    resized = _count_resized(source, build.image)
    plan = make_plan(source, build, _codecs(source, build, resized), os.sysconf("SC_PAGE_SIZE"))
    plan = replace(plan, identity=plan.identity | {"options": _recorded(source, build)})
    return Derivation(plan, resized, source.nbytes)


def derive_dataset(
    datasets: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    options: DeriveOptions = DeriveOptions(),
    run: RunOptions = RunOptions(),
    *,
    on_plan: Callable[[Derivation], None] = lambda _: None,
    on_shard: Callable[[ShardDone], None] = lambda _: None,
) -> DeriveResult:
    """Derive a dataset from others, and publish it in `out` as a build does.

    Without a size, all records are copied. With a size, records that do not fit it are decoded, resized and encoded
    with the options of the first dataset, so JPEGs are compressed a second time. Call it again to finish an interrupted
    run. The same datasets and options give the same bytes in every file. No report is written.

    Args:
        datasets: at least one LMDB dataset; samples keep the order of the datasets.
        out: the output folder.
        options: the options of the new dataset.
        run: how to run. `update`, `report` and `max_errors` are ignored.
        on_plan: called with the plan.
        on_shard: called with each finished shard, first with those of an earlier run.

    Raises:
        DatasetError: a dataset is missing, is damaged (the CRC-32 of each record read is checked), or was updated or
            replaced during the run; the next call uses the new one.
        SourceError: the datasets cannot be combined, or `out` lies inside one of them.
        OptionError: the size is larger than that of a dataset.
        BuildError: `out` holds something else, or cannot be written.
    """
    start = time.perf_counter()
    out = expanded(out)
    derivation = plan_derive(datasets, options)
    plan = derivation.plan
    for root in datasets:
        output = OutputDir.for_build(root, out, plan.options, derived=True)
    on_plan(derivation)
    run = replace(run, update=False, report=False, max_errors=ErrorBudget())
    try:
        (manifest,) = build_planned(plan, run, output, executor_for(run), on_shard).manifests
    except DatasetError:
        gone = plan.source.replaced() if isinstance(plan.source, DatasetSource) else None
        if gone is None:
            raise
        with output.lock():
            output.discard()  # the finished shards are useless now, and would make the next run refuse
        raise gone from None
    rejected = len(plan.source.table) - manifest.samples
    resized = derivation.resized - rejected
    return DeriveResult(
        out=Path(out),
        samples=manifest.samples,
        copied=manifest.samples - resized,
        resized=resized,
        rejected=rejected,
        bytes=manifest.stored_bytes,
        shards=len(manifest.shards),
        seconds=time.perf_counter() - start,
        recompressed=resized > 0 and manifest.format in ("jpeg", "webp"),
        rejects_file=Path(out) / manifest.rejects.file,
        first_rejects=first_rejects(output.path / manifest.rejects.file, REJECTS_TOLD),
    )


def _build_options(source: DatasetSource, size: Size | None) -> BuildOptions:
    """Return the options of the first dataset with the new size, and with checksums if all datasets have them."""
    sizes = [Size.parse(manifest.size) for manifest in source.manifests]
    for dataset, old in zip(source.datasets, sizes, strict=True):
        if size is None and old != sizes[0]:
            raise SourceError(
                f"{source.root} has images of size {sizes[0]} and {dataset.roots[0]} of size {old}; "
                "give --size to resize them to one size"
            )
        if size is not None and str(old) != "keep" and (size.height > old.height or size.width > old.width):
            raise OptionError(
                f"size: {size} is larger than the {old} of {dataset.roots[0]}; for larger images, build the dataset "
                "from its source"
            )
    with naming_options(source.root):
        options = BuildOptions.from_json(source.manifests[0].identity["options"])
        return BuildOptions(
            image=replace(options.image, sizes=(size or sizes[0],)),
            shard_samples=options.shard_samples,
            follow_links=options.follow_links,
            checksum=all(manifest.checksum for manifest in source.manifests),
            companions=options.companions,
        )


def _scaled(source: DatasetSource, options: BuildOptions) -> pa.Table:
    """Return the samples, with boxes and keypoints scaled from pixels of the stored images to the new size."""
    boxes = tuple(Coordinates.parse_boxes(text)._replace(format="xyxy") for text in source.texts("boxes"))
    keypoints = map(Coordinates.parse_keypoints, source.texts("keypoints"))
    declared = replace(
        options, boxes=boxes, keypoints=tuple(place._replace(format=place.numbers) for place in keypoints)
    )
    table = source.table
    for name, _ in (*boxes, *declared.keypoints):
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, plain_column(name, table.column(name)))
    return scaled(table, declared, options.image.sizes[0], source.numbers("height"), source.numbers("width"))


def _recorded(source: DatasetSource, options: BuildOptions) -> dict[str, Any]:
    """Return the options to record, with ``derived``: how inputs and samples differ from a build of one source."""
    olds = [manifest.identity["options"] for manifest in source.manifests]
    values: dict[str, Any] = olds[0] | options.to_json()
    image = values["image"]
    derived = {*source.texts("derived"), *source.derived}
    for old in (old["image"] for old in olds):
        was = {name: old.get(name) for name in {*old, *image} if old.get(name) != image.get(name)}
        derived |= {f"{name} {'default' if value is None else words_of(value)}" for name, value in was.items()}
    return values | ({"derived": sorted(derived)} if derived else {})


def _codecs(source: DatasetSource, options: BuildOptions, resized: int) -> CodecFingerprint:
    """Return the fingerprint of the codecs of the records: the datasets', and this machine's if any are resized."""
    made_by = {str(manifest.identity["codecs"]) for manifest in source.manifests}
    versions = source.manifests[0].versions
    if resized:
        here = codec_fingerprint(options)
        made_by.add(here.digest)
        versions = here.versions
    together = hashlib.sha256(" ".join(sorted(made_by)).encode()).hexdigest()
    return CodecFingerprint(made_by.pop() if len(made_by) == 1 else together, versions)


def _count_resized(source: DatasetSource, image: ImageOptions) -> int:
    if not source.resizes:
        return 0
    sides = np.stack([source.numbers("height"), source.numbers("width")], axis=1)
    shapes, counts = np.unique(sides, axis=0, return_counts=True)
    targets = (target(Size(*shape), image.sizes[0], image.fit, image.upscale) for shape in shapes.tolist())
    return sum(count for count, new in zip(counts.tolist(), targets, strict=True) if not new.is_whole_image)
