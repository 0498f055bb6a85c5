"""presize build."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from presize.cli.group import BuildCommand, command, interruptible, json_option, quiet_option, warn_of_jobs
from presize.cli.option_groups import PATH, TYPED, as_typed, given, parsed, stated
from presize.cli.output import (
    BuildProgress,
    Progress,
    counts_text,
    facts_text,
    print_json,
    print_text,
    reject_lines,
    result_line,
)
from presize.errors import BuildError, SourceError, warn
from presize.formatting import duration, plural, rate_text, size_text
from presize.option_fields import stated_options
from presize.options import (
    KEEP,
    BuildOptions,
    BuildPart,
    Companion,
    ImageOptions,
    RunOptions,
    SourceOptions,
    size_words,
)
from presize.store.rejects import LEFT_OUT, left_out_text
from presize.system.resources import usable_cores

if TYPE_CHECKING:
    from presize.builder.like import DatasetOptions
    from presize.builder.plan import Plan
    from presize.builder.reuse import Changes
    from presize.builder.run import BuildResult, PartResult


COMPANIONS = [
    click.Option(
        [each.flag], multiple=True, metavar=each.statement.metavar,
        help=f"{each.statement.help}  [default: {each.default}]",
    )
    for each in stated_options(Companion)
]  # fmt: skip
STORED = sorted(
    [*stated(BuildOptions), *COMPANIONS], key=lambda option: f"{option.name}".startswith(("companions", "pair_"))
)
LIKE = click.Option(
    ["--like"],
    type=PATH,
    metavar="DATASET",
    help="Build with the options and the class list of DATASET, such as a training set. Other options override them.",
)
PART = click.Option(
    ["--part"],
    metavar="I/N",
    callback=parsed(BuildPart.parse),
    help="Build part I of N on one of several machines; run without --part to publish.",
)
SCRATCH = click.Option(
    ["--scratch"],
    type=PATH,
    metavar="DIR",
    help="Where to build shards if OUT is a URL; needs space for all of them.  [default: ~/.cache]",
)
DRY_RUN = click.Option(["--dry-run"], is_flag=True, help="Print the plan and an estimate; write nothing.")


@command(
    "presize build RAW OUT --size 256",
    "presize build VAL OUT_VAL --like OUT",
    "presize build RAW OUT --size 256 --update",
    cls=BuildCommand,
    params=[
        *stated(ImageOptions), *STORED, *stated(SourceOptions), LIKE, *stated(RunOptions), PART, SCRATCH, DRY_RUN,
    ],
)  # fmt: skip
@click.argument("source", metavar="SRC", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@json_option
@quiet_option
@click.pass_context
def build(
    context: click.Context, /, source: str, out: str, like: str | None, part: BuildPart | None,
    scratch: str | None, dry_run: bool, as_json: bool, quiet: bool, **typed: Any,
) -> None:  # fmt: skip
    """Resize the images of SRC and pack them into OUT.

    SRC is a folder of class folders, a folder of images, or any folder with --labels; or LMDBs, WebDataset tar shards
    or Parquet files that contain the images. SRC and OUT may be URLs, such as s3://BUCKET/PATH. Run the same command
    again to finish an interrupted build; add --update when SRC has changed.
    """
    from presize.builder.executors.fork_server import start_early

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads would spin: 0.1 s of another core
    if not dry_run and typed["engine"] == RunOptions().engine:
        context.call_on_close(start_early())
    gc.disable()  # imports make 100,000 objects and free few: collections would take 30 ms
    try:
        from presize.builder.like import options_of, options_to_update
        from presize.builder.output_dir import OutputDir
        from presize.builder.reuse import plan_update
        from presize.builder.run import build_dataset, build_part, plan_build
        from presize.builder.to_url import build_to_url, scratch_out
        from presize.system.files import is_url
    finally:
        gc.enable()

    gc.freeze()  # keeps the collector away from imported modules, which saves 50 ms per run
    context.call_on_close(gc.freeze)  # or the interpreter would collect everything before it exits: another 50 ms
    to_url = is_url(out)
    if dry_run and to_url and typed["update"]:
        raise click.UsageError(
            f"--dry-run: cannot plan an update of a URL; first copy {out} to a folder with presize fetch."
        )
    if dry_run and part is not None:
        raise click.UsageError("--part: --dry-run plans the whole build; leave out --part or --dry-run.")
    if part is not None and to_url:
        raise click.UsageError(
            f"--part: expected a folder shared by all machines, got {out}; build in one, then upload it with presize "
            "upload."
        )
    if scratch is not None and not to_url:
        raise click.UsageError(f"--scratch: expected an OUT that is a URL, got the folder {out}; leave --scratch out.")
    other = None if like is None else options_of(like)
    if other is not None:
        # Until companions are known, folders of masks look like class folders; _compare checks the classes later.
        has_list = other.classes is not None and not any(pair.pattern for pair in other.options.companions)
        _take_recorded(context, typed, as_typed(other.options) | ({"classes": like} if has_list else {}))
    if typed["update"] and (recorded := options_to_update(out)) is not None:
        _take_recorded(context, typed, as_typed(recorded))
    options, samples, run = _options(context, typed)
    if dry_run:
        folder = scratch_out(out, scratch) if to_url else Path(out)
        place = OutputDir.for_build(source, folder, options, update=run.update)
        plan = plan_build(source, options, samples)
        _compare(other, plan, samples)
        to_build, changes = plan_update(plan, place, run) if run.update else (plan, None)
        print_plan(plan, to_build, changes, out, folder, run, as_json)
        return
    with (
        BuildProgress(sys.stderr, quiet) as progress,
        Progress(sys.stderr, "upload", in_bytes=True, quiet=quiet) as uploading,
        interruptible("run again to resume"),
    ):

        def on_plan(plan: Plan) -> None:
            _compare(other, plan, samples)
            progress.begin(len(plan.source.table))

        if part is not None:
            built = build_part(
                source, out, part, options, run, samples, on_plan=progress.begin, on_shard=progress.on_shard
            )
        else:
            begin: Any = build_dataset
            if to_url:
                begin = partial(build_to_url, scratch=scratch, on_rest=uploading.begin, on_bytes=uploading.add)
            result = begin(source, out, options, run, samples, on_plan=on_plan, on_shard=progress.on_shard)
    if part is not None:
        if as_json:
            print_json(
                built, "published shards stored rejected unreadable skipped unfinished seconds out",
                part=built.part.number, parts=built.part.of,
            )  # fmt: skip
        elif not quiet:
            print_text(part_summary(built))
    elif as_json:
        print_json(
            result,
            "samples stored rejected unreadable skipped seconds images_per_s out unchanged losses reports classes "
            "source_bytes smaller",
            **_pair_losses(result), **(result.changes.counts() if run.update else {}),
        )  # fmt: skip
    elif not quiet:
        print_text(build_summary(result, run.update, KEEP in options.image.sizes, samples.labels))


def _pair_losses(result: BuildResult) -> dict[str, Any]:
    counts = {name: {"several": lost.several, "surplus": lost.surplus} for name, lost in result.pair_losses.items()}
    return {"pair_losses": counts} if counts else {}


def _take_recorded(context: click.Context, typed: dict[str, Any], values: dict[str, Any]) -> None:
    """Set options that were not typed to `values`, the recorded options of a dataset."""
    for option in context.command.params:
        name = option.name or ""
        if name in values and context.get_parameter_source(name) is ParameterSource.DEFAULT:
            typed[name] = option.process_value(context, values[name])
            context.set_parameter_source(name, ParameterSource.DEFAULT_MAP)


def _options(context: click.Context, typed: dict[str, Any]) -> tuple[BuildOptions, SourceOptions, RunOptions]:
    """Return the options of a build. Warn of a doubtful --size or --jobs. Raise UsageError for useless options."""
    from presize.sources.companions import companions_of
    from presize.sources.labels import read_classes

    def is_from(name: str, source: ParameterSource) -> bool:
        return context.get_parameter_source(name) is source

    pairs = typed["companions"]
    how = {name: typed[name] for name in ("pair_format", "pair_filter")}
    if not is_from("companions", ParameterSource.DEFAULT_MAP):  # keep recorded options of the typed pairs only
        named = tuple(f"{pair.partition('=')[0]}=" for pair in pairs)
        for name in [name for name in how if is_from(name, ParameterSource.DEFAULT_MAP)]:
            how[name] = tuple(text for text in how[name] if text.startswith(named))
    image = given(ImageOptions, typed)
    companions = companions_of(pairs, how["pair_format"], how["pair_filter"])
    options = given(BuildOptions, typed, image=image, companions=companions)
    classes = typed["classes"]
    if typed["labels"] == "none" and is_from("classes", ParameterSource.DEFAULT_MAP):
        classes = None
    classes = None if classes is None else read_classes(classes)
    if is_from("sizes", ParameterSource.COMMANDLINE):
        _say_shapes(context.meta[TYPED]["sizes"], image)
    formats = {image.format, *(companion.format for companion in options.companions)}
    for name, users in (("quality", ("jpeg", "webp")), ("subsampling", ("jpeg",)), ("tiles", ("jpeg",))):
        is_used = name != "tiles" or image.tiles != "none"
        if is_used and is_from(name, ParameterSource.COMMANDLINE) and formats.isdisjoint(users):
            raise click.UsageError(
                f"--{name}: applies only to {' and '.join(users)}, but --format is {image.format}; leave it out."
            )
    for name in ("fit", "filter", "upscale", "resize_backend"):
        if set(image.sizes) == {KEEP} and is_from(name, ParameterSource.COMMANDLINE):
            raise click.UsageError(f"--{name.replace('_', '-')}: has no effect with --size keep; leave it out.")
    run = given(RunOptions, typed)
    warn_of_jobs(run.jobs)
    return options, given(SourceOptions, typed, classes=classes), run


def _say_shapes(typed: tuple[str, ...], image: ImageOptions) -> None:
    """Warn if --size is WxH but images keep their shapes."""
    if image.fit not in ("shorter", "longer"):
        return
    for text, size in zip(typed, image.sizes, strict=True):
        if "x" in text.lower():
            what = "cover" if image.fit == "shorter" else "fit inside"
            same = f", as with --size {size.height}" if size.height == size.width else ""
            warn(
                f"--size {text}: with --fit {image.fit}, images keep their shapes and {what} {text}{same}; "
                "--fit crop, stretch or pad makes them exactly that size"
            )


def _compare(like: DatasetOptions | None, plan: Plan, samples: SourceOptions) -> None:
    """Warn of what --like does not copy from its dataset. Raise SourceError if the classes of SRC differ."""
    if like is None:
        return
    if samples.classes is None and like.classes is not None and plan.source.classes not in (None, like.classes):
        raise SourceError("--like: SRC and that dataset have different classes; choose a list with --classes")
    if like.derived:
        warn(
            f"--like: that dataset was derived from others ({', '.join(like.derived)}); this build makes its "
            "images from SRC instead"
        )
    missing = [name for name in like.columns if name not in plan.source.table.column_names]
    if missing:
        warn(
            f"--like: this build lacks the columns {', '.join(missing)} of that dataset; columns are not copied from "
            "it, but read from --labels, --split or SRC"
        )


def build_summary(result: BuildResult, update: bool, keep: bool, labels: object) -> str:
    """Return the summary of a build, or of an update. `keep`: images keep their sizes. `labels`: value of --labels."""
    from presize.codecs.source_facts import loss_sentences  # imports NumPy

    now = result.files - result.resumed
    idle = "nothing had to be decoded" if update or result.unreadable else "nothing to do"
    built_now = f"{now:,} of them now, " if result.resumed and not update else ""
    rate = f"{built_now}{rate_text(result.images_per_s)} images/s" if now else idle
    lines = [f"{result_line(result.out, result.stored, result)} ({rate})"]
    lines += reject_lines(result.rejected, result.rejects_file, result.first_rejects)
    if result.unreadable:
        lines.append(f"  {plural(result.unreadable, 'file')} unreadable, listed in {result.rejects_file}")
    left_out = left_out_text({name: getattr(result, name) for name in LEFT_OUT})
    if left_out:
        lines.append(f"  not stored: {left_out}")
    if result.classes is not None:
        lines.append(f"  {plural(result.classes, 'class', 'classes')}")
    elif not result.labelled:
        lines.append(f"  no labels{_NO_LABELS.get(labels, ': the table of --labels has none')}")
    if result.smaller:
        lines.append(f"  {plural(result.smaller, 'image')} smaller than --size, not enlarged; --upscale enlarges them")
    if result.largest_bytes >= result.source_bytes > 0 and not keep:
        lines.append(
            f"  no space saved: files of {size_text(result.source_bytes)} became {size_text(result.largest_bytes)}"
        )
    if keep:
        lines.append(f"  {result.unchanged:,} stored unchanged, {result.stored - result.unchanged:,} encoded")
    lines += (f"  {loss}" for loss in loss_sentences(result.losses, result.pair_losses))
    if update:
        lines.append(f"  {counts_text(result.changes.counts())}")
    if (damaged := result.changes.damaged) is not None:
        found = f"{plural(damaged, 'damaged image')} rebuilt" if damaged else "all kept records are intact"
        lines.append(f"  verified: {found}")
    if result.reports:
        lines.append(f"  report: {' and '.join(map(str, result.reports))}")
    return "\n".join(lines)


_NO_LABELS: dict[object, str] = {
    "none": ", because of --labels none",
    None: ": a folder of images needs a table of labels, --labels; an LMDB needs --label-keys",
}


def part_summary(result: PartResult) -> str:
    """Return the summary of one part of a build, with the parts that are unfinished."""
    from presize.builder.parts import parts_text

    if result.published:
        again = f"run again without --part to retry {plural(result.unreadable, 'unreadable file')}"
        return f"{result.out}: already published; {again if result.unreadable else 'nothing to do'}"
    rate = f" ({rate_text(result.images_per_s)} images/s)" if result.images_per_s else ""
    name = f"{result.out}: part {result.part.number} of {result.part.of}, {plural(result.shards, 'shard')}"
    lines = [f"{result_line(name, result.stored, result)}{rate}"]
    if result.rejected:
        lines.append(f"  {plural(result.rejected, 'image')} rejected")
    if result.unreadable:
        lines.append(f"  {plural(result.unreadable, 'file')} unreadable; run again to retry")
    unfinished = f"unfinished parts: {parts_text(result.unfinished)}"
    ready = "all parts are finished; run again without --part to publish the dataset"
    return "\n".join([*lines, f"  {unfinished if result.unfinished else ready}"])


def print_plan(
    plan: Plan, to_build: Plan, changes: Changes | None, out: str, folder: Path, run: RunOptions, as_json: bool
) -> None:
    """Print the plan and the estimate of a build, or of an update that builds `to_build` and makes `changes`. `folder`:
    where shards are built, `out` unless that is a URL."""
    from presize.builder.estimate import estimate
    from presize.store.info import split_counts
    from presize.system.child import ChildDiedError

    source, image = plan.source, plan.options.image
    cores = usable_cores()
    jobs = run.jobs or cores
    try:
        found = estimate(to_build, jobs, run.report)
    except ChildDiedError as error:
        raise BuildError(
            f"--dry-run: a decoder crashed ({error}) on one of the files that were tried; a build names and rejects "
            "that file, and continues"
        ) from None
    existing = next(path for path in [folder.absolute(), *folder.absolute().parents] if os.path.exists(path))
    free_bytes = shutil.disk_usage(existing).free
    splits = split_counts(source.table, source.root)
    if as_json:
        print_json(
            found, "bytes cpu_seconds seconds tried skipped",
            samples=len(source.table), classes=source.classes, shards=len(to_build.shards), jobs=jobs,
            rejected=len(found.rejects), rejects=[reject.known() for reject in found.rejects], free_bytes=free_bytes,
            out=out, splits=splits, **(changes.counts() if changes else {}),
        )  # fmt: skip
        return
    classes = plural(len(source.classes), "class", "classes") if source.classes is not None else "no classes"
    sizes = " and ".join(map(size_words, image.sizes))
    fit = "" if image.sizes == (KEEP,) else f" {image.fit}"
    shards = [len(shard) for shard in to_build.shards]
    samples = plural(max(shards, default=0), "sample")
    time = f"{duration(found.seconds)} with --jobs {jobs} on {plural(cores, 'core')}"
    rejects = [f"{reject.path}: {reject.reason}" for reject in found.rejects[:_REJECTS_SHOWN]]
    more = len(found.rejects) - len(rejects)
    facts = [
        ("source", f"{source.name}: {plural(len(source.table), 'file')}, {classes}"),
        ("splits", counts_text(splits)),
        ("target", f"{out}: {sizes}{fit}, {image.format} to {plan.options.layout}"),
        *(("pair", f"{each.name}: {each.format}, {each.filter}") for each in plan.options.companions),
        ("update", counts_text(changes.counts()) if changes else ""),
        ("shards", f"{len(shards):,}{' to write,' if changes else ''} of about {samples}"),
        ("estimate", f"{size_text(found.bytes)} and {time}"),
        ("tried", f"{plural(found.tried, 'file')}: {len(found.rejects):,} rejected, {found.skipped:,} not images"),
        *(("", reject) for reject in rejects),
        ("", f"and {more:,} more" if more else ""),
        ("free", f"{size_text(free_bytes)}{', not enough' if free_bytes < found.bytes else ''}"),
    ]
    print_text(facts_text(facts))


_REJECTS_SHOWN = 5
