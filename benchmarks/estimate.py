"""How near `presize build --dry-run` comes to what the build then takes.

    python benchmarks/estimate.py PHOTOS

Makes three folders of the JPEGs below PHOTOS: hard links to them; some of them enlarged to 12 megapixels; small
files of several formats, a few of which are broken or no images. For each runs the dry run and then the build, in
turn, several times. Prints a table; asserts nothing. `python benchmarks/estimate.py --table CSV` prints one again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import measuring
import rates
from build import link_tree
from conditions import conditions, find_photos
from PIL import Image

import processes

_LARGE = (4000, 3000)
_LARGE_FILES, _LARGE_LINKS = 40, 240
_SMALL_FILES = 4000
_SMALL_SIDES = (48, 320)
_SMALL_FORMATS = ("png", "jpg", "webp", "png", "bmp")


def large(photos: list[Path], work: Path) -> Path:
    """12-megapixel JPEGs of quality 92, 4:2:0, as cameras write them, with six links to each."""
    made = work / f"large-{_LARGE_FILES}"
    if not made.exists():
        unfinished = _fresh(made.with_name("unfinished"))
        for number, path in enumerate(photos[:: max(1, len(photos) // _LARGE_FILES)][:_LARGE_FILES]):
            with Image.open(path) as photo:
                enlarged = photo.convert("RGB").resize(_LARGE, Image.Resampling.LANCZOS)
            enlarged.save(unfinished / f"{number:04}.jpg", quality=92, subsampling="4:2:0")
        unfinished.rename(made)
    return link_tree(sorted(made.iterdir()), work, _LARGE_LINKS)


def small(photos: list[Path], work: Path) -> Path:
    """Photographs of 48 to 320 px along the longer side; one file in 50 is cut off, one in 50 is a text."""
    made = work / f"small-{_SMALL_FILES}"
    if made.exists():
        return made
    unfinished, draw = _fresh(made.with_name("unfinished")), random.Random(0)
    for number in range(_SMALL_FILES):
        if number % 50 == 1:
            (unfinished / f"{number:05}.txt").write_text("no image\n" * draw.randrange(1, 2000))
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


def measure(source: Path, out: Path, options: argparse.Namespace) -> dict[str, object]:
    """One dry run and the build that it is about."""
    command = [str(Path(sys.executable).with_name("presize")), "build", str(source), str(out), "--json"]
    command += ["--size", str(options.size), "--jobs", str(options.procs)]
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    predicted = processes.run([*command, "--dry-run"])
    told: dict[str, Any] = json.loads(predicted.output)
    built = processes.run(command)
    seconds = json.loads(built.output)["seconds"]
    nbytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    shutil.rmtree(out)
    return {
        "files": told["samples"],
        "tried": told["tried"],
        "dry_run_s": round(predicted.seconds, 3),
        "predicted_bytes": told["bytes"],
        "bytes": nbytes,
        "predicted_s": told["seconds"],
        "seconds": seconds,
        "size_ratio": round(told["bytes"] / nbytes, 4),
        "time_ratio": round(told["seconds"] / seconds, 4),
        "predicted_cpu_s": told["cpu_seconds"],
        "cpu_seconds": round(built.cpu_seconds, 3),
        "cpu_ratio": round(told["cpu_seconds"] / built.cpu_seconds, 4),
        "other_cpu": round(max(predicted.other_cpu, built.other_cpu), 3),
    }


def table(rows: list[rates.Row]) -> str:
    """Markdown: medians, and least and most in brackets; the ratios are predicted to actual."""
    lines = [
        "| folder | files | tried, in s | size, MB: predicted | actual | ratio | time, s: predicted | actual | ratio |"
        " CPU time: ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["folder"] for row in rows):
        of_it = [row for row in rows if row["folder"] == name]

        def spread(column: str, pattern: str, scale: float = 1, of_it: list[rates.Row] = of_it) -> str:
            return rates.Spread.of([float(row[column]) / scale for row in of_it]).format(pattern)

        cells = [
            of_it[0]["files"],
            f"{spread('tried', '.0f')}, {spread('dry_run_s', '.1f')}",
            spread("predicted_bytes", ".1f", 1e6),
            spread("bytes", ".1f", 1e6),
            spread("size_ratio", ".2f"),
            spread("predicted_s", ".1f"),
            spread("seconds", ".1f"),
            spread("time_ratio", ".2f"),
            spread("cpu_ratio", ".2f"),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: list[rates.Row]) -> str:
    first = rows[0]
    return "\n".join(
        [
            table(rows),
            "",
            rates.other_work(rows),
            f"{first['date']}, {len({row['round'] for row in rows})} rounds, {first['procs']} processes, "
            f"{first['size']} px.",
            f"{rates.where(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    folders = {
        "photographs": link_tree(photos, options.work, options.images),
        "12 megapixels": large(photos, options.work),
        "small, mixed formats": small(photos, options.work),
    }
    facts = conditions(photos)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    rows: list[dict[str, object]] = []
    for number in range(options.repeats):
        for name, folder in folders.items():
            for path in folder.rglob("*"):
                if path.is_file():
                    path.read_bytes()  # into the page cache
            measured = measure(folder, options.work / "out", options)
            rows.append(
                {"date": date, "folder": name, "round": number, "procs": options.procs, "size": options.size}
                | measured
                | facts
            )
            print(
                f"round {number + 1}: {name}: size {measured['size_ratio']}, time {measured['time_ratio']}",
                file=sys.stderr,
            )
            rates.write(options.csv, rows)


def main() -> None:
    arguments = measuring.parser(__doc__, "estimate.csv", repeats=3)
    arguments.add_argument("--images", type=int, default=4000, help="links to the photographs as they are")
    arguments.add_argument("--procs", type=int, default=2)
    arguments.add_argument("--size", type=int, default=256)
    measuring.run(arguments, measure_all, summary)


if __name__ == "__main__":
    main()
