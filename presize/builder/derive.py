"""A dataset made from others, without their sources: a build whose samples are all copied, or resized to fit."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
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
from presize.options import BuildOptions, Coordinates, DeriveOptions, ErrorBudget, ImageOptions, RunOptions, Size
from presize.sources.columns import plain_column
from presize.sources.dataset import DatasetSource, join_datasets
from presize.store.rejects import Reject
from presize.store.rejects_file import REJECTS_TOLD, first_rejects
from presize.system.files import expanded


@dataclass(frozen=True)
class Derivation:
    """Plan of derive_dataset: `resized` samples are decoded and encoded again, and `nbytes` of records read."""

    plan: Plan
    resized: int
    nbytes: int


@dataclass(frozen=True)
class DeriveResult:
    """Result of derive_dataset.

    Attributes:
        out: the folder, as it was given.
        samples: images stored.
        copied: those of them whose bytes are as they were.
        resized: those that were decoded and encoded again.
        rejected: records that could not be decoded.
        bytes: of the stored images and their companions.
        shards: how many there are.
        seconds: from the first look at the datasets to the manifest.
        recompressed: whether what was resized has been through lossy compression twice.
        rejects_file: lists what was rejected.
        first_rejects: a few of the images that it lists.
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
    """Return the plan of derive_dataset. Reads manifests and indexes, and no record.

    Raises:
        DatasetError: a dataset is missing or damaged.
        SourceError: the datasets cannot be one.
        OptionError: the size is larger than theirs.
    """
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
    """Make a dataset from others, and publish it in `out` like a build.

    Without a size all bytes are copied. With one, records that do not fit it are decoded, resized and encoded with the
    options of the first dataset, so that JPEGs are compressed a second time. Calling it again finishes what was
    interrupted. The same datasets and options give the same bytes in every file. There is no report.

    Args:
        datasets: at least one LMDB dataset; samples follow one another in the order of these.
        out: where to write.
        options: what is made of them.
        run: how. `update`, `report` and `max_errors` have no meaning here.
        on_plan: called with what will be done.
        on_shard: called with each finished shard; those that an earlier run finished come first.

    Raises:
        DatasetError: a dataset is missing, damaged, down to the CRC-32 of each record that is read, or was updated or
            replaced meanwhile; calling it again takes the new one.
        SourceError: the datasets cannot be one, or `out` lies inside of one of them.
        OptionError: the size is larger than theirs.
        BuildError: `out` holds something else, or cannot be written.
    """
    start = time.perf_counter()
    out = expanded(out)
    derivation = plan_derive(datasets, options)
    plan = derivation.plan
    for root in datasets:
        output = OutputDir.for_build(root, out, plan.options)
    on_plan(derivation)
    run = replace(run, update=False, report=False, max_errors=ErrorBudget())
    try:
        (manifest,) = build_planned(plan, run, output, executor_for(run), on_shard).manifests
    except DatasetError:
        gone = plan.source.replaced() if isinstance(plan.source, DatasetSource) else None
        if gone is None:
            raise
        with output.lock():
            output.discard()  # nothing can be made of what was finished, and it would refuse the next run
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
    """The options of the first dataset, for the new size; of what is optional in an index what all datasets have."""
    sizes = [Size.parse(manifest.size) for manifest in source.manifests]
    for dataset, old in zip(source.datasets, sizes, strict=True):
        if size is None and old != sizes[0]:
            raise SourceError(
                f"{source.root} has images of size {sizes[0]} and {dataset.roots[0]} of size {old}; "
                "--size brings them to one"
            )
        if size is not None and str(old) != "keep" and (size.height > old.height or size.width > old.width):
            raise OptionError(
                f"size: {size} is larger than the {old} of {dataset.roots[0]}; presize build makes larger images, "
                "from their source"
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
    """The samples with boxes and keypoints, which lie in pixels of the stored image, for the new size."""
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
    """The options as recorded, with ``derived``: how inputs and samples differ from a build of one source."""
    olds = [manifest.identity["options"] for manifest in source.manifests]
    values: dict[str, Any] = olds[0] | options.to_json()
    image = values["image"]
    derived = {*source.texts("derived"), *source.derived}
    for old in (old["image"] for old in olds):
        was = {name: old.get(name) for name in {*old, *image} if old.get(name) != image.get(name)}
        derived |= {f"{name} {'default' if value is None else words_of(value)}" for name, value in was.items()}
    return values | ({"derived": sorted(derived)} if derived else {})


def _codecs(source: DatasetSource, options: BuildOptions, resized: int) -> CodecFingerprint:
    """Return the codecs that made the records: the codecs of the datasets, and those that are here where records are
    resized."""
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
