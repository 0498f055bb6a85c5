"""Compare torchvision's transforms on ImageFolder, on LMDB, and on LMDB with fuse=True.

    python benchmarks/training/fuse.py PHOTOS

Presizes hard links to the JPEGs below PHOTOS to 256 px, and reads them through the transforms of torchvision's
reference training script: RandomResizedCrop(224), RandomHorizontalFlip, ToDtype, Normalize, batches of 128 float32
images, in the same plain DataLoader, with the page cache warm. Each variant runs once per round, in random order, in
its own process. Needs torchvision in presize's environment. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import bench_runs, builds, measuring, processes, rates
from shared.conditions import find_photos

VARIANTS = {
    "folder": "ImageFolder, the presized folder, `DataLoader`",
    "lmdb": "`LMDBDataset(transform=)`, `DataLoader`",
    "fused": "`LMDBDataset(transform=, fuse=True)`, `DataLoader`",
    "loader": "the same in `Loader`",
    "uint8": "uint8, not normalized, `make_loader`",
}
STAGES = {"stages-folder": "ImageFolder", "stages-lmdb": "LMDBDataset"}


def measure(command: list[str], variant: str) -> Iterator[measuring.Columns]:
    """Yield the row of a variant, or one row per stage."""
    finished = processes.run([*command, variant])
    printed = json.loads(finished.output.splitlines()[-1])
    common = {"variant": variant, "other_cpu": round(finished.other_cpu, 3), "versions": printed["versions"]}
    for stage, ms in printed.get("stages", {}).items():
        yield {**common, "stage": stage, "cpu_ms": ms, "images_per_s": round(1e3 / max(ms, 1e-3), 1)}
    if "images" in printed:
        rate = round(printed["images"] / printed["seconds"], 1)
        yield {**common, "images": printed["images"], "seconds": printed["seconds"], "images_per_s": rate}


def summary(rows: list[rates.Row]) -> str:
    folder = rates.column(rates.select(rows, variant="folder"), "images_per_s")
    lines = []
    for variant, words in VARIANTS.items():
        rate = rates.column(rates.select(rows, variant=variant), "images_per_s")
        if rate:
            lines.append([words, rates.spread(rate, ".0f"), rates.times(rate, folder)])
    staged = [row for row in rows if row["stage"]]
    names = list(dict.fromkeys(row["stage"] for row in staged))
    stage_lines = [
        [
            words,
            *(
                rates.spread(rates.column(rates.select(staged, variant=variant, stage=name), "cpu_ms"), ".2f")
                for name in names
            ),
        ]
        for variant, words in STAGES.items()
    ]
    return "\n".join(
        [
            rates.table(["reads", "images/s", "times ImageFolder"], lines),
            "",
            rates.table(["CPU ms per image", *names], stage_lines),
            "",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, photographs: {rates.photographs(rows[0])}.",
            f"{rates.machine(rows[0])}, {rows[0]['versions']}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    tree = builds.link_tree(find_photos(options.source), options.work, options.images)
    lmdb = builds.build_once(tree, options.work / "workers" / f"{tree.name}-256", "--size", "256").absolute()
    files = lmdb.with_name(f"{lmdb.name}-files")
    if not files.exists():
        subprocess.run([builds.PRESIZE, "export", str(lmdb), str(files)], check=True, stdout=sys.stderr)
    script = str(builds.PEERS / "fuse_read.py")
    variants = {}
    for variant in [*VARIANTS, *STAGES]:
        is_folder = variant in ("folder", "stages-folder")
        epochs = options.epochs if variant in ("folder", "lmdb") else 4 * options.epochs
        command = [sys.executable, script, str(files if is_folder else lmdb), "--epochs", str(epochs)]
        command += ["--workers", str(options.workers), "--batch", str(options.batch)]
        variants[variant] = partial(measure, command, variant)
    measuring.in_rounds(variants, options, bench_runs.facts(tree))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=5)
    arguments.add_argument("--images", type=int, default=1024)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--batch", type=int, default=128)
    arguments.add_argument("--epochs", type=int, default=2, help="timed epochs; four times as many for fast variants")
    measuring.run(arguments, measure_all, summary, minutes=3)


if __name__ == "__main__":
    main()
