"""Runs a build from beginning to end: scan -> plan -> start or resume -> run the unfinished tasks -> publish.

Serial and parallel builds run the same tasks. The manifest is published last, so OUT holds the old dataset, or none,
until the new one is complete. An update has fewer tasks: it publishes old shards together with new ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from presize.builder.annotations import check_annotations
from presize.builder.executors.executor import Executor, executor_for
from presize.builder.fingerprint import codec_fingerprint, suffixes_of
from presize.builder.output_dir import BuildJournal, OutputDir
from presize.builder.parts import SharedListing, how_listed, read_listing, write_listing
from presize.builder.plan import Plan, make_plan
from presize.builder.publish import publish
from presize.builder.resume import differences_from, is_all_of, open_build, trying_again
from presize.builder.reuse import Changes, find_reuse
from presize.builder.shard_table import ShardDone
from presize.builder.work import BuildWork, Records, check_rejects, find_work
from presize.codecs.source_facts import Losses, companion_losses, loss_sentences, losses, unpack_facts
from presize.errors import BuildError, ImageError, OptionError, warn
from presize.formatting import duration, plural, printable, size_text
from presize.options import KEEP, BuildOptions, BuildPart, ImageOptions, RunOptions, SourceOptions, check_kinds
from presize.sources.contents import Source
from presize.sources.dataset import DatasetSource
from presize.sources.scan import scan
from presize.store.data_files import REPORT, DataFile
from presize.store.index import read_index
from presize.store.manifest import Manifest
from presize.store.rejects import Reject
from presize.store.rejects_file import REJECTS_TOLD, Rejects, first_rejects, to_jsonl
from presize.system.files import expanded, working_in


@dataclass(frozen=True)
class BuildResult:
    """Result of a build.

    Attributes:
        out: the output folder or URL, as given.
        files: files in the source.
        stored: stored images.
        rejected: files that are images by content or name but could not be stored.
        skipped: files that are not images, by content and by name.
        hidden: files and folders whose names begin with a dot, and folders called __MACOSX.
        outside: files outside the class folders.
        bytes: size of the stored images and their companions, all sizes together.
        shards: number of shards of each size.
        seconds: time from scan to manifest.
        resumed: files finished by an earlier run, or taken from the dataset that this run updates.
        changes: numbers of images kept, copied, built and removed; a build from scratch builds all files.
        reports: report.html of each size that has one.
        unchanged: images that needed no resizing, and whose compressed pixels are stored unchanged.
        losses: numbers of images that lost information, by kind.
        pair_losses: the same for companions, by name.
        rejects_file: the rejects file of the first size.
        first_rejects: the first few rejects in that file.
        unreadable: files that could not be read; the same build tries them again.
        classes: number of classes; None without classes.
        labelled: True if samples have a label or another column.
        source_bytes: size of the source files of the stored images.
        smaller: images stored smaller than the largest size, because they were not enlarged.
        largest_bytes: bytes of the stored images in the size that takes the most.
    """

    out: Path | str
    files: int
    stored: int
    rejected: int
    skipped: int
    hidden: int
    outside: int
    bytes: int
    shards: int
    seconds: float
    resumed: int
    changes: Changes
    reports: tuple[Path | str, ...] = ()
    unchanged: int = 0
    losses: Losses = field(default_factory=Losses)
    pair_losses: Mapping[str, Losses] = field(default_factory=dict)
    rejects_file: Path | str = ""
    first_rejects: tuple[Reject, ...] = ()
    unreadable: int = 0
    classes: int | None = None
    labelled: bool = True
    source_bytes: int = 0
    smaller: int = 0
    largest_bytes: int = 0

    @property
    def samples(self) -> int:
        return self.stored + self.rejected + self.unreadable

    @property
    def images_per_s(self) -> float:
        """Return the files that this run processed per second."""
        return (self.files - self.resumed) / self.seconds

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a summary and some of the stored images."""
        from presize.pages.gallery import build_html

        facts = [f"{plural(self.stored, 'image')}, {size_text(self.bytes)}, in {duration(self.seconds)}"]
        if self.rejected:
            facts.append(f"{plural(self.rejected, 'image')} rejected; the reasons are in the rejects file")
        if self.unreadable:
            facts.append(f"{plural(self.unreadable, 'file')} could not be read; run again to retry")
        return build_html(self.out, [*facts, *loss_sentences(self.losses, self.pair_losses)])


