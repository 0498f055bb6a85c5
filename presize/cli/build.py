"""presize build."""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from presize.cli.build_texts import build_summary, print_part, print_plan
from presize.cli.group import (
    PATH,
    BuildCommand,
    Interrupted,
    InterruptedByTerm,
    Terminated,
    cli,
    examples,
    quiet_option,
    warn_of_jobs,
)
from presize.cli.option_groups import IMAGE, LIKE, MANNER, PAIRS, RUN, SAMPLES, STORED, as_typed, values_of
from presize.cli.output import BuildProgress, Progress, print_json, print_text
from presize.errors import PresizeWarning, SourceError
from presize.options import KEEP, BuildOptions, BuildPart, ErrorBudget, ImageOptions, RunOptions, Size, SourceOptions

if TYPE_CHECKING:
    from presize.builder.like import Likeness
    from presize.builder.plan import Plan
    from presize.builder.run import BuildResult

EXAMPLES = examples(
    "presize build RAW OUT --size 256",
    "presize build VAL OUT_VAL --like OUT",
    "presize build RAW OUT --size 256 --update",
)


@cli.command(cls=BuildCommand, params=[*IMAGE, *STORED, *PAIRS, *SAMPLES, LIKE, *RUN, *MANNER], epilog=EXAMPLES)
@click.argument("source", metavar="SRC", type=PATH)
@click.argument("out", metavar="OUT", type=PATH)
@quiet_option
@click.pass_context
def build(
    context: click.Context, /, source: str, out: str, like: Likeness | None, part: BuildPart | None,
    scratch: str | None, dry_run: bool, as_json: bool, quiet: bool, **given: Any,
) -> None:  # fmt: skip
    """Resize the images of SRC and pack them into OUT.

    SRC is a folder of class folders, a folder of images, or any folder with --labels; or LMDBs, WebDataset's tar
    shards or Parquet files, with the images in them. SRC and OUT may be URLs, such as s3://BUCKET/PATH. Run it again to
    finish a build that was interrupted, and with --update when SRC has changed.
    """
    from presize.builder.output_dir import OutputDir
    from presize.builder.parts import build_part
    from presize.builder.reuse import plan_update
    from presize.builder.run import build_dataset, plan_build
    from presize.builder.to_url import build_to_url, scratch_out
    from presize.system.files import is_url

    to_url = is_url(out)
    if dry_run and to_url and given["update"]:
        raise click.UsageError(f"--dry-run: an update is planned in a folder; presize fetch {out} to one first.")
    if dry_run and part is not None:
        raise click.UsageError("--part: a dry run is of the whole build; leave one of --part and --dry-run out.")
    if part is not None and to_url:
        raise click.UsageError(f"--part: all parts write to one folder; build there, then presize upload it to {out}.")
    if scratch is not None and not to_url:
        raise click.UsageError(f"--scratch: is for an OUT that is a URL, and {out} is a folder; leave it out.")
    if given["update"]:
        _take_recorded(context, given, out)
    options, samples, run = _options(context, given)
    if dry_run:
        place = OutputDir.for_build(source, scratch_out(out, scratch) if to_url else out, options, update=run.update)
        plan = plan_build(source, options, samples)
        _compare(like, plan, samples)
        to_build, changes = plan_update(plan, place, run) if run.update else (plan, None)
        print_plan(plan, to_build, changes, out, run, as_json)
        return
    with (
        BuildProgress(sys.stderr, quiet) as progress,
        Progress(sys.stderr, "upload", in_bytes=True, quiet=quiet) as uploading,
    ):

        def on_plan(plan: Plan) -> None:
            _compare(like, plan, samples)
            progress.begin(len(plan.source.table))

        try:
            if part is not None:
                built = build_part(
                    source, out, part, options, run, samples, on_plan=progress.begin, on_shard=progress.on_shard
                )
                if as_json or not quiet:
                    print_part(built, as_json)
                return
            begin: Any = build_dataset
            if to_url:
                begin = partial(build_to_url, scratch=scratch, on_rest=uploading.begin, on_bytes=uploading.add)
            result = begin(source, out, options, run, samples, on_plan=on_plan, on_shard=progress.on_shard)
        except KeyboardInterrupt as stop:
            raise (InterruptedByTerm if isinstance(stop, Terminated) else Interrupted)() from None
    if as_json:
        print_json(
            samples=result.samples, stored=result.stored, rejected=result.rejected, unreadable=result.unreadable,
            skipped=result.skipped, seconds=round(result.seconds, 3), images_per_s=round(result.images_per_s, 1),
            out=str(result.out), unchanged=result.unchanged, losses=result.losses._asdict(), **_pair_losses(result),
            **(result.changes.counts() if run.update else {}), reports=list(map(str, result.reports)),
        )  # fmt: skip
    elif not quiet:
        print_text(build_summary(result, run.update, KEEP in options.image.sizes))


