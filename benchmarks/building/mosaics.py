"""Create 12-megapixel photographs for benchmarks: mosaics of small ones, with detail down to the pixel.

    python benchmarks/building/mosaics.py PHOTOS OUT

Enlarged photographs would be smooth, and faster to decode. Each mosaic is a JPEG of 4032×3024 pixels, 4:2:0: 3 MB at
quality 85, 4 MB at 90, like the files of phones.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import simplejpeg

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shared.conditions import find_photos

_HEIGHT, _WIDTH = 3024, 4032
_TILE_HEIGHT, _TILE_WIDTH = 336, 448


def mosaic(photos: list[Path]) -> npt.NDArray[np.uint8]:
    """Tile the centres of the photographs. Small photographs are padded by mirroring at their edges."""
    pixels = np.empty((_HEIGHT, _WIDTH, 3), np.uint8)
    places = ((top, left) for top in range(0, _HEIGHT, _TILE_HEIGHT) for left in range(0, _WIDTH, _TILE_WIDTH))
    for photo, (top, left) in zip(photos, places, strict=True):
        decoded = simplejpeg.decode_jpeg(photo.read_bytes(), "RGB")
        below, right = max(0, _TILE_HEIGHT - decoded.shape[0]), max(0, _TILE_WIDTH - decoded.shape[1])
        decoded = np.pad(decoded, ((0, below), (0, right), (0, 0)), "symmetric")
        y, x = (decoded.shape[0] - _TILE_HEIGHT) // 2, (decoded.shape[1] - _TILE_WIDTH) // 2
        pixels[top : top + _TILE_HEIGHT, left : left + _TILE_WIDTH] = decoded[y:, x:][:_TILE_HEIGHT, :_TILE_WIDTH]
    return pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="PHOTOS", help="searched recursively for JPEGs")
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=120)
    parser.add_argument("--quality", type=int, default=85)
    options = parser.parse_args()
    photos = [path for path in find_photos(options.source) if _decodes(path)]
    chosen = random.Random(0)
    options.out.mkdir(parents=True, exist_ok=True)
    for number in range(options.images):
        pixels = mosaic(chosen.choices(photos, k=_HEIGHT // _TILE_HEIGHT * (_WIDTH // _TILE_WIDTH)))
        (options.out / f"{number:05}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels, options.quality, "RGB", "420"))


def _decodes(path: Path) -> bool:
    try:
        simplejpeg.decode_jpeg_header(path.read_bytes())
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()
