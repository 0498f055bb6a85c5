"""A folder of annotated photographs, as docs/detection.md trains on, and its dataset."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from builds import SERIAL
from presize.builder.run import build_dataset
from presize.options import BuildOptions, Companion, Coordinates, ImageOptions, Size, SourceOptions

KINDS = {"sun": (250, 210, 40), "barrel": (190, 60, 30)}
"""Objects on the photographs: ellipses and rectangles, in these colours."""


def annotate(photos: list[Path], folder: Path) -> None:
    """Paste objects on `photos` in SCENES/images; write palette masks of class numbers to SCENES/masks (255 for edges),
    and the bbox (x, y, width, height), category and two end points of each object to scenes.jsonl."""
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / "SCENES" / kind).mkdir(parents=True)
    lines = []
    for number, path in enumerate(photos):
        image = Image.open(path).convert("RGB")
        mask = Image.new("P", image.size)
        mask.putpalette(rng.integers(0, 256, 768).astype(np.uint8).tobytes())
        row = {"path": f"images/{number:03d}.jpg", "bbox": [], "category": [], "ends": []}
        for _ in range(number % 3):
            at = int(rng.integers(len(KINDS)))
            name, color = list(KINDS.items())[at]
            width, height = (int(side * rng.uniform(0.2, 0.4)) for side in image.size)
            left = int(rng.integers(image.width - width))
            top = int(rng.integers(image.height - height))
            box = (left, top, left + width - 1, top + height - 1)
            for target, fill, outline in ((image, color, (60, 40, 20)), (mask, at + 1, 255)):
                draw = ImageDraw.Draw(target)
                shape = draw.ellipse if name == "sun" else draw.rectangle
                shape(box, fill=fill, outline=outline, width=2)
            row["bbox"].append([left, top, width, height])
            row["category"].append(name)
            row["ends"].append([left, top + height / 2, left + width, top + height / 2])
        image.save(folder / "SCENES" / row["path"], quality=92)
        mask.save(folder / "SCENES" / "masks" / f"{number:03d}.png")
        lines.append(json.dumps(row) + "\n")
    (folder / "scenes.jsonl").write_text("".join(lines))


def build_scenes(photos: list[Path], folder: Path) -> Path:
    """Build ``SEG`` from ``SCENES``: photographs with masks, boxes, keypoints and captions."""
    annotate(photos, folder)
    rows = [json.loads(line) for line in (folder / "scenes.jsonl").read_text().splitlines()]
    table = "".join(
        json.dumps(row | {"caption": f"<b>scene</b> {n}", "score": n / 2}) + "\n" for n, row in enumerate(rows)
    )
    (folder / "captioned.jsonl").write_text(table)
    options = BuildOptions(
        ImageOptions((Size(48, 48),)),
        companions=(Companion("mask", "masks/{stem}.png"),),
        boxes=(Coordinates("bbox", "xywh"),),
        keypoints=(Coordinates("ends", "xy"),),
    )
    build_dataset(folder / "SCENES", folder / "SEG", options, SERIAL, SourceOptions(folder / "captioned.jsonl"))
    return folder / "SEG"
