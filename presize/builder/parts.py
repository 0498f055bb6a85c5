"""One part of a build: it plans the build or joins it, and makes its share of the shards. It never publishes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from presize.builder.executors.executor import executor_for
from presize.builder.output_dir import BuildJournal, OutputDir
from presize.builder.parts_listing import SharedListing, read_listing, write_listing
from presize.builder.plan import Plan
from presize.builder.resume import differences_from, open_build
from presize.builder.run import carry_out, check_listed, plan_build, plan_of
from presize.builder.shard_table import ShardDone
from presize.builder.work import check_space, find_work
from presize.errors import BuildError, OptionError
from presize.options import BuildOptions, BuildPart, RunOptions, SourceOptions
from presize.system.files import expanded, working_in


@dataclass(frozen=True)
class PartResult:
    """What a part of a build did.

    Attributes:
        out: the folder, as it was given.
        part: which part.
        published: whether the whole dataset was there already; the counts, `unreadable` apart, are 0 then.
        shards: of this part, in each size.
        stored: images.
        rejected: files that claim to be images and could not be stored.
        skipped: files that are not images.
        bytes: of the stored images, all sizes together.
        seconds: from reading the list of samples to the last shard.
        resumed: files that an earlier run of this part had dealt with.
        unfinished: the numbers of the parts that have shards to make.
        unreadable: files that could not be read; this part tries them again when it runs again, and so does the build
            that publishes all parts.
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
        """Files that this run dealt with, per second."""
        return (self.stored + self.rejected + self.skipped + self.unreadable - self.resumed) / self.seconds


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
    """Build the shards of one part, in `out` on a file system that all parts share. Any number of parts may run at the
    same time, on any machines; the same part runs once at a time, and finishes what an earlier run of it has begun.

    The first part lists the source while the others wait. build_dataset, with the same options, publishes the dataset
    when all parts are finished; its bytes are those of a build that is not divided.

    Args:
        source: the folder of images.
        out: where to write.
        part: which part of how many.
        options: what is stored, and how; the same for all parts.
        run: how the part is carried out. An error budget counts the rejects of this part.
        samples: how the source is read; the same for all parts.
        on_plan: called with the number of files in this part.
        on_shard: called with each finished shard; those of an earlier run come first.

    Raises:
        SourceError: the source cannot be used.
        DatasetError: `out` holds something else.
        OptionError: an update or overwriting was asked for.
        ImageError: an image cannot be stored, and ``run.on_error`` is "fail".
        BuildError: anything else: the part is running already, or others were begun with other options.
    """
    for name in ("update", "overwrite"):
        if getattr(run, name):
            raise OptionError(f"part: a part of a build cannot be combined with --{name}, which is for one command")
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
                plan, listing, journal = joined
                numbers = listing.shards(part.number, len(plan.shards))
                work = find_work(plan, run, output, journal, None, numbers)
                files = sum(len(plan.shards[number]) for number in numbers)
                on_plan(files)
                check_space(plan, output, work)
                dones: list[ShardDone] = []

                def count(done: ShardDone) -> None:
                    dones.append(done)
                    on_shard(done)

                with output.noting_failure(journal):
                    carry_out(work, plan, run, executor_for(run), count)
                left = [number for number in range(len(plan.shards)) if not output.sidecar(number).exists()]
    return PartResult(
        out=Path(out),
        part=part,
        published=False,
        shards=len(numbers),
        stored=sum(done.stored for done in dones),
        rejected=sum(done.rejected for done in dones),
        skipped=sum(done.skipped for done in dones),
        bytes=sum(done.bytes for done in dones),
        seconds=time.perf_counter() - start,
        resumed=files - sum(task.to_make for task in work.waiting),
        unfinished=tuple(sorted({number % part.of + 1 for number in left})),
        unreadable=sum(done.unreadable for done in dones),
    )


def _join(
    source: str | os.PathLike[str],
    output: OutputDir,
    part: BuildPart,
    options: BuildOptions,
    run: RunOptions,
    samples: SourceOptions,
) -> tuple[Plan, SharedListing, BuildJournal] | None:
    """Return the build that is under way in OUT, or a new one; None when all is published."""
    with output.planning():
        listing, journal = read_listing(output.path), output.journal()
        if listing is not None and journal is not None:
            if listing.parts != part.of:
                raise BuildError(f"OUT {output.path} is being built in {listing.parts} parts, not {part.of}")
            listing.check(source, samples, output.path)
            plan = plan_of(listing.source, options)
            if differing := differences_from(journal, plan):
                raise BuildError(
                    f"the parts in OUT {output.path} have been begun otherwise ({'; '.join(differing)}); give all of "
                    "them the same options, or --overwrite without --part to start anew"
                )
            return plan, listing, journal
        plan = plan_build(source, options, samples)
        check_listed(plan, run)
        journal = open_build(plan, output, run)
        if journal is None:
            return None
        if journal.update:
            raise BuildError(f"OUT {output.path} holds an unfinished update; finish it with --update first")
        listing = SharedListing.of(plan.source, source, samples, part.of)
        write_listing(output.path, listing)
        return plan, listing, journal
