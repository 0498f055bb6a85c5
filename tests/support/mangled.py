"""A folder of images with the oddities of real ones: rotated, with unusual colours and formats, and with wrong
suffixes."""

from __future__ import annotations

import base64
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from pictures import oriented, saved, smooth_image
from profiles import SWAPPED

ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAIBAQEBAQIBAQECAgICAgQDAgICAgUEBAMEBgUGBgYFBgYGBwkIBgcJBwYGCAsICQoKCgoK"
    "BggLDAsKDAkKCgr/yQALCAAIAAgBAREA/8wABgAQEAX/2gAIAQEAAD8A/wC5UE9+0si6i0qA9z1c/9k="
)
"""8×8 grey pixels; no library at hand writes this format."""


def mangled_files(height: int = 60, width: int = 90) -> dict[str, bytes]:
    """Return names and contents: 16 images, 3 rejects, and a file that is not an image and has no image suffix."""
    pixels = smooth_image(height, width, seed=3)
    photo, other = Image.fromarray(pixels), Image.fromarray(smooth_image(height, width, seed=4))
    deep = cv2.imencode(".png", pixels.astype(np.uint16) * 257)[1].tobytes()
    return {
        "plain.jpg": saved(photo, "JPEG", quality=75),
        "turned.jpg": saved(photo, "JPEG", exif=oriented(6), quality=75),
        "mirrored.png": saved(photo, "PNG", exif=oriented(2)),
        "inks.jpg": saved(photo.convert("CMYK"), "JPEG", quality=75),
        "deep.png": deep,
        "deep grey.png": cv2.imencode(".png", pixels[:, :, 0].astype(np.uint16) * 257)[1].tobytes(),
        "palette.png": saved(photo.convert("P"), "PNG", transparency=7),
        "grey.jpg": saved(photo.convert("L"), "JPEG", quality=75),
        "moving.gif": saved(photo, "GIF", save_all=True, append_images=[other.copy()]),
        "several.jpg": saved(photo, "MPO", save_all=True, append_images=[other.copy()], quality=75),
        "progressive.jpg": saved(photo, "JPEG", progressive=True, quality=40),
        "arithmetic.jpg": ARITHMETIC,
        "really a png.jpg": saved(photo, "PNG"),
        "pages.tiff": saved(photo, "TIFF", save_all=True, append_images=[other.copy()]),
        "profile.jpg": saved(photo, "JPEG", icc_profile=SWAPPED, quality=75),
        "lossy.webp": saved(photo, "WEBP"),
        "cut.jpg": saved(photo, "JPEG")[:700],
        "empty.png": b"",
        "page.jpeg": b"<!doctype html>\n<title>404</title>",
        "notes.txt": b"no image",
    }


def write_mangled(folder: Path, height: int = 60, width: int = 90) -> None:
    folder.mkdir(parents=True)
    for name, content in mangled_files(height, width).items():
        (folder / name).write_bytes(content)
