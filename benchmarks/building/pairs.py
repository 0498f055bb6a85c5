"""Compare builds of images with masks with builds of the images, plus the time to transcode the masks.

    python benchmarks/building/pairs.py PHOTOS

Each photograph gets a palette PNG of its size, with areas like those of a segmentation. In each round, in random order:

- one shard of a build of the photographs, the same shard of a build with masks, and its masks read, decoded, resized
  and encoded without a build; all in this process, because processes and minutes differ by more than the result;
- `presize build` of both with one worker, and the masks in a separate process, minus the start-up of the same round, a
  build of two photographs.

Times are CPU seconds. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
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

from presize.builder.output_dir import BuildJournal, OutputDir
from presize.builder.run import plan_build
from presize.builder.tasks.task import Task, write_shard
from presize.builder.work import find_work
from presize.codecs.transcode import transcode_companion
from presize.options import BuildOptions, Companion, ImageOptions, RunOptions, Size, SourceOptions
from shared import builds, measuring, processes, rates
from shared.conditions import conditions, find_photos

_AREA = 40
"""Mean side of an area of one class, in pixels."""
_BUILD, _START = 2000, 2
"""Photographs in a whole build, and in one that measures start-up."""


def make_pairs(photos: list[Path], root: Path, images: int) -> Path:
    """Create a folder with `images` hard links to `photos` and to their masks, unless it exists."""
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
    """Write a palette PNG of areas around random points, in 21 classes."""
    rng = np.random.default_rng(seed)
    points = rng.random((max(height * width // _AREA**2, 1), 2)) * (height, width)
    rows, columns = np.mgrid[0:height:4, 0:width:4]
    places = np.stack([rows, columns], axis=2)[:, :, np.newaxis]
    nearest = ((places - points) ** 2).sum(axis=3).argmin(axis=2).repeat(4, 0).repeat(4, 1)[:height, :width]
    image = Image.fromarray((nearest % 21).astype(np.uint8), "P")
    image.putpalette(rng.integers(0, 256, 768, np.uint8).tobytes())
    image.save(path)


def tasks(source: Path, out: Path, options: BuildOptions) -> list[Task]:
    """Return the tasks of a new build into `out`, one per shard."""
    shutil.rmtree(out, ignore_errors=True)
    todo = plan_build(source, options, SourceOptions(labels="none"))
    place = OutputDir.of(out, options.image.sizes)
    return find_work(todo, RunOptions(), place, BuildJournal(todo.identity, 0)).waiting


def names_of_masks(task: Task) -> list[str]:
    return task.sources[1].paths.split("\0")


def masks_alone(source: Path, names: list[str], options: ImageOptions) -> None:
    for name in names:
        path = source / name
        with Image.open(path) as image:
            found = Size(image.height, image.width)
        transcode_companion(path.read_bytes(), found, options)


def all_masks_alone(options: argparse.Namespace) -> None:
    """Transcode options.masks_alone masks of a folder of pairs in this process, and print their number and the seconds.
    The time includes planning all of them, as start-up does."""
    begun = time.perf_counter()
    mask = Companion("mask", "masks/{stem}.png")
    alone = ImageOptions(sizes=(Size.parse(options.target),))
    found = tasks(options.source, options.work / "out-masks", BuildOptions(alone, companions=(mask,)))
    names = [name for task in found for name in names_of_masks(task)][: options.masks_alone]
    masks_alone(options.source, names, mask.image_options(alone))
    print(json.dumps({"samples": len(names), "seconds": time.perf_counter() - begun}))


def summary(rows: list[rates.Row]) -> str:
    def per_image(name: str, start: str = "") -> list[float]:
        found = rates.select(rows, variant=name)
        starts = rates.column(rates.select(rows, variant=start), "cpu_seconds") if start else [0.0] * len(found)
        return [
            1e6 * (float(row["cpu_seconds"]) - begin) / float(row["images"])
            for row, begin in zip(found, starts, strict=True)
        ]

    of_shards = [per_image(name) for name in ("images", "masks", "pairs")]
    of_builds = [per_image(f"{name}_of_build", f"{name}_start") for name in ("images", "masks", "pairs")]
    columns = []
    for images, masks, pairs in (of_shards, of_builds):
        ratios = [pair / (image + mask) for image, mask, pair in zip(images, masks, pairs, strict=True)]
        columns.append([*(rates.spread(each, ",.0f") for each in (images, masks, pairs)), rates.spread(ratios, ".3f")])
    names = ("images", "transcoding their masks", "pairs", "pairs, relative to the sum of both")
    first, build = rates.select(rows, variant="images")[0], rates.select(rows, variant="images_of_build")[0]
    return "\n".join(
        [
            rates.table(
                ["CPU µs per sample", "a shard", "a whole build, without start-up"], zip(names, *columns, strict=True)
            ),
            "",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, 1 worker, {first['target']} px, shards of {first['images']} photographs, builds of "
            f"{build['images']}.",
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
    mask_options = mask.image_options(alone.image)
    todo: dict[str, Callable[[int], object]] = {
        "images": lambda number: write_shard(images[number]),
        "masks": lambda number: masks_alone(source, names_of_masks(pairs[number]), mask_options),
        "pairs": lambda number: write_shard(pairs[number]),
    }
    next_shard = dict.fromkeys(todo, 0)
    how = ("--size", options.target, "--labels", "none", "--jobs", "1")
    with_mask, out = ("--pair", f"{mask.name}={mask.pattern}"), options.work / "out-build"
    builds_of: dict[str, builds.Variant] = {}
    for suffix, count in (("start", _START), ("of_build", _BUILD)):
        folder = make_pairs(photos, options.work / f"pairs-{count}", count)
        builds_of[f"images_{suffix}"] = builds.presize_build(folder / "images", out, *how)
        builds_of[f"pairs_{suffix}"] = builds.presize_build(folder, out, *how, *with_mask)

    def run_build(name: str) -> Iterator[measuring.Columns]:
        yield {"variant": name, "target": options.target, **builds.measure(builds_of[name])}

    for suffix, count in (("start", _START), ("of_build", _BUILD)):
        words = [sys.executable, __file__, str(folder), "--target", options.target, "--masks-alone", str(count)]
        builds_of[f"masks_{suffix}"] = builds.Variant(words, out)

    def run(name: str) -> Iterator[measuring.Columns]:
        number, next_shard[name] = next_shard[name], next_shard[name] + 1
        meter, begun = processes.Meter(), time.process_time()
        todo[name](number)
        seconds, samples = time.process_time() - begun, len(pairs[number].samples)
        counted = {"images": samples, "cpu_seconds": round(seconds, 4), "images_per_s": round(samples / seconds, 1)}
        yield {"variant": name, "target": options.target, **counted, "other_cpu": round(meter.other_cpu(), 3)}

    for name in todo:
        next(run(name))  # imports everything
    variants = {
        **{name: partial(run, name) for name in todo},
        **{name: partial(run_build, name) for name in builds_of},
    }
    measuring.in_rounds(variants, options, conditions(photos))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=15)
    arguments.add_argument("--images", type=int, default=2300)
    arguments.add_argument("--masks-alone", type=int, metavar="N", help="internal")
    arguments.add_argument("--target", default="256", metavar="SIZE", help="the --size of the builds (default: 256)")
    if "--masks-alone" in sys.argv:
        all_masks_alone(arguments.parse_args())
        return
    measuring.run(arguments, measure_all, summary, minutes=5)


if __name__ == "__main__":
    main()
