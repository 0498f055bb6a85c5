"""Common parts of the reading scripts: arguments, the clock, and the line of JSON that they print.

Every loader yields batches of 128 uint8 images of 224×224, each a random crop of a stored image (8 to 100% of its
area, aspect ratio 3:4 to 4:3), resized, and mirrored with probability 1/2.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from common import jpegs

CROP_SIZE = 224
_SHAPES = {(3, CROP_SIZE, CROP_SIZE), (CROP_SIZE, CROP_SIZE, 3)}


def parser(description: str) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("folder", type=Path, help="searched recursively for JPEGs")
    arguments.add_argument("--images", type=int, default=None, metavar="N", help="read N of them, drawn at random")
    arguments.add_argument("--workers", type=int, default=2, help="processes or threads that load")
    arguments.add_argument("--batch", type=int, default=128)
    arguments.add_argument("--epochs", type=int, default=2, help="timed epochs, after one untimed epoch")
    arguments.add_argument("--limit", type=int, default=None, metavar="N", help="end an epoch after N batches")
    return arguments


def with_store(arguments: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the option of a library that reads its own files."""
    arguments.add_argument("--store", type=Path, required=True, help="the library's files; written if missing")
    return arguments


def chosen(options: argparse.Namespace) -> list[str]:
    """Return the files to read, the same for each call. Raises SystemExit unless they fill one batch per worker."""
    names = jpegs(options.folder)
    if options.images is not None and options.images < len(names):
        names = sorted(random.Random(0).sample(names, options.images))
    if len(names) < options.batch * options.workers:
        raise SystemExit(f"{options.folder}: {len(names)} images do not fill a batch of {options.batch} per worker")
    return names


def contents(name: str) -> bytes:
    with open(name, "rb", buffering=0) as file:
        return file.read()


def make_once(store: Path, write: Callable[[Path], object]) -> Path:
    """Call `write` with a temporary path and rename it to `store`, unless `store` exists."""
    if not store.exists():
        unfinished = store.with_name(f"unfinished-{store.name}")
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        unfinished.unlink(missing_ok=True)
        store.parent.mkdir(parents=True, exist_ok=True)
        write(unfinished)
        unfinished.rename(store)
    return store


@dataclass(frozen=True)
class Epoch:
    images: int
    seconds: float
    first_batch_s: float


def time_epoch(loader: Iterable[Any], batches: int | None = None) -> Epoch:
    """Time an epoch from requesting its iterator to its last batch, including the start of workers."""
    images, first_batch_s = 0, 0.0
    start = time.perf_counter()
    for batch in islice(loader, batches):
        first_batch_s = first_batch_s or time.perf_counter() - start
        images += len(batch[0])
    return Epoch(images, time.perf_counter() - start, first_batch_s)


def check(batch: Any, options: argparse.Namespace) -> None:
    """Raise SystemExit unless a batch has the shape and type of all variants."""
    shape, kind = tuple(batch[0].shape), str(batch[0].dtype).removeprefix("torch.")
    if shape[0] != options.batch or shape[1:] not in _SHAPES or kind != "uint8" or len(batch[1]) != shape[0]:
        raise SystemExit(f"expected {options.batch} uint8 images of {CROP_SIZE}×{CROP_SIZE}, got {kind} {shape}")


def run(make_loader: Callable[[], Iterable[Any]], options: argparse.Namespace, *packages: str) -> None:
    """Read one untimed epoch, in which FFCV compiles, then the timed epochs, and print the result.

    Args:
        make_loader: function that returns the loader.
        options: options of parser().
        packages: packages whose versions are reported.
    """
    start = time.perf_counter()
    loader = make_loader()
    made_s = time.perf_counter() - start
    checked = _Checked(loader, options)
    warm_up = time_epoch(checked, options.limit)
    report([time_epoch(loader, options.limit) for _ in range(options.epochs)], made_s + warm_up.first_batch_s, packages)


class _Checked:
    def __init__(self, loader: Iterable[Any], options: argparse.Namespace) -> None:
        self.loader, self.options = loader, options

    def __iter__(self) -> Any:
        for batch in self.loader:
            if len(batch[0]) == self.options.batch:  # the last batch may be smaller
                check(batch, self.options)
            yield batch


def report(epochs: list[Epoch], start_s: float, packages: Iterable[str]) -> None:
    """Print the result. `start_s` is the time from before the loader's creation to its first batch."""
    facts = {
        "images": sum(epoch.images for epoch in epochs),
        "seconds": round(sum(epoch.seconds for epoch in epochs), 4),
        "first_batch_s": round(median(epoch.first_batch_s for epoch in epochs), 4),
        "start_s": round(start_s, 3),
        "versions": " ".join(f"{name}={version(name)}" for name in packages),
    }
    print(json.dumps(facts), flush=True)
