"""FFCV's DatasetWriter: Pillow decodes, FFCV resizes (OpenCV area) and compresses, into one .beton.

FFCV limits the longer side of an image. The script chooses the limit that stores as many pixels in total as a shorter
side of --size, so that the encoders have the same work. Timed without imports and without this choice.
"""

from __future__ import annotations

import time
from pathlib import Path

from common import jpegs, parser, report, shrunk
from ffcv.fields import IntField, RGBImageField
from ffcv.writer import DatasetWriter
from PIL import Image


class Photographs:
    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        with Image.open(self.names[i]) as file:
            return file.convert("RGB"), i % 10


def longer_side(names: list[str], size: int) -> int:
    """Return the limit of the longer side that stores about as many pixels as a shorter side of `size`."""
    sides = []
    for name in names:
        with Image.open(name) as file:
            sides.append(file.size)
    wanted = sum(width * height for width, height in (shrunk(*side, size) for side in sides))

    def stored(bound: int) -> int:
        scales = ((width, height, min(1, bound / max(width, height))) for width, height in sides)
        return sum(int(width * scale) * int(height * scale) for width, height, scale in scales)

    return min(range(size, 2 * size), key=lambda bound: abs(stored(bound) - wanted))


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--out", type=Path, required=True, help="the folder to write into")
    options = arguments.parse_args()
    names = jpegs(options.folder)
    bound = longer_side(names[:2000], options.size)
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    image = RGBImageField(write_mode="jpg", max_resolution=bound, jpeg_quality=options.quality)
    fields = {"image": image, "label": IntField()}
    writer = DatasetWriter(str(options.out / "photographs.beton"), fields, num_workers=options.procs)
    writer.from_indexed_dataset(Photographs(names), shuffle_indices=False)
    report(len(names), time.perf_counter() - start)


if __name__ == "__main__":
    main()
