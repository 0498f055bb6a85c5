"""Datasets that presize view shows: with masks, boxes and captions, and one that is far larger than its shards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from annotated import annotate
from builds import SERIAL
from presize.builder.run import build_dataset
from presize.options import BuildOptions, Companion, Coordinates, ImageOptions, Size, SourceOptions
from tampering import change_manifest, read_table, write_table


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


def repeat_samples(root: Path, times: int) -> None:
    """Let each record of a dataset be that of `times` samples, with paths of their own."""
    table = read_table(root)
    rows = np.repeat(np.arange(len(table)), times)
    paths = pa.array([f"{number:08}.jpg" for number in range(len(rows))], pa.large_string())
    write_table(root, table.take(pa.array(rows)).set_column(0, "path", paths).combine_chunks())

    def counted(values: dict) -> None:
        values["samples"] = values["index"]["rows"] = len(rows)
        for shard in values["shards"]:
            shard["rows"] *= times

    change_manifest(root, counted)
