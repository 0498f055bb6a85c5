"""Photographs with masks of class numbers, like those of segmentation data sets."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from foreign import write_tar
from pictures import saved, smooth_image
from presize.options import BuildOptions, Companion, ImageOptions, Size

CLASS_NUMBERS = (0, 7, 21, 255)
MASK = Companion("mask", "masks/{stem}.png")
WITH_MASKS = BuildOptions(ImageOptions(sizes=(Size(24, 24),)), companions=(MASK,))


def mask_of(height: int, width: int, seed: int = 0, numbers: tuple[int, ...] = CLASS_NUMBERS) -> np.ndarray:
    """Return class numbers in areas of some pixels: uint8, or uint16 if a number needs it."""
    rng = np.random.default_rng(seed)
    areas = rng.choice(numbers, (-(-height // 3), -(-width // 3))).repeat(3, 0).repeat(3, 1)
    return areas[:height, :width].astype(np.uint16 if max(numbers) > 255 else np.uint8)


def save_palette(path: Path, mask: np.ndarray) -> None:
    """Save a palette PNG whose colours differ from its class numbers."""
    image = Image.fromarray(mask, "P")
    image.putpalette(np.random.default_rng(5).integers(0, 256, 768, np.uint8).tobytes())
    image.save(path)


def make_pairs(folder: Path, count: int = 12) -> Path:
    """Write ``images/00.jpg`` and ``masks/00.png`` (a palette), ..., of sizes from 30 to 60 pixels."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        height, width = 30 + 7 * number % 31, 30 + 11 * number % 31
        Image.fromarray(smooth_image(height, width, number)).save(folder / "images" / f"{number:02}.jpg")
        save_palette(folder / "masks" / f"{number:02}.png", mask_of(height, width, number))
    return folder


def write_pairs(folder: Path) -> None:
    """Write the source of docs/pairs.md."""
    make_pairs(folder / "SEG")
    rows = [f"images/{number:02}.jpg,masks/{number:02}.png\n" for number in range(0, 12, 2)]
    (folder / "seg.csv").write_text("path,seg\n" + "".join(rows))
    stereo = make_pairs(folder / "STEREO")
    shutil.copytree(stereo / "images", stereo / "right")
    (stereo / "images").rename(stereo / "left")
    rooms = make_pairs(folder / "ROOMS")
    (rooms / "masks").rename(rooms / "depth")
    for number, path in enumerate(sorted((rooms / "depth").glob("*.png"))):
        np.save(path.with_suffix(".npy"), np.asarray(Image.open(path), np.float32) / 100)
        np.save(path.with_suffix(".clip.npy"), np.full(16, number, np.float32))
        path.unlink()
    scans = []
    for number, path in enumerate(sorted((rooms / "images").glob("*.jpg"))):
        mask = saved(Image.fromarray(mask_of(*np.asarray(Image.open(path)).shape[:2], number)), "PNG")
        depth = (rooms / "depth" / f"{path.stem}.npy").read_bytes()
        files = {"jpg": path.read_bytes(), "mask.png": mask, "depth.npy": depth}
        scans += [(f"{number:03}.{extension}", content) for extension, content in files.items()]
    write_tar(folder / "SCANS" / "0.tar", scans)
