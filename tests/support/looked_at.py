"""A dataset that presize view shows: with masks, boxes and captions."""

from __future__ import annotations

import json
from pathlib import Path

from annotated import annotate
from builds import SERIAL
from presize.builder.run import build_dataset
from presize.options import BuildOptions, Companion, Coordinates, ImageOptions, Size, SourceOptions


def build_scenes(photos: list[Path], folder: Path) -> Path:
    """``SEG``: photographs with masks, boxes, keypoints and captions, built from ``SCENES``."""
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