def _pair_losses(result: BuildResult) -> dict[str, Any]:
    """What companions lost, for --json; nothing where a dataset has none."""
    counts = {name: {"several": lost.several, "surplus": lost.surplus} for name, lost in result.pair_losses.items()}
    return {"pair_losses": counts} if counts else {}


def _take_recorded(context: click.Context, given: dict[str, Any], out: str) -> None:
    """Give options of an update that were not typed the values that the dataset in OUT was built with."""
    from presize.builder.like import options_to_update

    recorded = options_to_update(out)
    if recorded is None:
        return
    values = as_typed(recorded)
    for option in context.command.params:
        name = option.name or ""
        if name in values and context.get_parameter_source(name) is ParameterSource.DEFAULT:
            given[name] = option.process_value(context, values[name])
            context.set_parameter_source(name, ParameterSource.DEFAULT_MAP)


def _options(context: click.Context, given: dict[str, Any]) -> tuple[BuildOptions, SourceOptions, RunOptions]:
    """The options of a build, checked together with what was typed for them."""
    from presize.sources.classes import read_classes
    from presize.sources.companions import companions_of

    def is_from(name: str, source: ParameterSource) -> bool:
        return context.get_parameter_source(name) is source

    image_given, pairs = values_of(IMAGE, given), values_of(PAIRS, given)
    if not is_from("pairs", ParameterSource.DEFAULT_MAP):  # then so are their formats and filters
        named = tuple(f"{pair.partition('=')[0]}=" for pair in pairs["pairs"])
        pairs = {
            name: tuple(
                text for text in texts if not is_from(name, ParameterSource.DEFAULT_MAP) or text.startswith(named)
            )
            for name, texts in pairs.items()
        }
    companions = companions_of(pairs["pairs"], pairs["pair_formats"], pairs["pair_filters"])
    image = ImageOptions(**image_given | {"sizes": tuple(map(Size.parse, image_given["sizes"]))})
    options = BuildOptions(image, companions=companions, **values_of(STORED, given))
    samples = values_of(SAMPLES, given)
    if samples["labels"] == "none" and is_from("classes", ParameterSource.DEFAULT_MAP):
        samples["classes"] = None
    if samples["classes"] is not None:
        samples["classes"] = read_classes(samples["classes"])
    run = values_of(RUN, given)
    if is_from("sizes", ParameterSource.COMMANDLINE):
        _say_shapes(image_given["sizes"], image)
    formats = {image.format, *(companion.format for companion in companions)}
    for name, users in (("quality", ("jpeg", "webp")), ("subsampling", ("jpeg",))):
        if is_from(name, ParameterSource.COMMANDLINE) and formats.isdisjoint(users):
            raise click.UsageError(
                f"--{name}: {' and '.join(users)} alone have one, and --format is {image.format}; leave it out."
            )
    warn_of_jobs(run["jobs"])
    return options, SourceOptions(**samples), RunOptions(**run | {"max_errors": run["max_errors"] or ErrorBudget()})


def _say_shapes(typed: tuple[str, ...], image: ImageOptions) -> None:
    """Warn of WxH where images keep their shapes."""
    if image.fit not in ("shorter", "longer"):
        return
    for text, size in zip(typed, image.sizes, strict=True):
        if "x" in text.lower():
            what = "cover" if image.fit == "shorter" else "lie inside"
            same = f", as with --size {size.height}" if size.height == size.width else ""
            warnings.warn(
                f"--size {text}: with --fit {image.fit} images keep their shapes and {what} {text}{same}; "
                "--fit crop, stretch or pad makes them of that size",
                PresizeWarning, stacklevel=2,
            )  # fmt: skip


def _compare(like: Likeness | None, plan: Plan, samples: SourceOptions) -> None:
    """Warn of what a build does not take over from the dataset that it is to be like.

    Raises:
        SourceError: it would have other classes, without being told to.
    """
    if like is None:
        return
    if samples.classes is None and like.classes is not None and plan.source.classes not in (None, like.classes):
        raise SourceError("--like: SRC has other classes than that dataset; --classes names the list to use")
    if like.derived:
        warnings.warn(
            f"--like: that dataset was derived from others with {', '.join(like.derived)}, which is not repeated: "
            "this build makes its images from SRC",
            PresizeWarning, stacklevel=2,
        )  # fmt: skip
    missing = [name for name in like.columns if name not in plan.source.table.column_names]
    if missing:
        warnings.warn(
            f"--like: that dataset has the columns {', '.join(missing)} and this build has not; they are not taken "
            "over, but come from --labels, --split or SRC",
            PresizeWarning, stacklevel=2,
        )  # fmt: skip
