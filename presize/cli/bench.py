"""presize bench."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from presize.cli.group import PATH, Interrupted, InterruptedByTerm, Terminated, choice, cli, examples, parsed
from presize.cli.output import print_text, several_lines
from presize.errors import PresizeError
from presize.formatting import printable
from presize.measure import bench_options as benchoptions
from presize.measure.bench_options import BenchOptions
from presize.options import Size

if TYPE_CHECKING:
    from presize.measure.results import Results


_BENCH = BenchOptions()


@cli.command(
    epilog=examples(
        "presize bench --raw RAW",
        "presize bench --raw RAW --lmdb OUT --model resnet50 --workers 4 --out RESULTS",
    )
)
@click.option(
    "--raw", type=PATH, metavar="DIR", help="Folder of images; presized and lmdb are built from it if not given."
)
@click.option("--presized", type=PATH, metavar="DIR", help="Folder that presize build --to folder made of it.")
@click.option("--lmdb", type=PATH, metavar="OUT", help="Dataset that presize build made of it.")
@click.option(
    "--variant",
    "variants",
    multiple=True,
    type=choice(benchoptions.Variant),
    help="Variants to run.  [default: all]",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    type=choice(benchoptions.BenchModel),
    default=_BENCH.models,
    show_default=True,
    help="Models to train; none measures the loader alone.",
)
@click.option("--device", type=choice(benchoptions.Device), default=_BENCH.device, show_default=True)
@click.option(
    "--workers", multiple=True, type=int, metavar="N", help="Loader processes; may be repeated.  [default: all cores]"
)
@click.option(
    "--pin-memory",
    type=choice(benchoptions.Pinning),
    help="Pinned memory in DataLoaders.  [default: on with CUDA]",
)
@click.option(
    "--prefetch", type=int, default=_BENCH.prefetch, show_default=True, metavar="N", help="Batches ahead per worker."
)
@click.option("--batch", type=int, default=_BENCH.batch, show_default=True, metavar="N", help="Images per batch.")
@click.option(
    "--crop", type=int, default=_BENCH.crop, show_default=True, metavar="PX", help="Side of random crops, in pixels."
)
@click.option(
    "--size",
    metavar="N|WxH",
    callback=parsed(Size.parse),
    help="Size to build what is missing at.  [default: that of the dataset given, or 256]",
)
@click.option("--epochs", type=int, default=_BENCH.epochs, show_default=True, metavar="N", help="Epochs in each run.")
@click.option("--steps", type=int, metavar="N", help="End epochs after N batches.  [default: whole epochs]")
@click.option("--repeats", type=int, default=_BENCH.repeats, show_default=True, metavar="N", help="Runs of each kind.")
@click.option("--cold", is_flag=True, help="Also measure with cold files, dropped from the page cache.")
@click.option("--images", type=int, metavar="N", help="Read N random samples.  [default: all]")
@click.option("--seed", type=int, default=_BENCH.seed, show_default=True, metavar="N", help="Random seed.")
@click.option(
    "--work",
    type=PATH,
    metavar="DIR",
    help="Keep what is built in DIR, for the next run.  [default: a temporary folder]",
)
@click.option(
    "--out", type=PATH, metavar="DIR", help="Write results.json, results.csv and report.html to DIR after every run."
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress; results, warnings and errors stay.")
def bench(
    raw: str | None, presized: str | None, lmdb: str | None, variants: tuple[Any, ...], workers: tuple[int, ...],
    pin_memory: benchoptions.Pinning | None, work: str | None, out: str | None, as_json: bool, quiet: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Measure training from a raw folder, a presized one and LMDB.

    Each run is a process of its own, in random order. --raw alone is enough: the others are built from it.
    """
    from presize.measure.bench import bench as run_bench
    from presize.measure.results import bench_text, to_json

    pinned = None if pin_memory is None else benchoptions.PINNINGS[pin_memory]
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
            roots, BenchOptions(variants=variants or None, workers=workers or None, pin_memory=pinned, **options),
            work=work, out=out, command=shlex.join(["presize", *sys.argv[1:]]),
            on_step=tell, on_results=seen.append,
        )  # fmt: skip
    except KeyboardInterrupt as stop:
        show()
        kept = f"; what was measured is in {out}" if out is not None and seen else ""
        raise (InterruptedByTerm if isinstance(stop, Terminated) else Interrupted)(f"interrupted{kept}") from None
    except PresizeError:
        show()
        raise
    show()
