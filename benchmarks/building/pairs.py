"""What a mask beside each image adds to a build, against the time that its own pixels take.

    python benchmarks/building/pairs.py PHOTOS

Each photograph gets a palette PNG of its size, of areas as a segmentation has them. Three variants, once a round each,
in random order: the photographs alone are built; the photographs with their masks; and the masks alone are read,
decoded, resized and encoded, without any build. All of it happens in this process, in short rounds, since processes,
and minutes, differ by more than what is asked for. Times are CPU seconds. Prints a table; asserts nothing.
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

from presize.build.run import build_dataset
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


def build(source: Path, out: Path, options: BuildOptions) -> int:
    """How many samples were built."""
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    run = RunOptions(engine="sequential", report=False)
    return build_dataset(source, out, options, run, SourceOptions(labels="none")).stored


def masks_alone(source: Path, options: ImageOptions) -> int:
    """How many masks were read, resized and encoded."""
    paths = sorted((source / "masks").iterdir())
    for path in paths:
        with Image.open(path) as image:
            found = Size(image.height, image.width)
        transcode_companion(path.read_bytes(), found, options)
    return len(paths)


def summary(rows: list[rates.Row]) -> str:
    found = {name: rates.select(rows, variant=name) for name in ("images", "masks", "pairs")}
    per_image = {
        name: [1e6 * float(row["cpu_seconds"]) / float(row["images"]) for row in each] for name, each in found.items()
    }
    sums = [image + mask for image, mask in zip(per_image["images"], per_image["masks"], strict=True)]
    ratios = [pair / both for pair, both in zip(per_image["pairs"], sums, strict=True)]
    lines = [
        ["images alone, built", rates.spread(per_image["images"], ",.0f")],
        ["masks alone, their pixels", rates.spread(per_image["masks"], ",.0f")],
        ["pairs, built", rates.spread(per_image["pairs"], ",.0f")],
        ["pairs, of the sum of both", rates.spread(ratios, ".3f")],
    ]
    first = rows[0]
    return "\n".join(
        [
            rates.table(["", "CPU µs per sample"], lines),
            "",
            rates.other_work(rows),
            f"{rates.rounds(rows)}, 1 process, {first['target']} px, {first['images']} photographs.",
            f"{rates.machine(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    source = make_pairs(photos, options.work / f"pairs-{options.images}", options.images)
    alone = BuildOptions(ImageOptions(sizes=(Size.parse(options.target),)))
    mask = Companion("mask", "masks/{stem}.png")
    todo: dict[str, Callable[[Path], int]] = {
        "images": lambda out: build(source / "images", out, alone),
        "masks": lambda _: masks_alone(source, mask.image_options(alone.image)),
        "pairs": lambda out: build(source, out, replace(alone, companions=(mask,))),
    }

    def run(name: str) -> Iterator[measuring.Columns]:
        meter, begun = processes.Meter(), time.process_time()
        images = todo[name](options.work / "out")
        seconds = time.process_time() - begun
        counted = {"images": images, "cpu_seconds": round(seconds, 3), "images_per_s": round(images / seconds, 1)}
        yield {"variant": name, "target": options.target, **counted, "other_cpu": round(meter.other_cpu(), 3)}

    for name in todo:
        next(run(name))  # from here on all that is read and imported is in memory
    measuring.in_rounds({name: partial(run, name) for name in todo}, options, conditions(photos))


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=15)
    arguments.add_argument("--images", type=int, default=500)
    arguments.add_argument("--target", default="256", metavar="SIZE", help="the --size of the builds; 256 by default")
    measuring.run(arguments, measure_all, summary, minutes=6)


if __name__ == "__main__":
    main()
