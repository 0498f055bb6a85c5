"""The command line: parse, one library call, print, exit code. The only module that knows click."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, get_args

import click

from presize import __version__, diagnosis
from presize import options as choices
from presize.bench import options as benchoptions
from presize.bench.options import BenchOptions
from presize.diagnosis import DiagnoseOptions
from presize.errors import OptionError, PresizeError, PresizeWarning
from presize.files import write_atomically
from presize.options import BuildOptions, ErrorBudget, ImageOptions, RunOptions, Size
from presize.progress import Progress

if TYPE_CHECKING:
    from presize.bench.results import Results
    from presize.build import BuildResult
    from presize.doctor.machine import Torch
    from presize.plan import Plan
    from presize.simulate import Pipeline
    from presize.task import ShardDone
    from presize.update import Changes

_REJECTS_SHOWN = 5

EPILOG = "Exit codes: 0 done, 1 a failure, 2 wrong use, 130 interrupted."


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The entry point. Errors become one line on standard error; ``--debug`` shows their traceback."""
    settings = {"debug": False}
    _open_closed_streams()
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    warnings.simplefilter("always", PresizeWarning)
    signal.signal(signal.SIGTERM, _terminate)
    code: object
    try:
        code = cli.main(args, prog_name="presize", standalone_mode=False, obj=settings)
    except click.ClickException as error:
        code = _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = _fail("interrupted", 130)
    except PresizeError as error:
        if settings["debug"]:
            raise
        code = _fail(_on_the_command_line(error), 2 if isinstance(error, OptionError) else 1)
    sys.exit(code if isinstance(code, int) else 0)


def _open_closed_streams() -> None:
    """Let the standard streams that are closed be /dev/null. The next files to be opened, shards above all,
    would take their places, and what a codec prints would go into them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # workers open files, too
    os.close(descriptor)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")


def _fail(message: str, code: int) -> int:
    click.echo(f"presize: error: {_one_line(message)}", err=True)
    return code


def _one_line(text: str) -> str:
    """`text` without what a hostile file name could do to a terminal or to a log: line ends, escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _on_the_command_line(error: PresizeError) -> str:
    """The message, with the option that it begins with spelled as it is typed."""
    option, colon, rest = str(error).partition(":")
    return f"--{option.replace('_', '-')}{colon}{rest}" if isinstance(error, OptionError) else str(error)


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    if issubclass(category, PresizeWarning):
        click.echo(f"presize: warning: {_one_line(str(message))}", err=True)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as an exception that cleans up on its way like Ctrl-C."""


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise _Terminated


class _Interrupted(click.ClickException):
    """A command was stopped by Ctrl-C."""

    exit_code = 128 + signal.SIGINT

    def __init__(self, message: str = "interrupted; the same command resumes the build") -> None:
        super().__init__(message)


class _InterruptedByTerm(_Interrupted):
    """A command was stopped by SIGTERM."""

    exit_code = 128 + signal.SIGTERM


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=EPILOG)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(__version__, prog_name="presize")
@click.pass_obj
def cli(settings: dict[str, bool], debug: bool) -> None:
    """Resize a folder of images once, pack it as LMDB shards, and train without waiting for data."""
    settings["debug"] = debug


def _parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A click callback that reads one value, or each of several, with a function of the library."""

    def read(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(parse, value))
        return None if value is None else parse(value)

    return read


def _choice(literal: Any) -> click.Choice[str]:
    return click.Choice(get_args(literal))


_DEFAULT = ImageOptions()


