"""Compare presize's `crop=[...]` with other ways to read several views of each image, in one run.

    python benchmarks/reading/views.py PHOTOS --ffcv-python FFCV_SSL_ENV/bin/python

Builds a 256 px dataset of hard links to the JPEGs below PHOTOS and reads it in batches of 64, without workers. In each
round, one process reads short epochs with each variant and each set of views, in random order, with the page cache
warm, and reports their medians. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared import builds, measuring, processes, rates
from shared.conditions import conditions, find_photos

_BATCH = 64
_PASSES = 5
"""Timed epochs of each variant in a round, after an untimed one. They are short, so that a temporary load affects all
variants."""

# (side, scale, count) of random resized crops.
VIEWS = {
    "2 × 224": [(224, (0.08, 1.0), 2)],
    "2 × 224, 8 × 96": [(224, (0.4, 1.0), 2), (96, (0.05, 0.4), 8)],
}
"""Views of SimCLR and of DINO."""

VARIANTS = {
    "views": "presize, `crop=[...]`",
    "apart": "presize, a Loader for each view",
    "full": "decoded in full once, cropped by the same code",
    "pil": "Pillow, decoded in full once",
    "ffcv": "FFCV-SSL",
}


def crops_of(views: str) -> list[Any]:
    from presize.datasets import RandomResizedCrop

    return [RandomResizedCrop(side, scale) for side, scale, count in VIEWS[views] for _ in range(count)]


def read_views(root: Path, crops: Sequence[Any], epoch: int) -> int:
    return _read(root, crops, epoch)


def read_apart(root: Path, crops: Sequence[Any], epoch: int) -> int:
    return max(_read(root, crop, epoch) for crop in crops)


def _read(root: Path, crop: Any, epoch: int) -> int:
    loader = _loader(root, tuple(crop) if isinstance(crop, list) else crop)
    loader.set_epoch(epoch)
    return sum(len(targets) for _, targets in loader)


@cache
def _loader(root: Path, crop: Any) -> Any:
    """Return a Loader that is kept between epochs, as in training."""
    from presize.datasets import LMDBDataset, Loader

    return Loader(LMDBDataset(root), _BATCH, crop=crop, flip=0.5, shuffle=True, num_workers=0)


def read_full(root: Path, crops: Sequence[Any], epoch: int) -> int:
    """Decode in full, then crop, by presize's decoder and resampling."""
    import numpy as np

    from presize.datasets.reading.regions import resample

    def cut(pixels: Any, boxes: Sequence[Any], flips: Sequence[bool], outs: Sequence[Any]) -> None:
        for (top, left, height, width), flip, out in zip(boxes, flips, outs, strict=True):
            resample(np.ascontiguousarray(pixels[top : top + height, left : left + width]), out, flip)

    return _each(root, crops, epoch, lambda data, samples: data.pixels(samples), cut)


def read_pil(root: Path, crops: Sequence[Any], epoch: int) -> int:
    """Resize with Pillow and copy into a batch, as torchvision's transforms of PIL images do."""
    import numpy as np
    from PIL import Image

    def decoded(data: Any, samples: Sequence[int]) -> Iterator[tuple[int, Any]]:
        for at, value in data.values(samples):
            yield at, Image.open(io.BytesIO(value)).convert("RGB")

    def cut(image: Any, boxes: Sequence[Any], flips: Sequence[bool], outs: Sequence[Any]) -> None:
        for (top, left, height, width), flip, out in zip(boxes, flips, outs, strict=True):
            part = image.crop((left, top, left + width, top + height))
            part = part.resize((out.shape[1], out.shape[0]), Image.Resampling.BILINEAR)
            out[:] = np.asarray(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else part)

    return _each(root, crops, epoch, decoded, cut)


def _each(root: Path, crops: Sequence[Any], epoch: int, decode: Callable[..., Any], cut: Callable[..., None]) -> int:
    """Crop the boxes of a Loader, with its flips and in its order."""
    import numpy as np

    from presize.datasets import Shuffled
    from presize.datasets.crops import as_size
    from presize.datasets.reading.draws import uniform
    from presize.store.dataset import Dataset

    data = Dataset(root)
    samples = Shuffled(len(data)).samples(epoch, np.arange(len(data)))
    for start in range(0, len(samples), _BATCH):
        batch = samples[start : start + _BATCH]
        random = [uniform(0, epoch, batch, 1 + crop.draws, view) for view, crop in enumerate(crops)]
        sides = [data.numbers(name)[batch].astype(np.int64) for name in ("height", "width")]
        boxes = [crop.boxes(*sides, numbers[:, 1:]).tolist() for crop, numbers in zip(crops, random, strict=True)]
        flips = [(numbers[:, 0] < 0.5).tolist() for numbers in random]
        outs = [np.empty((len(batch), *as_size(crop.size), 3), np.uint8) for crop in crops]
        for at, image in decode(data, batch.tolist()):
            cut(image, [box[at] for box in boxes], [flip[at] for flip in flips], [out[at] for out in outs])
    return len(samples)


