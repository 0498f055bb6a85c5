"""presize simulate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from presize.cli.group import check_page, command, json_option, write_page
from presize.cli.option_groups import PATH
from presize.cli.output import print_json, print_text
from presize.errors import OptionError
from presize.formatting import plural, seconds_text
from presize.options import check_range

if TYPE_CHECKING:
    from presize.measure.simulation import Pipeline


@command(
    "presize simulate --workers 7 --load-ms 2000 --step-ms 100",
    "presize simulate --workers 4 --load-ms 200 --step-ms 40 --sweep 16",
)
@click.option(
    "--workers", type=int, required=True, metavar="N", help="Loader processes; 0 loads in the training process."
)
@click.option("--load-ms", type=float, required=True, metavar="MS", help="Load time per batch of one worker.")
@click.option("--step-ms", type=float, required=True, metavar="MS", help="Time of a training step.")
@click.option("--seconds", type=float, default=30, show_default=True, metavar="S", help="Simulated time.")
@click.option(
    "--cv", type=float, default=0, show_default=True, help="Variation of load times: standard deviation / mean (gamma)."
)
@click.option("--prefetch", type=int, default=2, show_default=True, metavar="N", help="Batches ahead per worker.")
@click.option("--out-of-order", is_flag=True, help="Take batches as they finish (DataLoader's in_order=False).")
@click.option(
    "--stagger-ms", type=float, default=0, show_default=True, metavar="MS", help="Delay between the starts of workers."
)
@click.option(
    "--pin-ms", type=float, default=0, show_default=True, metavar="MS", help="Time to pin a batch, in a single thread."
)
@click.option(
    "--copy-ms", type=float, default=0, show_default=True, metavar="MS", help="Time to copy a batch to the device."
)
@click.option("--cores", type=float, metavar="N", help="CPU cores that workers share.  [default: one each]")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Random seed.")
@click.option("--sweep", type=int, metavar="N", help="Also try 0 to N workers, to find how many are enough.")
@click.option("--then-workers", type=int, metavar="N", help="Compare with this number of workers.")
@click.option("--then-load-ms", type=float, metavar="MS", help="Compare with this load time.")
@click.option("-o", "--out", type=PATH, metavar="FILE.html", help="Write a page with an animation.")
@json_option
def simulate(
    seconds: float, seed: int, sweep: int | None, then_workers: int | None, then_load_ms: float | None,
    out: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Predict the gain from more workers or faster loading.

    Simulates workers, the queue of finished batches and training; reads no data and trains nothing. Use --then-workers
    or --then-load-ms to compare two pipelines.
    """
    from presize.measure.simulation import MOST_WORKERS, fewest_workers
    from presize.measure.simulation import simulate as run
    from presize.measure.simulation import sweep as run_sweep
    from presize.measure.simulation_report import PictureVariant, simulation_html, simulation_text, sweep_rows

    check_page(out)
    pipelines = [_pipeline(**options)]
    if then_workers is not None or then_load_ms is not None:
        load_s = _seconds("then_load_ms", options["load_ms"] if then_load_ms is None else then_load_ms)
        number = pipelines[0].workers if then_workers is None else then_workers
        check_range("then_workers", number, 0, MOST_WORKERS)
        pipelines.append(replace(pipelines[0], workers=number, load=replace(pipelines[0].load, mean_s=load_s)))
    if sweep is not None:
        check_range("sweep", sweep, 1, MOST_WORKERS)
    timelines = [run(pipeline, seconds=seconds, seed=seed) for pipeline in pipelines]
    variants = []
    names = ("before: ", "after: ") if len(timelines) > 1 else ("",)
    for name, one in zip(names, timelines, strict=True):
        what = f"{plural(one.pipeline.workers, 'worker')}, {seconds_text(one.pipeline.load.mean_s)} per batch"
        variants.append(PictureVariant(name + what, one))
    swept = run_sweep(pipelines[-1], range(sweep + 1), seed=seed) if sweep is not None else {}
    if out is not None:
        write_page(out, simulation_html(variants, swept))
    if as_json:
        found: dict[str, Any] = {"then": timelines[1].known()} if len(timelines) > 1 else {}
        if swept:
            found |= {"sweep": sweep_rows(swept), "fewest_workers": fewest_workers(swept)}
        print_json(**timelines[0].known(), **found, page=out)
        return
    print_text(simulation_text(variants, swept))
    if out is not None:
        print_text(f"\npage: {out}")


def _pipeline(
    *, workers: int, prefetch: int, cv: float, out_of_order: bool, cores: float | None, **times_ms: float
) -> Pipeline:
    from presize.measure.simulation import Pipeline, Times

    load_s, step_s, pin_s, copy_s, stagger_s = (
        _seconds(name, times_ms[name]) for name in ("load_ms", "step_ms", "pin_ms", "copy_ms", "stagger_ms")
    )
    return Pipeline(
        Times(load_s, cv), Times(step_s), workers, prefetch, Times(pin_s), Times(copy_s), not out_of_order, stagger_s,
        cores,
    )  # fmt: skip


def _seconds(option: str, milliseconds: float) -> float:
    is_needed = option in ("load_ms", "then_load_ms", "step_ms")
    if not 0 <= milliseconds <= 1e9 or (is_needed and milliseconds == 0):
        lower = "above 0" if is_needed else "from 0"
        raise OptionError(f"{option}: expected milliseconds {lower} up to 1e9, got {milliseconds:g}")
    return milliseconds / 1e3
