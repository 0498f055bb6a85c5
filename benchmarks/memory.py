"""The private memory of loader workers, epoch by epoch, of a small dataset and of a large one.

    python benchmarks/memory.py PHOTOS

Builds 256 px datasets of hard links to the JPEGs below PHOTOS, and reads them for some epochs, each way in a
process of its own. What counts is what no other process has (Private_Clean and Private_Dirty in
/proc/PID/smaps), without the pages of the shards and of the index, which are the page cache's, and without the
batches, which Loader and its workers share: all of them count as private where one process alone has touched them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import rates
from build import link_tree
from conditions import find_photos, machine

_HERE = Path(__file__).parent
READERS = ("Loader", "DataLoader")


def private_bytes(pid: int, root: Path) -> int:
    """That only this process has, files below `root` and batches apart."""
    total, counted = 0, True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name = line.split()[0]
        if not name.endswith(":"):  # a new mapping
            counted = str(root) not in line and "memfd:presize-loader" not in line
        elif counted and name in ("Private_Clean:", "Private_Dirty:"):
            total += int(line.split()[1]) << 10
    return total


def read(root: Path, reader: str, context: str, epochs: int) -> list[float]:
    """MB of the worker that has most, after each epoch."""
    import torch

    from presize.datasets import LMDBDataset, Loader, RandomResizedCrop, make_loader

    torch.set_num_threads(1)
    dataset = LMDBDataset(root, crop=RandomResizedCrop(224), flip=0.5, decode="tensor")
    if reader == "Loader":
        batches = Loader(dataset, 128, shuffle=True, workers=2, context=context)
    else:
        batches = make_loader(dataset, 128, shuffle=True, workers=2, multiprocessing_context=context)
    seen = []
    for _ in range(epochs):
        for _batch in batches:
            pass
        workers = [child.pid for child in multiprocessing.active_children()]
        seen.append(max(private_bytes(pid, root) for pid in workers if pid is not None) / 1e6)
    return seen


def table(rows: list[rates.Row]) -> str:
    lines = [
        "| reader | start | images | epochs | MB after epoch 2 | after the last | most |",
        "|---|---|---|---|---|---|---|",
    ]
    for reader, context, images in product(READERS, ("fork", "spawn"), sorted({int(row["images"]) for row in rows})):
        found = [
            float(row["worker_private_mb"])
            for row in rows
            if (row["reader"], row["context"], int(row["images"])) == (reader, context, images)
        ]
        lines.append(
            f"| {reader} | {context} | {images} | {len(found)} | {found[1]:.1f} | {found[-1]:.1f} | {max(found):.1f} |"
        )
    first = rows[0]
    lines += [
        "",
        f"{first['date']}. {first['cpu']}, {first['cores']} cores, {first['kernel']}, Python {first['python']}.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="PHOTOS", help="searched recursively for JPEGs")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "presize-benchmark"))
    parser.add_argument("--images", default="500,10000", metavar="N,N")
    parser.add_argument("--epochs", default="20,3", metavar="N,N", help="of each of these")
    parser.add_argument("--csv", type=Path, default=_HERE / "results" / "memory.csv", help="replaced")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        root, reader, context, epochs = options.one
        print(json.dumps(read(Path(root), reader, context, int(epochs))))
        return
    photos = find_photos(options.source)
    rows: list[dict[str, object]] = []
    for images, epochs in zip(map(int, options.images.split(",")), map(int, options.epochs.split(",")), strict=True):
        root = options.work.resolve() / f"memory-{images}"
        tree = link_tree(photos, options.work, images)
        if not (root / "manifest.json").exists():
            command = [str(Path(sys.executable).with_name("presize")), "build", str(tree), str(root), "--size", "256"]
            subprocess.run(command, check=True)
        for reader, context in product(READERS, ("fork", "spawn")):
            command = [sys.executable, __file__, ".", "--one", str(root), reader, context, str(epochs)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            for epoch, private_mb in enumerate(json.loads(done.stdout.splitlines()[-1])):
                rows.append(
                    {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "reader": reader}
                    | {"context": context, "images": images, "workers": 2, "batch": 128, "epoch": epoch}
                    | {"worker_private_mb": round(private_mb, 2)}
                    | machine(root)
                )
            rates.write(options.csv, rows)
    print(table(rates.read(options.csv)))


if __name__ == "__main__":
    main()