def plan_build(
    source: str | os.PathLike[str],
    options: BuildOptions = BuildOptions(),
    samples: SourceOptions = SourceOptions(),
) -> Plan:
    """Return the plan of a build of `source`. Reads file names and sizes, but opens no images."""
    check_kinds(options=options, samples=samples)
    found = scan(source, samples, options.follow_links, options.column_types, options.companions)
    check_annotations(found.table, options)
    return plan_of(found, options)


def plan_of(source: Source, options: BuildOptions) -> Plan:
    """Return the plan of a build of a source that is already listed."""
    codecs = codec_fingerprint(options, suffixes_of(source.table.column("path")))
    return make_plan(source, options, codecs, os.sysconf("SC_PAGE_SIZE"))


def build_dataset(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: BuildOptions = BuildOptions(),
    run: RunOptions = RunOptions(),
    samples: SourceOptions = SourceOptions(),
    *,
    on_plan: Callable[[Plan], None] = lambda _: None,
    on_shard: Callable[[ShardDone], None] = lambda _: None,
) -> BuildResult:
    """Resize the images of `source` and publish them as a dataset in `out` (``out/SIZE`` for several sizes).

    Call it again to finish an interrupted build, or to retry files that could not be read; it does nothing if the
    dataset is complete. If anything stops a build, even KeyboardInterrupt, finished shards are kept and nothing is
    published. Once all parts of build_part are finished, it publishes their shards.

    With ``run.update``, images whose file has the same path, size and modification time (with ``options.checksum``: the
    same content) are not decoded again, and unchanged shards stay. Unchanged files that were rejected for their content
    are tried again only with ``options.checksum``. The options must be those of the dataset, and the codecs must
    encode the reference images of presize to the same bytes.

    Args:
        source: the folder of images; or LMDBs, tar shards or Parquet files that contain them; or a URL.
        out: the output folder.
        options: what to store, and how.
        run: how to run the build.
        samples: how to read the source.
        on_plan: called with the plan.
        on_shard: called with each finished shard, first with those that an earlier run finished or an update keeps.

    Raises:
        SourceError: the source cannot be used.
        DatasetError: the dataset in `out` cannot be read, or is too damaged to be updated.
        OptionError: ``run.update`` is set for a folder dataset.
        ImageError: an image cannot be stored, and ``run.on_error`` is "fail".
        BuildError: anything else stops the build, such as another build in `out`, or unfinished parts.
    """
    start = time.perf_counter()
    check_kinds(options=options, run=run, samples=samples)
    source, out = expanded(source), expanded(out)
    with working_in(Path(out)):
        output = OutputDir.for_build(source, out, options, update=run.update)
        listing = None if run.overwrite or run.update else read_listing(output.path)
        if listing is not None and output.journal() is None:  # left over from publishing
            listing = None
    if listing is None:
        plan = plan_build(source, options, samples)
    else:
        listing.check(source, samples, output.path)
        plan = plan_of(listing.source, options)
    on_plan(plan)
    built = build_planned(plan, run, output, executor_for(run), on_shard, listing)
    return result_of(built, plan, Path(out), output.roots[0], time.perf_counter() - start)