READERS = {"views": read_views, "apart": read_apart, "full": read_full, "pil": read_pil}


def run(root: Path, seed: int) -> list[measuring.Columns]:
    """Measure a round in this process, and return its columns."""
    import cv2
    import torch

    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    order, runs = random.Random(seed), list(product(READERS, VIEWS))
    times: dict[tuple[str, str], list[tuple[float, float]]] = {run: [] for run in runs}
    meter = processes.Meter()
    for number in range(1 + _PASSES):
        for variant, views in order.sample(runs, len(runs)):
            begin_s, cpu_s = time.perf_counter(), time.process_time()
            images = READERS[variant](root, crops_of(views), number)
            times[variant, views].append((time.perf_counter() - begin_s, time.process_time() - cpu_s))
    return [
        {"variant": variant, "views": views}
        | _columns(images, *(median(part) for part in zip(*passes[1:], strict=True)), meter.other_cpu())
        for (variant, views), passes in times.items()
    ]


def _columns(images: int, seconds: float, cpu_seconds: float, other_cpu: float) -> measuring.Columns:
    return {
        "images": images,
        "images_per_s": round(images / seconds, 1),
        "cpu_us": round(cpu_seconds / images * 1e6, 1),
        "other_cpu": round(other_cpu, 3),
    }


def run_ffcv(options: argparse.Namespace, root: Path, views: str) -> measuring.Columns:
    files = root.with_name(f"{root.name}-files")
    if not files.exists():
        subprocess.run([builds.PRESIZE, "export", str(root), str(files)], check=True, stdout=sys.stderr)
    script = builds.PEERS / "ffcv_views.py"
    command = [str(options.ffcv_python), str(script), str(files), "--store", str(root.with_suffix(".beton"))]
    finished = processes.run([*command, "--workers", "1", "--batch", str(_BATCH), "--views", json.dumps(VIEWS[views])])
    printed = json.loads(finished.output.splitlines()[-1])
    return _columns(printed["images"], printed["seconds"], printed["cpu_seconds"], finished.other_cpu)


def measure(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    tree = builds.link_tree(photos, options.work, options.images)
    root = builds.build_once(tree, options.work / f"views-{tree.name}", "--size", "256")
    if options.ffcv_python is None:
        print("skipping ffcv: no interpreter given for peers/ffcv_views.py", file=sys.stderr)

    seeds = itertools.count(options.seed)

    def fresh() -> Iterator[measuring.Columns]:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            yield from pool.submit(run, root, next(seeds)).result()
        if options.ffcv_python is not None:
            yield from ({"variant": "ffcv", "views": views} | run_ffcv(options, root, views) for views in VIEWS)

    measuring.in_rounds({"all": fresh}, options, conditions(photos))


def summary(rows: list[rates.Row]) -> str:
    lines = []
    for views, name in product(VIEWS, VARIANTS):
        found = rates.select(rows, variant=name, views=views)
        if not found:
            continue
        ours, times = (
            rates.column(rates.select(rows, variant="views", views=views), "cpu_us"),
            rates.column(found, "cpu_us"),
        )
        count = sum(count for *_, count in VIEWS[views])
        lines.append(
            [views, VARIANTS[name], rates.spread(times, ".0f"), rates.spread([one / count for one in times], ".0f"),
             rates.times(times, ours)]
        )  # fmt: skip
    first = rows[0]
    heads = ["views", "read by", "CPU µs per image", "CPU µs per view", "times `crop=[...]`"]
    return "\n".join(
        [
            rates.table(heads, lines),
            "",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, {first['images']} images, photographs: {rates.photographs(first)}.",
            f"{rates.machine(first)}, Python {first['python']}.",
        ]
    )


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=7)
    arguments.add_argument("--ffcv-python", type=Path, help="interpreter of an environment with FFCV-SSL")
    arguments.add_argument("--images", type=int, default=256)
    measuring.run(arguments, measure, summary)


if __name__ == "__main__":
    main()
