"""Compare ImageFolder with LMDBDataset in the data loading of well-known training scripts, where one line changes.

    python benchmarks/training/scripts.py PHOTOS

Presizes hard links to the JPEGs below PHOTOS to 256 px, and reads them through the transforms of eight scripts
(benchmarks/peers/script_read.py), in batches of 128 from two workers of a plain DataLoader, with the page cache warm:
the presized files through ImageFolder, and LMDB through LMDBDataset, without fuse and with fuse=True. Each variant runs
once per round, in random order, in its own process. Needs torchvision in presize's environment, and timm for its
transform. Prints a table; asserts nothing.
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

SCRIPTS = {
    "classic": "torchvision: crop, flip, ToTensor, Normalize",
    "evaluation": "torchvision: Resize(256), CenterCrop(224), ToTensor, Normalize",
    "timm": "timm: create_transform(is_training=True)",
    "mae": "MAE: the same as torchvision's, bicubic",
    "randaugment": "torchvision: crop, flip, RandAugment",
    "simclr": "SimCLR: two views with jitter and blur",
    "moco": "MoCo v2: two views with jitter and blur",
    "dino": "DINO: two large views and eight small ones",
}


def measure(command: list[str], script: str, reads: str) -> Iterator[measuring.Columns]:
    finished = processes.run(command)
    printed = json.loads(finished.output.splitlines()[-1])
    images = printed["images"]
    yield {
        "script": script,
        "reads": reads,
        **printed,
        "images_per_s": round(images / printed["seconds"], 1),
        "cpu_ms": round(1e3 * printed["cpu_seconds"] / images, 4),
        "other_cpu": round(finished.other_cpu, 3),
    }


READS = {"lmdb": "LMDBDataset", "fused": "fuse=True"}


def against_imagefolder(rows: list[rates.Row], column: str, form: str) -> str:
    """Format a table of ImageFolder's images/s, or CPU time, and the improvement factors of the others."""
    lines = []
    for script, name in SCRIPTS.items():
        folder = rates.column(rates.select(rows, script=script, reads="folder"), column)
        others = [rates.column(rates.select(rows, script=script, reads=reads), column) for reads in READS]
        if folder:
            pairs = [(folder, other) if column == "cpu_ms" else (other, folder) for other in others]
            lines.append(
                [name, rates.spread(folder, form), *(rates.times(*pair) if all(pair) else "" for pair in pairs)]
            )
    unit = "CPU ms per image" if column == "cpu_ms" else "images/s"
    return rates.table(
        ["script", f"ImageFolder, {unit}", *(f"{words}, improvement factor" for words in READS.values())], lines
    )


def summary(rows: list[rates.Row]) -> str:
    first = rows[0]
    return "\n".join(
        [
            against_imagefolder(rows, "images_per_s", ".0f"),
            "",
            against_imagefolder(rows, "cpu_ms", ".2f"),
            "",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, photographs: {rates.photographs(first)}.",
            f"{rates.machine(first)}, {rates.versions(rows)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    tree = builds.link_tree(find_photos(options.source), options.work, options.images)
    lmdb = builds.build_once(tree, options.work / "workers" / f"{tree.name}-256", "--size", "256").absolute()
    files = lmdb.with_name(f"{lmdb.name}-files")
    if not files.exists():
        subprocess.run([builds.PRESIZE, "export", str(lmdb), str(files)], check=True, stdout=sys.stderr)
    variants = {}
    for script in options.scripts:
        epochs = options.epochs * (1 if script in ("simclr", "moco", "dino") else 2)
        for reads in ("folder", *READS):
            command = [sys.executable, str(builds.PEERS / "script_read.py"), str(files if reads == "folder" else lmdb)]
            command += ["--transform", script, "--reads", reads]
            command += ["--epochs", str(epochs), "--workers", str(options.workers), "--batch", str(options.batch)]
            variants[f"{script}, {reads}"] = partial(measure, command, script, reads)
    measuring.in_rounds(variants, options, bench_runs.facts(tree))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=5)
    arguments.add_argument("--scripts", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    arguments.add_argument("--images", type=int, default=1024)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--batch", type=int, default=128)
    arguments.add_argument("--epochs", type=int, default=1, help="timed epochs; twice as many for fast scripts")
    measuring.run(arguments, measure_all, summary, minutes=30)


if __name__ == "__main__":
    main()