def build_planned(
    plan: Plan,
    run: RunOptions,
    output: OutputDir,
    executor: Executor,
    on_shard: Callable[[ShardDone], None] = lambda _: None,
    listing: SharedListing | None = None,
) -> Built:
    """Run `plan` in `output`, as build_dataset does. `listing` is the shared listing of a build in parts."""
    check_listed(plan, run)
    with working_in(output.path):
        published = output.manifests()
        may_lose, run = run.overwrite, trying_again(plan, run, published, output.roots[0])
        if not (run.overwrite or run.update or output.has_leftovers()) and is_all_of(plan, published):
            output.check_files("--overwrite" if isinstance(plan.source, DatasetSource) else "--update")
            return nothing_to_do(plan, run, published)
        with output.lock():
            journal = open_build(plan, output, run)
            if journal is None:  # another process has built it meanwhile
                return nothing_to_do(plan, run, output.manifests())
            records, update = find_reuse(plan, output, run) if journal.update else (None, None)
            if update is not None:
                plan, published = replace(plan, shards=update.shards), output.manifests()
                is_same = all(manifest and manifest.digest == plan.digest for manifest in published)
                if not plan.shards and is_same and _leaves_out_the_same(plan, records, published):
                    output.clear()
                    return nothing_to_do(plan, run, published)._replace(changes=update.changes)
            work = find_work(plan, run, output, journal, records)
            if listing is not None:
                waiting = [task.number for task in work.waiting if task.number not in work.again]
                listing.check_finished(waiting, output.path)
            work.check_space()
            files = len(plan.source.table)
            resumed = files - work.to_make
            work.carry_out(executor, on_shard)
            if plan.file_names is not None and not may_lose:
                _check_loss(work)
            return Built(publish(work), resumed, update.changes if update else Changes.all_built(files))


def _leaves_out_the_same(plan: Plan, records: Records | None, published: Sequence[Manifest | None]) -> bool:
    """Return whether an update that keeps all shards leaves out the same files as the published datasets: the digest
    does not cover files that the listing rejects or only counts."""
    counts = {"hidden": plan.source.hidden, "outside": plan.source.outside}
    if any(manifest and {name: manifest.left_out.get(name, 0) for name in counts} != counts for manifest in published):
        return False
    if records is None:
        return True
    now = Rejects.joined([plan.source.rejects, records.still_rejected.forgetting()])
    return b"".join(to_jsonl(now)) == b"".join(to_jsonl(records.datasets[0].rejects))


def check_listed(plan: Plan, run: RunOptions) -> None:
    """Raise ImageError if listing rejected an image and ``run.on_error`` is "fail"."""
    if run.on_error == "fail" and (rejects := plan.source.rejects.of_images):
        first = rejects[0]
        raise ImageError(f"{first.path}: {first.reason}")


def result_of(built: Built, plan: Plan, out: Path | str, root: Path, seconds: float) -> BuildResult:
    """Return the result of a build into `out`, as given; `root` has the index of its first size."""
    first = built.manifests[0]
    if unreadable := first.left_out.get("unreadable"):
        one = "".join(f", the first: {e.path}: {e.reason}" for e in first_rejects(root / first.rejects.file, 1, True))
        warn(f"{plural(unreadable, 'file')} could not be read{printable(one)}; run again to retry")
    index = read_index(root, first, check=False)
    facts = index.column("source_facts").to_numpy()
    several = len(plan.options.image.sizes) > 1
    return BuildResult(
        out=out,
        files=len(plan.source.table),
        stored=first.samples,
        bytes=sum(manifest.stored_bytes for manifest in built.manifests),
        shards=len(first.shards),
        seconds=seconds,
        resumed=built.resumed,
        changes=built.changes,
        reports=tuple(_reports(out, built.manifests, several)),
        unchanged=int(unpack_facts(facts, "kept").sum()),
        losses=losses(facts, first.identity["options"]["image"]),
        pair_losses={
            c.name: companion_losses(index.column(f"{c.name}_source_facts").to_numpy()) for c in first.companions
        },
        rejects_file=_place(out, first, first.rejects, several),
        first_rejects=first_rejects(root / first.rejects.file, REJECTS_TOLD),
        classes=None if first.classes is None else len(first.classes),
        labelled=bool(plan.source.fields),
        source_bytes=int(index.column("source_nbytes").to_numpy().sum()),
        smaller=_count_smaller(index, plan.options.image),
        largest_bytes=max(manifest.bytes for manifest in built.manifests),
        **first.left_out,
    )


