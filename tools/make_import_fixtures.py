"""Make tests/fixtures/imports: tar shards by webdataset, and Parquet files by Hugging Face's datasets.

This script needs both libraries; the tests do not. CONTENTS in tests/support/foreign.py lists the samples.

    pip install webdataset datasets pillow
    python tools/make_import_fixtures.py tests/fixtures/imports
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import webdataset
from PIL import Image

import datasets

NAMES = ("ant", "bee", "cow")


def encoded(number: int, kind: str = "JPEG") -> bytes:
    """Encode a picture 16 pixels high and 24 + `number` wide."""
    y, x = np.mgrid[0:16, 0 : 24 + number]
    waves = [128 + 100 * np.sin((x * (c + 1) + y * (number + 1)) / 9 + c) for c in range(3)]
    buffer = io.BytesIO()
    Image.fromarray(np.stack(waves, axis=-1).round().astype(np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def write_tars(folder: Path) -> None:
    folder.mkdir(parents=True)
    with webdataset.ShardWriter(str(folder / "shard-%06d.tar"), maxcount=5, verbose=0, mtime=0) as shards:
        for number in range(9):
            shards.write(
                {
                    "__key__": f"{NAMES[number % 3]}/{number:04d}",
                    "jpg": encoded(number),
                    "cls": number % 3,
                    "json": {"caption": f"picture {number}", "width": 24 + number, "score": number / 4},
                    "txt": f"a text of {number}",
                }
            )


def write_parquet(folder: Path) -> None:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=list(NAMES)),
            "caption": datasets.Value("string"),
        }
    )
    folder.mkdir(parents=True)
    for split, numbers in {"train": range(7), "test": range(7, 9)}.items():
        rows = {
            "image": [{"bytes": encoded(number, "PNG"), "path": f"{number:04d}.png"} for number in numbers],
            "label": [number % 3 for number in numbers],
            "caption": [f"picture {number}" for number in numbers],
        }
        table = datasets.Dataset.from_dict(rows, features=features)
        table.to_parquet(str(folder / f"{split}-00000-of-00001.parquet"), batch_size=3)


if __name__ == "__main__":
    write_tars(Path(sys.argv[1]) / "webdataset")
    write_parquet(Path(sys.argv[1]) / "datasets" / "data")
