"""What a mask beside each image adds to a worker's time in a build, against the time that its own pixels take.

    python benchmarks/building/pairs.py PHOTOS

Each photograph gets a palette PNG of its size, of areas as a segmentation has them. A round is one shard of a build of
the photographs alone, the same shard of a build with masks, and the masks of its samples alone, which are read,
decoded, resized and encoded without any build; in random order, in this process, since processes and minutes differ by
more than what is asked for. Times are CPU seconds. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.build.run import plan_build
from presize.build.state import Place, State
from presize.build.tasks.task import Task, write_shard
from presize.build.work import find_work
from presize.codecs.paired.companion import transcode_companion
from presize.options import BuildOptions, Companion, ImageOptions, RunOptions, Size, SourceOptions
from shared import measuring, processes, rates
from shared.conditions import conditions, find_photos

_AREA = 40
"""The mean side of an area of one class, in pixels."""


def make_pairs(photos: list[Path], root: Path, images: int) -> Path:
    """A folder with `images` hard links to `photos` and to a mask of each; made once."""
    if root.exists():
        return root
    unfinished = root.with_suffix(".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name in ("images", "masks"):
        (unfinished / name).mkdir(parents=True)
    for number in range(images):
        photo, mask = photos[number % len(photos)], unfinished / "masks" / f"{number:07d}.png"
        os.link(photo, unfinished / "images" / f"{number:07d}.jpg")
        if number >= len(photos):
            os.link(mask.with_name(f"{number % len(photos):07d}.png"), mask)
            continue
        with Image.open(photo) as image:
            width, height = ImageOps.exif_transpose(image).size
        save_mask(mask, height, width, number)
    unfinished.rename(root)
    return root


def save_mask(path: Path, height: int, width: int, seed: int) -> None:
    """Areas around random points, each of one of 21 classes, as a palette PNG."""
    rng = np.random.default_rng(seed)
    points = rng.random((max(height * width // _AREA**2, 1), 2)) * (height, width)
    rows, columns = np.mgrid[0:height:4, 0:width:4]
    places = np.stack([rows, columns], axis=2)[:, :, np.newaxis]
    nearest = ((places - points) ** 2).sum(axis=3).argmin(axis=2).repeat(4, 0).repeat(4, 1)[:height, :width]
    image = Image.fromarray((nearest % 21).astype(np.uint8), "P")
    image.putpalette(rng.integers(0, 256, 768, np.uint8).tobytes())
    image.save(path)


def tasks(source: Path, out: Path, options: BuildOptions) -> list[Task]:
    """One for each shard of a build into `out`, which is begun anew."""
    shutil.rmtree(out, ignore_errors=True)
    todo = plan_build(source, options, SourceOptions(labels="none"))
    return find_work(
        todo, RunOptions(), Place.of(out, options.image.sizes), State(todo.identity, 0), None, None
    ).waiting


def masks_alone(source: Path, task: Task, options: ImageOptions) -> None:
    for name in task.companions[0].paths.split("\0"):
        path = source / name
        with Image.open(path) as image:
            found = Size(image.height, image.width)
        transcode_companion(path.read_bytes(), found, options)


def summary(rows: list[rates.Row]) -> str:
    found = {name: rates.select(rows, variant=name) for name in ("images", "masks", "pairs")}
    per_image = {
        name: [1e6 * float(row["cpu_seconds"]) / float(row["images"]) for row in each] for name, each in found.items()
    }
    sums = [image + mask for image, mask in zip(per_image["images"], per_image["masks"], strict=True)]
    ratios = [pair / both for pair, both in zip(per_image["pairs"], sums, strict=True)]
    lines = [
        ["a shard of images", rates.spread(per_image["images"], ",.0f")],
        ["its masks alone, their pixels", rates.spread(per_image["masks"], ",.0f")],
        ["a shard of pairs", rates.spread(per_image["pairs"], ",.0f")],
        ["pairs, of the sum of both", rates.spread(ratios, ".3f")],
    ]
    first = rows[0]
    return "\n".join(
        [
            rates.table(["", "CPU µs per sample"], lines),
            "",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, 1 process, {first['target']} px, shards of {first['images']} photographs.",
            f"{rates.machine(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    source = make_pairs(photos, options.work / f"pairs-{options.images}", options.images)
    alone = BuildOptions(ImageOptions(sizes=(Size.parse(options.target),)))
    mask = Companion("mask", "masks/{stem}.png")
    images = tasks(source / "images", options.work / "out-images", alone)
    pairs = tasks(source, options.work / "out-pairs", replace(alone, companions=(mask,)))
    options.repeats = min(options.repeats, len(pairs) - 1)
    todo: dict[str, Callable[[int], object]] = {
        "images": lambda number: write_shard(images[number]),
        "masks": lambda number: masks_alone(source, pairs[number], mask.image_options(alone.image)),
        "pairs": lambda number: write_shard(pairs[number]),
    }
    next_shard = dict.fromkeys(todo, 0)

    def run(name: str) -> Iterator[measuring.Columns]:
        number, next_shard[name] = next_shard[name], next_shard[name] + 1
        meter, begun = processes.Meter(), time.process_time()
        todo[name](number)
        seconds, samples = time.process_time() - begun, len(pairs[number].samples)
        counted = {"images": samples, "cpu_seconds": round(seconds, 4), "images_per_s": round(samples / seconds, 1)}
        yield {"variant": name, "target": options.target, **counted, "other_cpu": round(meter.other_cpu(), 3)}

    for name in todo:
        next(run(name))  # from here on all that is imported is in memory
    measuring.in_rounds({name: partial(run, name) for name in todo}, options, conditions(photos))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=35)
    arguments.add_argument("--images", type=int, default=2300)
    arguments.add_argument("--target", default="256", metavar="SIZE", help="the --size of the builds; 256 by default")
    measuring.run(arguments, measure_all, summary, minutes=2)


if __name__ == "__main__":
    main()