def _count_smaller(index: pa.RecordBatch, image: ImageOptions) -> int:
    """Count the images of an index that are smaller than the largest size of `image` and were not enlarged."""
    wanted = max(image.sizes)
    if image.upscale or KEEP in image.sizes:
        return 0
    sides = np.array([index.column(f"source_{side}").to_numpy() for side in ("height", "width")])
    is_short = sides < np.array([wanted]).T
    return int((is_short.all(axis=0) if image.fit in ("longer", "pad") else is_short.any(axis=0)).sum())


def _reports(out: Path | str, manifests: Sequence[Manifest], several: bool) -> Iterator[Path | str]:
    """Yield the report pages: report.html, or, in a store or a dataset fetched from one, the name of the generation."""
    for manifest in manifests:
        if manifest.report:
            page = _place(out, manifest, manifest.report, several)
            if isinstance(page, Path):
                yield from [each for each in (page.with_name(REPORT), page) if each.is_file()][:1]
            else:
                yield page


def _place(out: Path | str, manifest: Manifest, file: DataFile, several: bool) -> Path | str:
    """Return the path or URL of a dataset's file below `out`, as given."""
    name = f"{manifest.size}/{file.file}" if several else file.file
    return out / name if isinstance(out, Path) else f"{out.rstrip('/')}/{name}"


class Built(NamedTuple):
    """Manifest of each size, number of files finished before this run, and numbers of changed images."""

    manifests: list[Manifest]
    resumed: int
    changes: Changes


def nothing_to_do(plan: Plan, run: RunOptions, manifests: Sequence[Manifest | None]) -> Built:
    """Return the result if the dataset of each size is already published."""
    published = [manifest for manifest in manifests if manifest]
    rejected = published[0].left_out["rejected"] + published[0].left_out.get("unreadable", 0)
    check_rejects(rejected, plan, run, lambda: "; rejects.jsonl lists which")
    return Built(published, len(plan.source.table), Changes(published[0].samples, 0, 0, 0))


def _check_loss(work: BuildWork) -> None:
    """Raise BuildError if the published folder of the same plan has more images, because fewer could be read now."""
    published = work.output.manifests()
    if published[0] is None or not is_all_of(work.plan, published):
        return
    dones = [table.done for table in work.tables()]
    if sum(done.stored for done in dones) < published[0].samples:
        unreadable = plural(sum(done.unreadable for done in dones), "file")
        raise BuildError(
            f"{unreadable} could not be read, and OUT {work.output.path} would have fewer images than now; "
            "it is unchanged; run again to resume, or with --overwrite to replace it"
        )


@dataclass(frozen=True)
class PartResult:
    """Result of a part of a build.

    Attributes:
        out: the output folder, as given.
        part: the part.
        published: True if the whole dataset is already published. All counts except `unreadable` are 0 then.
        shards: number of shards of this part, in each size.
        stored: stored images.
        rejected: files that are images by content or name but could not be stored.
        skipped: files that are not images.
        bytes: size of the stored images and their companions, all sizes together.
        seconds: time to build the shards, without listing the source.
        resumed: files finished by an earlier run of this part.
        unfinished: numbers of the parts that still have shards to build.
        unreadable: files that could not be read; this part and the build that publishes try them again.
    """

    out: Path
    part: BuildPart
    published: bool
    shards: int = 0
    stored: int = 0
    rejected: int = 0
    skipped: int = 0
    bytes: int = 0
    seconds: float = 0.0
    resumed: int = 0
    unfinished: tuple[int, ...] = ()
    unreadable: int = 0

    @property
    def images_per_s(self) -> float:
        """Return the files that this run processed per second; 0 if it found the part published."""
        files = self.stored + self.rejected + self.skipped + self.unreadable - self.resumed
        return files / self.seconds if self.seconds else 0.0


