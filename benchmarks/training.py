"""Runs of presize's own benchmark as variants of those here: what `presize bench` measures, each run in a process of
its own, of any folders, and what their rows say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

import rates
from conditions import conditions
from measuring import Columns

import processes
from presize.measure.bench_options import READS, BenchOptions, Run, Variant
from presize.measure.results import row_of
from presize.measure.stages import Stages
from presize.measure.subprocess_run import run_apart
from presize.system.pagecache import resident_share

LABELS: dict[Variant, str] = {
    "raw": "raw folder",
    "presized": "presized folder",
    "lmdb": "LMDB, LMDBDataset",
    "loader": "LMDB, Loader",
}

MODELS = {"none": "the loader alone", "small": "the small CNN", "resnet50": "ResNet-50"}


def build(source: Path, out: Path, *how: str) -> Path:
    """`out`, built from `source` by the command line, with the arguments `how`; one that is finished stays."""
    presize = Path(sys.executable).with_name("presize")
    command = [str(presize), "build", str(source), str(out), *how, "--no-report", "--overwrite"]
    if not (out / "manifest.json").exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(command, check=True, stdout=sys.stderr)
    return out


def facts(tree: Path) -> Columns:
    """The conditions, of the photographs below `tree`, with torch's version."""
    return conditions(sorted(tree.rglob("*.jpg"))) | {"torch": version("torch")}


def variants_of(
    options: BenchOptions, variants: dict[Variant, Path], what: str = ""
) -> Iterator[tuple[str, partial[Iterator[Columns]]]]:
    """The runs of a round by name, for measuring.in_rounds. `variants`: each with the folder that it reads; `what`
    is in that folder, in words."""
    for run in options.runs(tuple(variants)):
        name = f"{what}: {run}" if what else str(run)
        yield name, partial(measure, replace(run, root=str(variants[run.variant].absolute())), what)


def measure(run: Run, what: str = "") -> Iterator[Columns]:
    """The row of one run."""
    files = [path for path in Path(run.root).rglob("*") if path.is_file()]
    share, meter = resident_share(files), processes.Meter()
    row = row_of(run, 0, share, run_apart(run))
    del row["repeat"]  # the round
    short = {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in row.items()}
    stored = sum(path.stat().st_size for path in files)
    yield (
        {"reads": what or READS[run.variant], "stored_bytes": stored}
        | short
        | {"other_cpu": round(meter.other_cpu(), 3)}
    )


def select(rows: list[rates.Row], **columns: object) -> list[rates.Row]:
    """Those with these values, by round."""
    wanted = {name: str(value) for name, value in columns.items()}
    found = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return sorted(found, key=lambda row: int(row["round"]))


def column(rows: list[rates.Row], name: str) -> list[float]:
    """Without rows that have none."""
    return [float(row[name]) for row in rows if row[name] != ""]


def utilisation(rows: list[rates.Row], others: list[rates.Row]) -> float:
    """U = T_resident / T of `rows`, runs of one kind. `others`: these and the runs of other loaders with the same
    training: T_resident is the median of them all, since no loader has a part in it."""
    resident, copied = (median(column(others, name)) for name in ("resident_s", "copied_s"))
    return Stages(resident, copied, median(column(rows, "step_s"))).stalls.utilisation


def closing(rows: list[rates.Row]) -> str:
    """The lines below a table: what the figures depend on."""
    first = next(row for row in rows if row["batch"])
    rounds = len({row["round"] for row in rows})
    return "\n".join(
        [
            rates.other_work(rows),
            f"{first['date']}, {rounds} rounds, photographs of {first['mean_width']}×{first['mean_height']} and "
            f"{first['mean_kb']} kB in the mean.",
            f"{rates.where(first)}, Python {first['python']}, torch {first['torch']}, presize {first['presize']}.",
        ]
    )
