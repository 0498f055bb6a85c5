"""presize bench."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from presize.cli.group import Interrupted, command, json_option, progress_option
from presize.cli.option_groups import PATH, choice, given, stated
from presize.cli.output import print_text, several_lines
from presize.errors import PresizeError
from presize.formatting import printable
from presize.measure.bench_options import PINNINGS, BenchOptions, Pinning

if TYPE_CHECKING:
    from presize.measure.results import Results


def folder(name: str, help: str, metavar: str = "DIR") -> click.Option:
    return click.Option([f"--{name}"], type=PATH, metavar=metavar, help=help)


PARAMETERS = [
    folder("raw", "Folder of images; --presized and --lmdb are built from it if not given."),
    folder("presized", "Folder built from RAW by presize build --to folder."),
    folder("lmdb", "Dataset built from RAW by presize build.", "OUT"),
    *stated(BenchOptions),
    click.Option(["--pin-memory"], type=choice(Pinning), help="Pinned memory.  [default: on with cuda, xpu]"),
    folder("work", "Keep built datasets in DIR for the next run.  [default: a temporary folder]"),
    folder("out", "Write results.json, results.csv and report.html to DIR after every run."),
]


@command(
    "presize bench --raw RAW",
    "presize bench --raw RAW --lmdb OUT --model resnet50 --workers 4 --out RESULTS",
    params=PARAMETERS,
)
@json_option
@progress_option
def bench(
    raw: str | None, presized: str | None, lmdb: str | None, pin_memory: Pinning | None, work: str | None,
    out: str | None, as_json: bool, quiet: bool, **typed: Any,
) -> None:  # fmt: skip
    """Compare training from raw files, presized files and LMDB.

    Each run is a separate process; the order of runs is random. With --raw only, the others are built from it.
    """
    from presize.measure.bench import bench as run_bench
    from presize.measure.results import bench_text, to_json

    pinned = None if pin_memory is None else PINNINGS[pin_memory]
    roots = {name: root for name, root in (("raw", raw), ("presized", presized), ("lmdb", lmdb)) if root is not None}
    seen: list[Results] = []

    def show() -> None:
        if seen:
            print_text(to_json(seen[-1]).rstrip("\n") if as_json else several_lines(bench_text(seen[-1])))

    def tell(step: str) -> None:
        if not quiet:
            click.echo(printable(step), err=True)

    try:
        run_bench(
            roots, given(BenchOptions, typed, pin_memory=pinned),
            work=work, out=out, command=shlex.join(["presize", *sys.argv[1:]]),
            on_step=tell, on_results=seen.append,
        )  # fmt: skip
    except KeyboardInterrupt as stop:
        show()
        kept = f"results so far are in {out}" if out is not None and seen else ""
        raise Interrupted(stop, kept) from None
    except PresizeError:
        show()
        raise
    show()
