"""Compare the predictions of `presize build --dry-run` with the builds.

    python benchmarks/building/estimate.py PHOTOS

Makes three folders from the JPEGs below PHOTOS: hard links to them; some of them enlarged to 12 megapixels; small files
of several formats, a few of which are broken or not images. Runs the dry run and then the build of each folder once per
round, in random order. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import builds, measuring, processes, rates
from shared.conditions import conditions, find_photos

_FOLDERS = ("photographs", "12 megapixels", "small, mixed formats")
_LARGE = (4000, 3000)
_LARGE_FILES, _LARGE_LINKS = 40, 240
_SMALL_FILES = 4000
_SMALL_SIDES = (48, 320)
_SMALL_FORMATS = ("png", "jpg", "webp", "png", "bmp")


def large(photos: list[Path], work: Path) -> Path:
    """Create 12-megapixel JPEGs of quality 92, 4:2:0, as cameras write them, with six links to each."""
    made = work / f"large-{_LARGE_FILES}"
    if not made.exists():
        unfinished = _fresh(made.with_name("unfinished"))
        for number, path in enumerate(photos[:: max(1, len(photos) // _LARGE_FILES)][:_LARGE_FILES]):
            with Image.open(path) as photo:
                enlarged = photo.convert("RGB").resize(_LARGE, Image.Resampling.LANCZOS)
            enlarged.save(unfinished / f"{number:04}.jpg", quality=92, subsampling="4:2:0")
        unfinished.rename(made)
    return builds.link_tree(sorted(made.iterdir()), work, _LARGE_LINKS)


def small(photos: list[Path], work: Path) -> Path:
    """Create images of 48 to 320 px along the longer side; one file in 50 is truncated, one in 50 is a text file."""
    made = work / f"small-{_SMALL_FILES}"
    if made.exists():
        return made
    unfinished, draw = _fresh(made.with_name("unfinished")), random.Random(0)
    for number in range(_SMALL_FILES):
        if number % 50 == 1:
            (unfinished / f"{number:05}.txt").write_text("not an image\n" * draw.randrange(1, 2000))
            continue
        path = unfinished / f"{number:05}.{draw.choice(_SMALL_FORMATS)}"
        side = draw.randint(*_SMALL_SIDES)
        with Image.open(photos[number % len(photos)]) as photo:
            photo.draft("RGB", (side, side))
            photo.thumbnail((side, side))
            photo.convert("RGB").save(path)
        if number % 50 == 2:
            os.truncate(path, path.stat().st_size // 2)
    return unfinished.rename(made)


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def measure(name: str, source: Path, options: argparse.Namespace) -> Iterator[measuring.Columns]:
    """Measure a dry run and the build that it predicts."""
    for path in source.rglob("*"):
        if path.is_file():
            path.read_bytes()  # into the page cache
    out = options.work / "out"
    asked = ["--size", str(options.size), "--jobs", str(options.procs)]
    command = [builds.PRESIZE, "build", str(source), str(out), *asked, "--json"]
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    dry = processes.run([*command, "--dry-run"])
    predicted: dict[str, Any] = json.loads(dry.output)
    built = processes.run(command)
    seconds = json.loads(built.output)["seconds"]
    nbytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    shutil.rmtree(out)
    yield {
        "folder": name,
        "procs": options.procs,
        "size": options.size,
        "files": predicted["samples"],
        "tried": predicted["tried"],
        "dry_run_s": round(dry.seconds, 3),
        "predicted_bytes": predicted["bytes"],
        "bytes": nbytes,
        "predicted_s": predicted["seconds"],
        "seconds": seconds,
        "size_ratio": round(predicted["bytes"] / nbytes, 4),
        "time_ratio": round(predicted["seconds"] / seconds, 4),
        "predicted_cpu_s": predicted["cpu_seconds"],
        "cpu_seconds": round(built.cpu_seconds, 3),
        "cpu_ratio": round(predicted["cpu_seconds"] / built.cpu_seconds, 4),
        "other_cpu": round(max(dry.other_cpu, built.other_cpu), 3),
    }


def summary(rows: list[rates.Row]) -> str:
    """Format the table. Ratios are predicted to actual."""
    heads = ["folder", "files", "tried, s", "size, MB: predicted", "actual", "ratio", "time, s: predicted", "actual"]
    lines = []
    for name in _FOLDERS:
        mine = rates.select(rows, folder=name)

        def spread(column: str, pattern: str, scale: float = 1, mine: list[rates.Row] = mine) -> str:
            return rates.spread([value / scale for value in rates.column(mine, column)], pattern)

        lines.append(
            [
                name,
                mine[0]["files"],
                f"{spread('tried', '.0f')}, {spread('dry_run_s', '.1f')}",
                spread("predicted_bytes", ".1f", 1e6),
                spread("bytes", ".1f", 1e6),
                spread("size_ratio", ".2f"),
                spread("predicted_s", ".1f"),
                spread("seconds", ".1f"),
                spread("time_ratio", ".2f"),
                spread("cpu_ratio", ".2f"),
            ]
        )
    first = rows[0]
    return "\n".join(
        [
            rates.table([*heads, "ratio", "CPU time: ratio"], lines),
            "",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, {first['procs']} processes, {first['size']} px.",
            f"{rates.machine(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    linked = builds.link_tree(photos, options.work, options.images)
    folders = (linked, large(photos, options.work), small(photos, options.work))
    variants = {name: partial(measure, name, folder, options) for name, folder in zip(_FOLDERS, folders, strict=True)}
    measuring.in_rounds(variants, options, conditions(photos), progress="time_ratio")


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=3)
    arguments.add_argument("--images", type=int, default=4000, help="links to unchanged photographs")
    arguments.add_argument("--procs", type=int, default=2)
    arguments.add_argument("--size", type=int, default=256)
    measuring.run(arguments, measure_all, summary, minutes=2)


if __name__ == "__main__":
    main()