@cli.command(epilog=EPILOG)
@click.argument("source", metavar="SRC")
@click.argument("out", metavar="OUT")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    default=["256"],
    show_default=True,
    metavar="N|WxH",
    callback=_parsed(Size.parse),
    help="Target size in pixels; several make OUT/SIZE each.",
)
@click.option(
    "--fit",
    type=_choice(choices.Fit),
    default=_DEFAULT.fit,
    show_default=True,
    help="How an image meets its target: by its shorter side, its longer, or exactly.",
)
@click.option(
    "--filter",
    "filter_",
    type=_choice(choices.Filter),
    default=_DEFAULT.filter,
    show_default=True,
    help="Antialiasing filter.",
)
@click.option(
    "--resize-backend",
    type=_choice(choices.ResizeBackend),
    default=_DEFAULT.resize_backend,
    show_default=True,
    help="Library that resamples.",
)
@click.option(
    "--color",
    type=_choice(choices.Color),
    default=_DEFAULT.color,
    show_default=True,
    help="Channels to store.",
)
@click.option(
    "--format",
    "format_",
    type=_choice(choices.Format),
    default=_DEFAULT.format,
    show_default=True,
    help="Format to store.",
)
@click.option(
    "--quality",
    type=int,
    default=_DEFAULT.quality,
    show_default=True,
    metavar="Q",
    help="JPEG and WebP quality, 1 to 100.",
)
@click.option(
    "--subsampling",
    type=_choice(choices.Subsampling),
    default=_DEFAULT.subsampling,
    show_default=True,
    help="JPEG chroma subsampling.",
)
@click.option(
    "--tiles/--no-tiles",
    default=_DEFAULT.tiles,
    show_default=True,
    help="Store JPEG in tiles, so that a crop is read without the rest.",
)
@click.option("--upscale", is_flag=True, help="Enlarge images smaller than the target, too.")
@click.option("--keep-metadata", is_flag=True, help="Keep EXIF, XMP and comments in what is stored.")
@click.option(
    "--max-pixels",
    type=int,
    default=_DEFAULT.max_pixels,
    show_default=True,
    metavar="N",
    help="Reject sources of more pixels.",
)
@click.option(
    "--to",
    "layout",
    type=_choice(choices.Layout),
    default="lmdb",
    show_default=True,
    help="LMDB shards, or ordinary image files.",
)
@click.option("--labels", metavar="TABLE", help="CSV, JSON lines or Parquet with a path column; it lists the samples.")
@click.option("--classes", metavar="FILE|DATASET", help="Class list to use: one name a line, or a dataset's.")
@click.option("--follow-links", is_flag=True, help="Follow links that lead out of SRC.")
@click.option(
    "--checksum",
    is_flag=True,
    help="Keep a checksum of each source file, which --update then compares instead of the modification time.",
)
@click.option("--shard-samples", type=int, metavar="N", help="Samples a shard, at most.  [default: by their number]")
@click.option("--jobs", type=int, metavar="N", help="Processes.  [default: all cores]")
@click.option(
    "--backend",
    "engine",
    type=_choice(choices.Engine),
    default="loky",
    show_default=True,
    help="What runs them.",
)
@click.option(
    "--on-error",
    type=_choice(choices.OnError),
    default="skip",
    show_default=True,
    help="Skip images that cannot be stored, or stop at the first.",
)
@click.option(
    "--max-errors",
    metavar="N|P%",
    callback=_parsed(ErrorBudget.parse),
    help="Stop after more rejected images than this.  [default: any number]",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and an estimate; write nothing.")
@click.option(
    "--update",
    is_flag=True,
    help="Bring OUT up to date with SRC: decode what is new or changed, keep the rest.",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace a presize dataset once the new one is whole; a folder's files one by one.",
)
@click.option("--report/--no-report", default=True, show_default=True, help="Write a page about it, report.html.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def build(
    source: str, out: str, sizes: tuple[Size, ...], filter_: choices.Filter, format_: choices.Format,
    layout: choices.Layout, shard_samples: int | None, follow_links: bool, checksum: bool, labels: str | None,
    classes: str | None, jobs: int | None, engine: choices.Engine, on_error: choices.OnError,
    max_errors: ErrorBudget | None, update: bool, overwrite: bool, dry_run: bool, report: bool, as_json: bool,
    **image: Any,
) -> None:  # fmt: skip
    """Resize the images of SRC and pack them into OUT.

    SRC is a folder of class folders, a folder of images, or any folder with --labels. Run it again to
    finish a build that was interrupted, and with --update when SRC has changed.
    """
    from presize.build import build_dataset, check_places, plan_build, plan_update
    from presize.labels import read_classes

    image_options = ImageOptions(sizes=sizes, filter=filter_, format=format_, **image)
    build_options = BuildOptions(image_options, layout, shard_samples, follow_links, checksum)
    run = RunOptions(jobs, engine, on_error, max_errors or ErrorBudget(), overwrite, update, report)
    names = None if classes is None else read_classes(Path(classes))
    if dry_run:
        place = check_places(source, out, build_options, run)
        plan = plan_build(source, build_options, labels=labels, classes=names)
        to_build, changes = plan_update(plan, place, run) if update else (plan, None)
        _print_plan(plan, to_build, changes, out, run, as_json)
        return
    rejected = stored_bytes = 0
    with Progress(sys.stderr, "build") as progress:

        def on_shard(done: ShardDone) -> None:
            nonlocal rejected, stored_bytes
            rejected += done.rejected
            stored_bytes += done.bytes
            note = f"{_megabytes(stored_bytes)}, {rejected:,} rejected"
            progress.add(done.stored + done.rejected + done.skipped, note)

        try:
            result = build_dataset(
                source, out, build_options, run, labels=labels, classes=names,
                on_plan=lambda plan: progress.begin(len(plan.source.table)), on_shard=on_shard,
            )  # fmt: skip
        except KeyboardInterrupt as stop:
            raise (_InterruptedByTerm if isinstance(stop, _Terminated) else _Interrupted)() from None
    if as_json:
        _print_json(
            samples=result.samples, stored=result.stored, rejected=result.rejected, skipped=result.skipped,
            seconds=round(result.seconds, 3), images_per_s=round(result.images_per_s, 1), out=str(result.out),
            **(result.changes._asdict() if update else {}),
            reports=list(map(str, result.reports)),
        )  # fmt: skip
        return
    _print(_summary(result, update))


def _counts(changes: Changes) -> str:
    """``kept 990, copied 8, built 2, removed 1``"""
    return ", ".join(f"{what} {count:,}" for what, count in changes._asdict().items())


def _summary(result: BuildResult, update: bool) -> str:
    idle = "nothing had to be decoded" if update else "nothing was left to do"
    rate = idle if result.resumed == result.files else f"{result.images_per_s:,.0f} images/s"
    lines = [f"{result.out}: {result.stored:,} images, {_megabytes(result.bytes)}, in {result.seconds:.1f} s ({rate})"]
    if result.rejected:
        lines.append(f"  {result.rejected:,} images were rejected, with reasons in its rejects file")
    left_out = {
        "no images": result.skipped,
        "hidden": result.hidden,
        "beside the class folders": result.outside,
    }
    if any(left_out.values()):
        counts = ", ".join(f"{count:,} {what}" for what, count in left_out.items() if count)
        lines.append(f"  not stored: {counts}")
    if update:
        lines.append(f"  {_counts(result.changes)}")
    if result.reports:
        lines.append(f"  report: {' and '.join(map(str, result.reports))}")
    return "\n".join(lines)


def _print_plan(plan: Plan, to_build: Plan, changes: Changes | None, out: str, run: RunOptions, as_json: bool) -> None:
    from presize.estimate import estimate

    source, image = plan.source, plan.options.image
    cores = len(os.sched_getaffinity(0))
    jobs = run.jobs or cores
    found = estimate(to_build, jobs, run.report)
    existing = next(path for path in [Path(out).absolute(), *Path(out).absolute().parents] if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if as_json:
        _print_json(
            samples=len(source.table), classes=source.classes, shards=len(to_build.shards), bytes=found.bytes,
            cpu_seconds=round(found.cpu_seconds, 3), seconds=round(found.seconds, 3), jobs=jobs, tried=found.tried,
            skipped=found.skipped, rejected=len(found.rejects), rejects=[reject.known() for reject in found.rejects],
            free_bytes=free_bytes, out=out, **(changes._asdict() if changes else {}),
        )  # fmt: skip
        return
    classes = f"{len(source.classes):,} classes" if source.classes is not None else "no classes"
    sizes = " and ".join(map(str, image.sizes))
    shards = [len(shard) for shard in to_build.shards]
    too_little = ", which is too little" if free_bytes < found.bytes else ""
    lines = [
        f"source    {source.root}: {len(source.table):,} files, {classes}",
        f"target    {out}: {sizes} px {image.fit}, {image.format} to {plan.options.layout}",
        *([f"update    {_counts(changes)}"] if changes else []),
        f"shards    {len(shards):,}{' to write,' if changes else ''} of about {max(shards, default=0):,} samples",
        f"estimate  {_megabytes(found.bytes)} and {_duration(found.seconds)} with --jobs {jobs} on {cores} cores",
        f"tried     {found.tried:,} files: {len(found.rejects):,} rejected, {found.skipped:,} no images",
        *(f"          {_one_line(f'{reject.path}: {reject.reason}')}" for reject in found.rejects[:_REJECTS_SHOWN]),
        f"free      {_megabytes(free_bytes)}{too_little}",
    ]
    if len(found.rejects) > _REJECTS_SHOWN:
        lines.insert(-1, f"          and {len(found.rejects) - _REJECTS_SHOWN:,} more")
    _print("\n".join(lines))


@cli.command(epilog=EPILOG)
@click.argument("dataset", metavar="OUT")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(dataset: str, as_json: bool) -> None:
    """Show what is in the dataset OUT and how it was made."""
    from presize.manifest import read_manifest

    manifest = read_manifest(dataset)
    facts = {
        "samples": manifest.samples,
        "bytes": manifest.bytes,
        "classes": None if manifest.classes is None else list(manifest.classes),
        "shards": len(manifest.shards),
        "layout": manifest.layout,
        "size": manifest.size,
        "options": manifest.identity["options"],
        "left_out": manifest.left_out,
        "versions": manifest.identity["versions"],
        "digest": manifest.digest,
    }
    if as_json:
        _print_json(**facts)
        return
    image = manifest.identity["options"]["image"]
    classes = f"{len(manifest.classes):,} classes" if manifest.classes is not None else "no classes"
    asked = ", ".join(f"{name} {value}" for name, value in image.items() if name not in ("sizes", "max_pixels"))
    _print(
        f"samples   {manifest.samples:,} in {classes}\n"
        f"stored    {_megabytes(manifest.bytes)}, {manifest.bytes / manifest.samples / 1e3:.1f} kB an image, "
        f"in {f'{len(manifest.shards):,} shards' if manifest.shards else 'files'}\n"
        f"size      {manifest.size} px\n"
        f"made with {asked}\n"
        f"left out  {', '.join(f'{count:,} {what}' for what, count in manifest.left_out.items())}\n"
        f"versions  {', '.join(f'{name} {version}' for name, version in manifest.identity['versions'].items())}"
    )


@cli.command(epilog=EPILOG)
@click.argument("dataset", metavar="OUT")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Threads.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(dataset: str, jobs: int | None, as_json: bool) -> None:
    """Read every byte of the dataset OUT and say what is wrong.

    The exit code is 1 if anything is.
    """
    from presize.manifest import read_manifest
    from presize.verify import verify_dataset

    with Progress(sys.stderr, "verify") as progress:
        progress.begin(read_manifest(dataset).samples)
        samples, problems = verify_dataset(dataset, jobs=jobs, on_images=progress.add)
    if as_json:
        _print_json(samples=samples, problems=[problem._asdict() for problem in problems])
    else:
        for problem in problems:
            _print(_one_line(f"{problem.file}: {problem.what}"))
        _print(f"{dataset}: {samples:,} samples, {len(problems):,} problems")
    if problems:
        raise click.exceptions.Exit(1)


@cli.command(epilog=EPILOG)
@click.argument("dataset", metavar="OUT")
@click.argument("folder", metavar="DIR")
@click.option(
    "--to",
    "layout",
    type=click.Choice(["folder"]),
    default="folder",
    show_default=True,
    help="What to make of it.",
)
def export(dataset: str, folder: str, layout: str) -> None:  # noqa: ARG001  # one choice so far
    """Write the images of the dataset OUT as files below DIR."""
    from presize.export import export_dataset
    from presize.manifest import read_manifest

    with Progress(sys.stderr, "export") as progress:
        progress.begin(read_manifest(dataset).samples)
        written = export_dataset(dataset, folder, on_image=lambda: progress.add(1))
    _print(f"{folder}: {written:,} files")


@cli.command(epilog=EPILOG)
@click.argument("folder", metavar="DIR")
@click.option("--images", type=int, default=200, show_default=True, metavar="N", help="Files to make.")
@click.option("--classes", type=int, default=4, show_default=True, metavar="N", help="Class folders.")
@click.option(
    "--long-side",
    type=int,
    default=500,
    show_default=True,
    metavar="PX",
    help="Longer side of a typical picture.",
)
@click.option("--broken", type=int, default=0, show_default=True, metavar="N", help="How many are broken files.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Other numbers, other pictures.")
def sample(folder: str, images: int, **options: int) -> None:
    """Make photo-like images in DIR, to try everything with."""
    from presize.sample import SampleOptions, make_samples

    with Progress(sys.stderr, "sample") as progress:
        progress.begin(images)
        written = make_samples(Path(folder), SampleOptions(images=images, **options), lambda: progress.add(1))
    _print(f"{folder}: {written:,} files in {options['classes']} classes")


@cli.command(epilog=EPILOG)
@click.argument("path", metavar="[PATH]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(path: str | None, as_json: bool) -> None:
    """Tell what holds loading back on this machine, and what to do.

    PATH is a dataset, a folder of images or a file: how fast some of it is read is measured, within a few
    seconds, and nothing is written. The exit code is 0 whatever is found.
    """
    from presize.doctor.check_up import as_text, check_up
    from presize.doctor.findings import judge, verdict

    facts = check_up(_torch(), None if path is None else Path(path))
    findings = judge(facts)
    if as_json:
        found = [finding._asdict() for finding in findings]
        _print_json(verdict=verdict(findings), findings=found, facts=facts.known())
        return
    _print(as_text(findings, min(120, shutil.get_terminal_size((100, 24)).columns)))


def _torch() -> Torch | str:
    """What torch has, or why it has not been imported."""
    try:
        from presize.datasets.devices import read_torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return "not installed"
    except (ImportError, OSError) as error:  # a library that it needs is not there, say
        return f"cannot be imported: {str(error).partition(chr(10))[0]}"
    return read_torch()


_BENCH = BenchOptions()


@cli.command(epilog=EPILOG)
@click.option("--raw", metavar="DIR", help="Folder of images; what is missing of the other two is built from it.")
@click.option("--presized", metavar="DIR", help="What presize build --to folder made of it.")
@click.option("--lmdb", metavar="OUT", help="What presize build made of it.")
@click.option(
    "--arm", "arms", multiple=True, type=_choice(benchoptions.Arm), help="Run these.  [default: all there are]"
)
@click.option(
    "--model",
    "models",
    multiple=True,
    type=_choice(benchoptions.BenchModel),
    default=_BENCH.models,
    show_default=True,
    help="Train these; none is the loader alone.",
)
@click.option("--device", type=_choice(benchoptions.Device), default=_BENCH.device, show_default=True)
@click.option(
    "--workers", multiple=True, type=int, metavar="N", help="Loader processes; several.  [default: all cores]"
)
@click.option(
    "--pin-memory",
    type=_choice(benchoptions.Pinning),
    help="Page-locked memory in DataLoaders.  [default: on with CUDA]",
)
@click.option("--prefetch", type=int, default=_BENCH.prefetch, show_default=True, metavar="N", help="Batches ahead.")
@click.option("--batch", type=int, default=_BENCH.batch, show_default=True, metavar="N", help="Images a batch.")
@click.option(
    "--crop", type=int, default=_BENCH.crop, show_default=True, metavar="PX", help="Side of the random crops."
)
@click.option(
    "--size",
    metavar="N|WxH",
    callback=_parsed(Size.parse),
    help="Size of what has to be built.  [default: that of the dataset given, or 256]",
)
@click.option("--epochs", type=int, default=_BENCH.epochs, show_default=True, metavar="N", help="In each run.")
@click.option("--steps", type=int, metavar="N", help="End epochs after N batches.  [default: whole epochs]")
@click.option("--repeats", type=int, default=_BENCH.repeats, show_default=True, metavar="N", help="Runs of each kind.")
@click.option("--cold", is_flag=True, help="Also measure with the files dropped from the page cache.")
@click.option("--images", type=int, metavar="N", help="So many samples, drawn at random.  [default: all]")
@click.option("--seed", type=int, default=_BENCH.seed, show_default=True, metavar="N", help="Of all that is random.")
@click.option(
    "--work", metavar="DIR", help="Keep what is built here, for the next time.  [default: a temporary folder]"
)
@click.option("--out", metavar="DIR", help="Write results.json, results.csv and report.html here, after every run.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
def bench(
    raw: str | None, presized: str | None, lmdb: str | None, arms: tuple[Any, ...], workers: tuple[int, ...],
    pin_memory: benchoptions.Pinning | None, work: str | None, out: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Measure training from a raw folder, a presized folder and LMDB.

    Each run is a process of its own, in random order. --raw alone will do: the others are built from it.
    """
    from presize.bench.compare import bench as run_bench
    from presize.bench.results import to_json
    from presize.report.bench import bench_text

    pinned = None if pin_memory is None else benchoptions.PINNINGS[pin_memory]
    roots = {name: root for name, root in (("raw", raw), ("presized", presized), ("lmdb", lmdb)) if root is not None}
    seen: list[Results] = []

    def show() -> None:
        if seen:
            _print(to_json(seen[-1]).rstrip("\n") if as_json else _several_lines(bench_text(seen[-1])))

    try:
        run_bench(
            roots, BenchOptions(arms=arms or None, workers=workers or None, pin_memory=pinned, **options),
            work=work, out=out, command=shlex.join(["presize", *sys.argv[1:]]),
            on_step=lambda step: click.echo(_one_line(step), err=True), on_results=seen.append,
        )  # fmt: skip
    except KeyboardInterrupt as stop:
        show()
        kept = f"; what was measured is in {out}" if out is not None and seen else ""
        raise (_InterruptedByTerm if isinstance(stop, _Terminated) else _Interrupted)(f"interrupted{kept}") from None
    except PresizeError:
        show()
        raise
    show()


_DIAGNOSE = DiagnoseOptions()


@cli.command(epilog=EPILOG)
@click.argument("path", metavar="PATH")
@click.option("--model", type=_choice(diagnosis.Model), default=_DIAGNOSE.model, show_default=True)
@click.option("--device", type=_choice(diagnosis.Device), help="[default: cuda where there is any]")
@click.option(
    "--workers", type=int, default=_DIAGNOSE.workers, show_default=True, metavar="N", help="Loader processes."
)
@click.option("--prefetch", type=int, default=_DIAGNOSE.prefetch, show_default=True, metavar="N", help="Batches ahead.")
@click.option("--batch", type=int, default=_DIAGNOSE.batch, show_default=True, metavar="N", help="Images a batch.")
@click.option(
    "--crop", type=int, default=_DIAGNOSE.crop, show_default=True, metavar="PX", help="Side of the random crops."
)
@click.option(
    "--size",
    metavar="N|WxH",
    default="256",
    show_default=True,
    callback=_parsed(Size.parse),
    help="Of a folder: try what presizing to this would give.",
)
@click.option("--no-trial", is_flag=True, help="Do not try that.")
@click.option("--steps", type=int, default=_DIAGNOSE.steps, show_default=True, metavar="N", help="Batches a part.")
@click.option(
    "--seconds",
    type=float,
    default=_DIAGNOSE.seconds,
    show_default=True,
    metavar="S",
    help="A part ends after so long, if that is earlier.",
)
@click.option("--seed", type=int, default=_DIAGNOSE.seed, show_default=True, metavar="N", help="Of order and crops.")
@click.option("-o", "--out", metavar="FILE.html", help="Write a page with the picture, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def diagnose(path: str, size: Size, no_trial: bool, out: str | None, as_json: bool, **options: Any) -> None:
    """Tell what training on PATH waits for, and what would help.

    PATH is a folder of images, or a dataset. A model is trained on it for some seconds.
    """
    from presize.datasets.diagnose_path import diagnose_path
    from presize.manifest import MANIFEST
    from presize.report.diagnosis import diagnosis_page, diagnosis_text
    from presize.trial import build_trial

    asked = DiagnoseOptions(**options)
    _check_page(out)
    trial, name = None, f"Presize to {size} px"

    def tell(step: str) -> None:
        click.echo(_one_line(step), err=True)

    with tempfile.TemporaryDirectory(prefix="presize-diagnose-") as place:
        if not no_trial and not (Path(path) / MANIFEST).exists():
            tell(f"building a small dataset, to try: {name}")
            trial = build_trial(path, Path(place), size, seed=asked.seed)
        found = diagnose_path(path, asked, trial=trial, trial_name=name, on_step=tell)
    if as_json:
        _print_json(**found.known())
    else:
        _print(_several_lines(diagnosis_text(found, min(120, shutil.get_terminal_size((100, 24)).columns))))
    if out is not None:
        write_atomically(Path(out), diagnosis_page(found, path).encode())


@cli.command(epilog=EPILOG)
@click.option("--workers", type=int, required=True, metavar="N", help="Loader processes; 0: training loads itself.")
@click.option("--load-ms", type=float, required=True, metavar="MS", help="A worker takes that for a batch.")
@click.option("--step-ms", type=float, required=True, metavar="MS", help="Training takes that for a batch.")
@click.option("--seconds", type=float, default=30, show_default=True, metavar="S", help="To simulate.")
@click.option(
    "--cv", type=float, default=0, show_default=True, help="How loading varies: standard deviation / mean (gamma)."
)
@click.option("--prefetch", type=int, default=2, show_default=True, metavar="N", help="Batches ahead, each worker.")
@click.option("--out-of-order", is_flag=True, help="Take batches as they come (DataLoader's in_order=False).")
@click.option(
    "--stagger-ms", type=float, default=0, show_default=True, metavar="MS", help="Workers begin so far apart."
)
@click.option(
    "--pin-ms", type=float, default=0, show_default=True, metavar="MS", help="Pinning a batch, by one thread."
)
@click.option("--copy-ms", type=float, default=0, show_default=True, metavar="MS", help="Copying it to the device.")
@click.option("--cores", type=float, metavar="N", help="That workers share, one a batch.  [default: one each]")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Other numbers, other times.")
@click.option("--sweep", type=int, metavar="N", help="Also try 0 to N workers; how many are enough?")
@click.option("--then-workers", type=int, metavar="N", help="Compare with so many workers.")
@click.option("--then-load-ms", type=float, metavar="MS", help="Compare with batches that take that.")
@click.option("-o", "--out", metavar="FILE.html", help="Write a page in which it can be watched.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def simulate(
    seconds: float, seed: int, sweep: int | None, then_workers: int | None, then_load_ms: float | None,
    out: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Foretell what more workers, or faster loading, would bring.

    Workers, the queue of finished batches and training are simulated: nothing is run and nothing is read.
    With --then-workers or --then-load-ms two pipelines are compared.
    """
    from presize.report.simulation import PictureArm, described, simulation_html, simulation_text, sweep_lines
    from presize.simulate import MOST_WORKERS, fewest_workers
    from presize.simulate import simulate as run
    from presize.simulate import sweep as run_sweep

    _check_page(out)
    pipelines = [_pipeline(**options)]
    if then_workers is not None or then_load_ms is not None:
        load_s = _seconds("then_load_ms", options["load_ms"] if then_load_ms is None else then_load_ms, needed=True)
        number = pipelines[0].workers if then_workers is None else then_workers
        choices.check_range("then_workers", number, 0, MOST_WORKERS)
        pipelines.append(replace(pipelines[0], workers=number, load=replace(pipelines[0].load, mean_s=load_s)))
    if sweep is not None:
        choices.check_range("sweep", sweep, 1, MOST_WORKERS)
    timelines = [run(pipeline, seconds=seconds, seed=seed) for pipeline in pipelines]
    titles = [described(pipeline) for pipeline in pipelines]
    if len(titles) > 1:
        titles = [f"{name}: {title}" for name, title in zip(("before", "after"), titles, strict=True)]
    arms = [PictureArm(title, timeline) for title, timeline in zip(titles, timelines, strict=True)]
    swept = run_sweep(pipelines[-1], range(sweep + 1), seed=seed) if sweep is not None else {}
    if out is not None:
        write_atomically(Path(out), simulation_html(arms, swept).encode())
    if as_json:
        found: dict[str, Any] = {"then": timelines[1].known()} if len(timelines) > 1 else {}
        if swept:
            found |= {"sweep": [asdict(line) for line in sweep_lines(swept)], "fewest_workers": fewest_workers(swept)}
        _print_json(**timelines[0].known(), **found, page=out)
        return
    _print(simulation_text(arms, swept))
    if out is not None:
        _print(f"\npage: {out}")


def _pipeline(
    *, workers: int, prefetch: int, cv: float, out_of_order: bool, cores: float | None, **times_ms: float
) -> Pipeline:
    from presize.simulate import Pipeline, Times

    times_s = {name: _seconds(name, value, name in ("load_ms", "step_ms")) for name, value in times_ms.items()}
    return Pipeline(
        Times(times_s["load_ms"], cv), Times(times_s["step_ms"]), workers, prefetch, Times(times_s["pin_ms"]),
        Times(times_s["copy_ms"]), not out_of_order, times_s["stagger_ms"], cores,
    )  # fmt: skip


def _seconds(option: str, milliseconds: float, needed: bool) -> float:
    if not 0 <= milliseconds <= 1e9 or (needed and milliseconds == 0):
        least = "above 0" if needed else "from 0"
        raise OptionError(f"{option}: expected milliseconds {least} up to 1e9, got {milliseconds:g}")
    return milliseconds / 1e3


def _check_page(out: str | None) -> None:
    """Before anything is done for it."""
    if out is not None and not Path(out).absolute().parent.is_dir():
        raise click.UsageError(f"-o: {Path(out).parent} is no folder; make it, or choose another place")


def _several_lines(text: str) -> str:
    return "\n".join(map(_one_line, text.split("\n")))


def _print_json(**values: Any) -> None:
    _print(json.dumps(values, ensure_ascii=False))


def _print(text: str) -> None:
    """`text` on standard output. That it is full is a failure like any other; that nobody reads is for click."""
    try:
        click.echo(text)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        with suppress(OSError):
            sys.stdout.close()  # or Python tries once more at exit
        raise click.ClickException(f"cannot print: {error.strerror}") from None


def _duration(seconds: float) -> str:
    """As people read a clock: ``12.3 s``, ``5 min 20 s``, ``3 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02} min"


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e9:,.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:,.1f} MB"
