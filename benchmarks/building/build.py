"""Compare the speed of `presize build` with the codec limit, a typical LMDB script, and FFCV's writer.

    python benchmarks/building/build.py PHOTOS --ffcv-python FFCV_ENV/bin/python

Makes a class-folder tree of hard links to the JPEGs below PHOTOS, then runs every variant once per round, in random
order, each in its own process, with the page cache warm. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import builds, measuring, rates
from shared.conditions import conditions, find_photos

LIMIT = "codec limit"
STOCK = "stock LMDB script"
FFCV = "FFCV's writer"
BUILD = "presize build"
START_UP = "presize start-up"
"""The variants. START_UP is a build of a few images with the same command. FFCV needs --ffcv-python."""

WORKING = "presize build, without start-up"
WHOLE = "presize build, whole command"
"""Other times of BUILD: the whole command, and the whole command minus START_UP."""

_START_UP_IMAGES_A_PROCESS = 2


def variants(options: argparse.Namespace, tree: Path, few: Path) -> dict[str, builds.Variant]:
    procs, size = str(options.procs), str(options.size)
    out = options.work / "out"
    asked = ("--size", size, "--jobs", procs)

    def peer(script: str, *more: str, python: str | Path = sys.executable) -> builds.Variant:
        command = [str(python), str(builds.PEERS / script), str(tree), "--procs", procs, "--size", size, *more]
        return builds.Variant(command, out, "images")

    found = {
        LIMIT: peer("codec_limit.py"),
        STOCK: peer("stock_lmdb.py", "--out", str(out)),
        BUILD: builds.presize_build(tree, out, *asked),
        START_UP: builds.presize_build(few, out, *asked),
    }
    if options.ffcv_python is None:
        print("skipping FFCV's writer: needs --ffcv-python", file=sys.stderr)
    else:
        found[FFCV] = peer("ffcv_write.py", "--out", str(out), python=options.ffcv_python)
    return found


def images_per_s(rows: list[rates.Row]) -> dict[str, list[float]]:
    """Return the rate of each line of the table in each round."""

    def rate(variant: str, column: str = "seconds", less: str | None = None) -> list[float]:
        mine = rates.select(rows, variant=variant)
        start_up = rates.column(rates.select(rows, variant=less), column) if less else [0.0] * len(mine)
        seconds = zip(rates.column(mine, "images"), rates.column(mine, column), start_up, strict=True)
        return [images / (spent - start) for images, spent, start in seconds]

    found = {
        LIMIT: rate(LIMIT),
        WORKING: rate(BUILD, "process_seconds", less=START_UP),
        BUILD: rate(BUILD),
        WHOLE: rate(BUILD, "process_seconds"),
        STOCK: rate(STOCK),
        FFCV: rate(FFCV),
    }
    return {name: values for name, values in found.items() if values}


def start_up_s(rows: list[rates.Row]) -> list[float]:
    return rates.column(rates.select(rows, variant=START_UP), "process_seconds")


def table(rows: list[rates.Row]) -> str:
    found = images_per_s(rows)
    others = {LIMIT: "of the codec limit", STOCK: "times the stock script", FFCV: "times FFCV's writer"}
    others = {other: heading for other, heading in others.items() if other in found}
    lines = [
        [name, rates.spread(values, ".0f"), *(rates.times(values, found[other]) for other in others)]
        for name, values in found.items()
    ]
    return rates.table(["", "images/s", *others.values()], lines)


def summary(rows: list[rates.Row]) -> str:
    built = rates.select(rows, variant=BUILD)
    memory, first = max(rates.column(built, "worker_private_mb")), built[0]
    return "\n".join(
        [
            table(rows),
            "",
            f"Start-up (a build of a few images): {rates.spread(start_up_s(rows), '.2f')} s.",
            f"Private memory of a build worker, at most: {memory:.0f} MB.",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, {first['procs']} processes, {first['size']} px, {first['images']} photographs "
            f"({rates.photographs(first)}; {float(first['share_444']):.0%} 4:4:4, {float(first['share_420']):.0%} "
            "4:2:0).",
            f"{rates.machine(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    tree = builds.link_tree(photos, options.work, options.images)
    few = builds.link_tree(photos, options.work, _START_UP_IMAGES_A_PROCESS * options.procs)
    facts = conditions(sorted(tree.rglob("*.jpg")))
    todo = variants(options, tree, few)
    builds.measure(todo[START_UP])  # brings byte code and libraries into the page cache

    def run(name: str) -> Iterator[measuring.Columns]:
        yield {"variant": name, "procs": options.procs, "size": options.size} | builds.measure(todo[name])

    measuring.in_rounds({name: partial(run, name) for name in todo}, options, facts)


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=5)
    arguments.add_argument("--ffcv-python", type=Path, help="interpreter of an environment with FFCV")
    arguments.add_argument("--images", type=int, default=10_000)
    arguments.add_argument("--procs", type=int, default=2)
    arguments.add_argument("--size", type=int, default=256)
    measuring.run(arguments, measure_all, summary)


if __name__ == "__main__":
    main()
