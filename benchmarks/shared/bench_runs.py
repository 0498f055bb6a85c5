"""Runs of `presize bench` as variants, each in its own process, over any folders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

from presize.measure.bench import run_apart
from presize.measure.bench_options import READS, BenchOptions, Run, Variant
from presize.measure.results import row_of
from presize.measure.stages import Stages
from presize.system.pagecache import resident_share
from shared import processes, rates
from shared.conditions import conditions
from shared.measuring import Columns

MODELS = {"none": "the loader alone", "small": "the small CNN"}


def facts(tree: Path) -> Columns:
    """Return the conditions of the photographs below `tree`, and torch's version."""
    return conditions(sorted(tree.rglob("*.jpg"))) | {"torch": version("torch")}


def variants_of(
    options: BenchOptions, variants: dict[Variant, Path], what: str = ""
) -> Iterator[tuple[str, partial[Iterator[Columns]]]]:
    """Yield the runs of a round by name, for measuring.in_rounds.

    Args:
        options: options of `presize bench`.
        variants: source folder of each variant.
        what: description of that folder's contents.
    """
    for run in options.runs(tuple(variants)):
        name = f"{what}: {run}" if what else str(run)
        yield name, partial(measure, replace(run, root=str(variants[run.variant].absolute())), what)


def measure(run: Run, what: str = "") -> Iterator[Columns]:
    """Yield the row of one run."""
    files = [path for path in Path(run.root).rglob("*") if path.is_file()]
    share, meter = resident_share(files), processes.Meter()
    row = row_of(run, 0, share, run_apart(run))
    del row["repeat"]  # in_rounds adds the round
    short = {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in row.items()}
    stored = sum(path.stat().st_size for path in files)
    yield (
        {"reads": what or READS[run.variant], "stored_bytes": stored}
        | short
        | {"other_cpu": round(meter.other_cpu(), 3)}
    )


def utilisation(rows: list[rates.Row], others: list[rates.Row]) -> float:
    """Return U = T_resident / T of `rows`.

    Args:
        rows: runs of one variant.
        others: these and the runs of other loaders with the same training. T_resident is the median of all of them,
            because it does not depend on the loader.
    """
    resident, copied = (median(rates.column(others, name)) for name in ("resident_s", "copied_s"))
    return Stages(resident, copied, median(rates.column(rows, "step_s"))).stalls.utilisation


def closing(rows: list[rates.Row]) -> str:
    """Format the conditions, for the lines below a table."""
    first = next(row for row in rows if row["batch"])
    return "\n".join(
        [
            rates.other_work(rows),
            f"{rates.rounds(rows)}, photographs: {rates.photographs(first)}.",
            f"{rates.machine(first)}, Python {first['python']}, torch {first['torch']}, presize {first['presize']}.",
        ]
    )
