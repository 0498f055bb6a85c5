"""presize diagnose and simulate."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from presize import options as choices
from presize.cli.group import EPILOG, check_page, choice, cli, parsed
from presize.cli.printing import print_json, print_text, several_lines
from presize.errors import OptionError
from presize.formatting import printable
from presize.measure import bench_options as benchoptions
from presize.measure.bench_options import DiagnoseOptions
from presize.options import Size
from presize.system.files import write_atomically

if TYPE_CHECKING:
    from presize.measure.simulate import Pipeline

_DIAGNOSE = DiagnoseOptions()


@cli.command(epilog=EPILOG)
@click.argument("path", metavar="PATH")
@click.option("--model", type=choice(benchoptions.Model), default=_DIAGNOSE.model, show_default=True)
@click.option("--device", type=choice(benchoptions.Device), help="[default: cuda where there is any]")
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
    callback=parsed(Size.parse),
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
    from presize.datasets.timing.diagnose_path import diagnose_path
    from presize.measure.diagnosis_report import diagnosis_page, diagnosis_text
    from presize.measure.listings import build_trial
    from presize.store.manifest import MANIFEST

    asked = DiagnoseOptions(**options)
    check_page(out)
    trial, name = None, f"Presize to {size} px"

    def tell(step: str) -> None:
        click.echo(printable(step), err=True)

    with tempfile.TemporaryDirectory(prefix="presize-diagnose-") as place:
        if not no_trial and not (Path(path) / MANIFEST).exists():
            tell(f"building a small dataset, to try: {name}")
            trial = build_trial(path, Path(place), size, seed=asked.seed)
        found = diagnose_path(path, asked, trial=trial, trial_name=name, on_step=tell)
    if as_json:
        print_json(**found.known())
    else:
        print_text(several_lines(diagnosis_text(found, min(120, shutil.get_terminal_size((100, 24)).columns))))
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
    from presize.measure.simulate import MOST_WORKERS, fewest_workers
    from presize.measure.simulate import simulate as run
    from presize.measure.simulate import sweep as run_sweep
    from presize.measure.simulation_report import (
        PictureVariant,
        described,
        simulation_html,
        simulation_text,
        sweep_lines,
    )

    check_page(out)
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
    variants = [PictureVariant(title, timeline) for title, timeline in zip(titles, timelines, strict=True)]
    swept = run_sweep(pipelines[-1], range(sweep + 1), seed=seed) if sweep is not None else {}
    if out is not None:
        write_atomically(Path(out), simulation_html(variants, swept).encode())
    if as_json:
        found: dict[str, Any] = {"then": timelines[1].known()} if len(timelines) > 1 else {}
        if swept:
            found |= {"sweep": [asdict(line) for line in sweep_lines(swept)], "fewest_workers": fewest_workers(swept)}
        print_json(**timelines[0].known(), **found, page=out)
        return
    print_text(simulation_text(variants, swept))
    if out is not None:
        print_text(f"\npage: {out}")


def _pipeline(
    *, workers: int, prefetch: int, cv: float, out_of_order: bool, cores: float | None, **times_ms: float
) -> Pipeline:
    from presize.measure.simulate import Pipeline, Times

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