def build_part(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    part: BuildPart,
    options: BuildOptions = BuildOptions(),
    run: RunOptions = RunOptions(),
    samples: SourceOptions = SourceOptions(),
    *,
    on_plan: Callable[[int], None] = lambda _: None,
    on_shard: Callable[[ShardDone], None] = lambda _: None,
) -> PartResult:
    """Build the shards of one part in `out`, on a file system that all parts share. Parts may run at the same time, on
    any machines, but each part only once at a time. Run a part again to resume it.

    The part that starts first lists the source. When all parts are finished, build_dataset with the same options
    publishes the dataset; its bytes are the same as without parts.

    Args:
        source, out, options, run, samples: as in build_dataset. `options` and `samples` have to be the same for all
            parts; an error budget counts the rejected and unreadable images of this part.
        part: the number of the part, and the number of parts.
        on_plan: called with the number of files in this part.
        on_shard: called with each finished shard, first with those of an earlier run.

    Raises:
        OptionError: ``run.update`` or ``run.overwrite`` is set.
        BuildError: the part is already running, or other parts were started with different options. Others as in
            build_dataset.
    """
    check_kinds(options=options, run=run, samples=samples, part=part)
    for name in ("update", "overwrite"):
        if getattr(run, name):
            raise OptionError(f"part: a build in parts cannot be combined with --{name}; leave one of them out")
    source, out = expanded(source), expanded(out)
    with working_in(Path(out)):
        output = OutputDir.for_build(source, out, options)
        with output.lock(shared=True):
            joined = _join(source, output, part, options, run, samples)
            if joined is None:
                manifests = [manifest for manifest in output.manifests() if manifest is not None]
                unreadable = max(manifest.left_out.get("unreadable", 0) for manifest in manifests)
                return PartResult(Path(out), part, published=True, unreadable=unreadable)
            with output.part_lock(part):
                start = time.perf_counter()
                plan, journal = joined
                numbers = range(part.number - 1, len(plan.shards), part.of)
                work = find_work(plan, replace(run, report=False), output, journal, None, numbers)
                files = sum(len(plan.shards[number]) for number in numbers)
                on_plan(files)
                work.check_space()
                resumed = files - work.to_make
                counts = dict.fromkeys(("stored", "rejected", "skipped", "bytes", "unreadable"), 0)

                def count(done: ShardDone) -> None:
                    for name in counts:
                        counts[name] += getattr(done, name)
                    on_shard(done)

                work.carry_out(executor_for(run), count)
                left = [number for number in range(len(plan.shards)) if not output.sidecar(number).exists()]
    return PartResult(
        out=Path(out),
        part=part,
        published=False,
        shards=len(numbers),
        seconds=time.perf_counter() - start,
        resumed=resumed,
        unfinished=tuple(sorted({number % part.of + 1 for number in left})),
        **counts,
    )


def _join(
    source: str | os.PathLike[str],
    output: OutputDir,
    part: BuildPart,
    options: BuildOptions,
    run: RunOptions,
    samples: SourceOptions,
) -> tuple[Plan, BuildJournal] | None:
    """Return the plan and journal of the build in progress in OUT, or of a new one; None if all is published."""
    with output.planning():
        listing, journal = read_listing(output.path), output.journal()
        if listing is not None and journal is not None:
            if listing.parts != part.of:
                raise BuildError(f"OUT {output.path} is being built in {listing.parts} parts, not {part.of}")
            listing.check(source, samples, output.path)
            plan = plan_of(listing.source, options)
            if differing := differences_from(journal, plan):
                raise BuildError(
                    f"the parts in OUT {output.path} were started with different options ({'; '.join(differing)}); "
                    "give all of them the same options, or --overwrite without --part to start over"
                )
            return plan, journal
        plan = plan_build(source, options, samples)
        check_listed(plan, run)
        journal = open_build(plan, output, run)
        if journal is None:
            return None
        if journal.update:
            raise BuildError(f"OUT {output.path} holds an unfinished update; finish it with --update first")
        write_listing(output.path, SharedListing(plan.source, how_listed(source, samples), part.of))
        return plan, journal
