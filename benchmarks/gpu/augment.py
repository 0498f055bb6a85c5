"""Compare augmentation by the workers with augmentation of whole batches by the GPU: the same plain torch code on both.

    python benchmarks/gpu/augment.py PHOTOS

Presizes hard links to the JPEGs below PHOTOS to 256 px, and reads batches from LMDB, without a model. The augmentation
is crop, flip and colour jitter. If the device crops, workers resize whole images to 256×256. Each variant runs once per
round, in random order, in its own process, with the page cache warm. Prints a table; asserts nothing. `--device cpu` is
a dry run.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.datasets import LMDBDataset, RandomResizedCrop, Resize, collate, make_loader
from presize.datasets.timing.epochs import NoModel, resident_s, time_epoch
from presize.datasets.timing.variants import FLIP, Chosen
from shared import bench_runs, builds, measuring, processes, rates
from shared.conditions import find_photos

CROP_SIZE, WHOLE_SIZE = 224, 256
"""Sides of the crops, and of the whole images that the device crops, in pixels."""

_JITTER = 0.4
_GREY = (0.299, 0.587, 0.114)
_STEPS, _EPOCHS = 8, 2
"""Minimum steps per epoch, raised to four per worker, and epochs. The first epoch is not counted."""

PLACES = {
    "workers": "all by the workers",
    "jitter": "colour by the device, crop and flip by the workers",
    "device": "all by the device",
}


def jitter(images: torch.Tensor) -> torch.Tensor:
    """Scale brightness, contrast and saturation of each image by 0.6 to 1.4, in this order, as torchvision's
    ColorJitter(0.4, 0.4, 0.4) does in random order. `images`: (B, 3, height, width), from 0 to 1."""
    brightness, contrast, saturation = images.new_empty(3, len(images), 1, 1, 1).uniform_(1 - _JITTER, 1 + _JITTER)
    images = (images * brightness).clamp_(0, 1)
    images = torch.lerp(grey(images).mean((1, 2, 3), keepdim=True), images, contrast).clamp_(0, 1)
    return torch.lerp(grey(images), images, saturation).clamp_(0, 1)


def grey(images: torch.Tensor) -> torch.Tensor:
    return (images * images.new_tensor(_GREY).reshape(1, 3, 1, 1)).sum(1, keepdim=True)


def crop_and_flip(images: torch.Tensor) -> torch.Tensor:
    """Return a random resized crop of each image, mirrored with probability 1/2: bilinear, not antialiased. A box that
    is too large is clipped at the edge; RandomResizedCrop would draw another one."""
    count = len(images)
    area = images.new_empty(count).uniform_(0.08, 1)
    ratio = images.new_empty(count).uniform_(math.log(3 / 4), math.log(4 / 3)).exp()
    sides = torch.stack((area * ratio, area / ratio)).sqrt_().clamp_(max=1)
    middles = (2 * torch.rand_like(sides) - 1) * (1 - sides)
    mirrored = 1 - 2 * torch.randint_like(area, 2)
    theta = images.new_zeros(count, 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = mirrored * sides[0], sides[1]
    theta[:, :, 2] = middles.T
    grid = functional.affine_grid(theta, [count, 3, CROP_SIZE, CROP_SIZE], align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", align_corners=False)


def jittered(samples: Any) -> Any:
    """Collate a batch, and jitter its colours in place. A collate_fn."""
    images, labels = collate(samples)
    images.copy_(jitter(images.float().div_(255)).mul_(255).round_())
    return [images, labels]


class Augment(NoModel):
    """Step without training: the device's part of the augmentation, from uint8 to normalized floats."""

    def __init__(self, place: str, device: torch.device) -> None:
        super().__init__(device)
        self.where = place

    def __call__(self, placed: Any) -> None:
        images = placed[0].float().div_(255)
        if self.where == "device":
            images = crop_and_flip(images)
        if self.where != "workers":
            images = jitter(images)
        images.sub_(0.45).div_(0.22)


def read(place: str, root: Path, device: torch.device, batch: int, workers: int) -> measuring.Columns:
    """Measure a variant. Must run in its own process, because it sets torch's threads."""
    torch.set_num_threads(1)
    crop = Resize(WHOLE_SIZE) if place == "device" else RandomResizedCrop(CROP_SIZE)
    data = LMDBDataset(root, crop=crop, flip=0.0 if place == "device" else FLIP, decode="tensor")
    steps = max(_STEPS, 4 * workers)
    order = Chosen(np.arange(len(data)), len(data), most=steps * batch)
    more: dict[str, Any] = {"collate_fn": jittered} if place == "workers" else {}
    loader = make_loader(data, batch, shuffle=order, num_workers=workers, drop_last=True, **more)
    step = Augment(place, device)
    *_, epoch = (time_epoch(loader, step, warmup_steps=max(1, workers)) for _ in range(_EPOCHS))
    side = WHOLE_SIZE if place == "device" else CROP_SIZE
    noise = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8)
    return {
        "images": epoch.window_images,
        "seconds": round(epoch.window_s, 4),
        "images_per_s": round(epoch.images_per_s, 1),
        "augment_s": round(resident_s(step, [noise.contiguous(memory_format=torch.channels_last)]), 6),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def measure(place: str, root: Path, options: argparse.Namespace) -> Iterator[measuring.Columns]:
    meter = processes.Meter()
    found = processes.apart(read, place, root, torch.device(options.device), options.batch, options.workers)
    named = {"variant": place, "workers": options.workers, "batch": options.batch}
    yield named | found | {"other_cpu": round(meter.other_cpu(), 3)}


def summary(rows: list[rates.Row]) -> str:
    """Format the table. Ratios are within a round."""
    found = {place: rates.select(rows, variant=place) for place in PLACES}
    base, lines = rates.column(found["workers"], "images_per_s"), []
    for place, mine in found.items():
        images = rates.column(mine, "images_per_s")
        milliseconds = [1e3 * seconds for seconds in rates.column(mine, "augment_s")]
        times = rates.times(images, base)
        lines.append([PLACES[place], rates.spread(images, ".0f"), times, rates.spread(milliseconds, ".1f")])
    heads = ["crop, flip, colour jitter", "images/s", "times all by the workers", "ms per batch on the device"]
    first = rows[0]
    said = f"On {first['device']}, batches of {first['batch']}, {rates.workers_text(int(first['workers']))}."
    return "\n".join([rates.table(heads, lines), "", said, bench_runs.closing(rows)])


def measure_all(options: argparse.Namespace) -> None:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch finds no CUDA; use --device cpu for a dry run")
    tree = builds.link_tree(find_photos(options.source), options.work, options.images)
    lmdb = builds.build_once(tree, options.work / "workers" / f"{tree.name}-256", "--size", "256").absolute()
    variants = {said: partial(measure, place, lmdb, options) for place, said in PLACES.items()}
    measuring.in_rounds(variants, options, bench_runs.facts(tree))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=3)
    arguments.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    arguments.add_argument("--images", type=int, default=4096)
    arguments.add_argument("--workers", type=int, default=4)
    arguments.add_argument("--batch", type=int, default=128)
    measuring.run(arguments, measure_all, summary)


if __name__ == "__main__":
    main()
