"""Make presize/codecs/golden/decoder.zip and sources.zip: small images for checks of the codecs.

This script is kept as a record. The sources must never change: their transcoded bytes are part of the identity of
datasets, and with other images no existing dataset could be updated. Images that later releases need go into another
set. Images for the decoder may be added.

    python tools/make_golden.py FOLDER
"""

from __future__ import annotations

import base64
import io
import struct
import sys
import zipfile
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from presize.codecs.jpeg.tiles import TAG, restart_interval, with_index

FACTORS = {
    "4:4:4": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "4:2:2": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "4:2:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "4:4:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
}

ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAIBAQEBAQIBAQECAgICAgQDAgICAgUEBAMEBgUGBgYFBgYGBwkIBgcJBwYGCAsICQoKCgoK"
    "BggLDAsKDAkKCgr/yQALCAAIAAgBAREA/8wABgAQEAX/2gAIAQEAAD8A/wC5UE9+0si6i0qA9z1c/9k="
)
"""8 x 8 grey pixels; no available library writes arithmetic coding."""


def picture(height: int, width: int, seed: int, noise: int = 4) -> np.ndarray:
    """Draw waves, edges and noise: uint8 (height, width, 3) RGB."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [128 + 110 * np.sin((x * (c + 1) + y * (seed % 5 + 1)) / 11 + c) for c in range(3)]
    pixels = np.stack(waves, axis=-1) + random.integers(-noise, noise + 1, (height, width, 3))
    pixels[height // 2 :, : width // 4] = random.integers(0, 256, 3)
    return pixels.clip(0, 255).astype(np.uint8)


def jpeg(
    pixels: np.ndarray,
    sampling: str | None,
    quality: int = 85,
    interval: int = 0,
    optimize: bool = False,
    progressive: bool = False,
) -> bytes:
    options = [
        cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval,
        cv2.IMWRITE_JPEG_OPTIMIZE, int(optimize), cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive),
    ]  # fmt: skip
    if sampling is None:
        pixels = pixels[:, :, 0]
    else:
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, FACTORS[sampling]]
    return cv2.imencode(".jpg", pixels, options)[1].tobytes()


def tiled(pixels: np.ndarray, sampling: str | None, quality: int = 85) -> bytes:
    across = 16 if sampling in ("4:2:2", "4:2:0") else 8
    interval = restart_interval(-(-pixels.shape[1] // across))
    data = with_index(jpeg(pixels, sampling, quality, interval))
    assert TAG in data
    return data


def decoder_images() -> dict[str, bytes]:
    return {
        "4:2:0": jpeg(picture(37, 53, 1), "4:2:0"),
        "4:2:0 with tiles": tiled(picture(35, 70, 2), "4:2:0"),
        "4:2:0 with restarts": jpeg(picture(33, 35, 3), "4:2:0", interval=2),
        "4:2:2": jpeg(picture(19, 45, 4), "4:2:2"),
        "4:2:2 with tiles": tiled(picture(23, 71, 5), "4:2:2"),
        "4:4:4": jpeg(picture(17, 29, 6), "4:4:4"),
        "4:4:4 with tiles": tiled(picture(18, 47, 7), "4:4:4"),
        "4:4:4, noise": jpeg(picture(9, 17, 8, noise=250), "4:4:4", 100, interval=1, optimize=True),
        "4:4:0": jpeg(picture(35, 21, 9), "4:4:0"),
        "grey": jpeg(picture(21, 34, 10), None),
        "grey with tiles": tiled(picture(25, 65, 11), None, 60),
        "grey, noise": jpeg(picture(9, 16, 12, noise=250), None, 98),
        "4:2:0 with tiles across rows": tiled(picture(35, 105, 13), "4:2:0"),
    }


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.copy().save(buffer, kind, **options)
    return buffer.getvalue()


def profile(space: bytes, tags: dict[bytes, bytes]) -> bytes:
    """Return an ICC profile, version 2, with these tags."""
    white = struct.pack(">3i", 63190, 65536, 54061)
    name = b"golden\0"
    tags = {b"desc": b"desc" + bytes(4) + struct.pack(">I", len(name)) + name + bytes(78), **tags}
    tags[b"wtpt"] = b"XYZ " + bytes(4) + white
    table, body = struct.pack(">I", len(tags)), b""
    for tag, value in tags.items():
        table += tag + struct.pack(">II", 132 + 12 * len(tags) + len(body), len(value))
        body += value + bytes(-len(value) % 4)
    head = b"\0\0\0\0lcms" + bytes([2, 16, 0, 0]) + b"mntr" + space + b"XYZ " + bytes(12) + b"acsp" + bytes(28) + white
    head = head.ljust(128, b"\0")
    return struct.pack(">I", 128 + len(table) + len(body)) + head[4:] + table + body


def curve(gamma: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256)) + bytes(2)


def wide_profile() -> bytes:
    """Return a profile with the primaries of Adobe RGB and gamma 1.8."""
    primaries = [(0.6097, 0.3111, 0.0195), (0.2053, 0.6257, 0.0609), (0.1492, 0.0632, 0.7446)]
    colors = [b"XYZ " + bytes(4) + struct.pack(">3i", *(round(v * 65536) for v in color)) for color in primaries]
    tags = dict(zip((b"rXYZ", b"gXYZ", b"bXYZ"), colors, strict=True))
    return profile(b"RGB ", {**tags, **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve(1.8))})


def source_images() -> dict[str, bytes]:
    turned = Image.Exif()
    turned[0x0112] = 6
    grey_profile = profile(b"GRAY", {b"kTRC": curve(1.0)})
    photos = [Image.fromarray(picture(24, 34, seed, noise=0)) for seed in range(20, 32)]
    clear = photos[0].resize((20, 14))
    clear.putalpha(Image.fromarray(picture(14, 20, 40, noise=0)[:, :, 1]))
    deep = picture(12, 16, 41, noise=0).astype(np.uint16) * 257 - 77
    return {
        "jpeg 4:2:0": jpeg(picture(128, 136, 21, noise=0), "4:2:0", 50),
        "jpeg 4:2:2": jpeg(picture(50, 61, 22, noise=3), "4:2:2"),
        "jpeg 4:4:4, turned, with EXIF and a comment": saved(
            photos[1], "JPEG", quality=80, subsampling=0, exif=turned.tobytes(), comment=b"golden"
        ),
        "jpeg, grey": jpeg(picture(41, 50, 23, noise=2), None),
        "jpeg, progressive": jpeg(picture(64, 70, 24, noise=2), "4:2:0", 75, progressive=True),
        "jpeg, RGB with a profile": saved(photos[2], "JPEG", quality=80, icc_profile=wide_profile()),
        "jpeg, grey with a profile": saved(photos[3].convert("L"), "JPEG", quality=80, icc_profile=grey_profile),
        "jpeg, CMYK": saved(photos[4].convert("CMYK"), "JPEG", quality=80),
        "jpeg, small": jpeg(picture(8, 12, 25), "4:2:0"),
        "jpeg, arithmetic": ARITHMETIC,
        "jpeg, stray bytes": jpeg(picture(8, 12, 26), "4:4:4")[:-2] + b"stray\xff\xd9",
        "png": saved(photos[5].resize((20, 14)), "PNG"),
        "png, transparent": saved(clear, "PNG"),
        "png, palette": saved(photos[6].convert("P", palette=Image.Palette.ADAPTIVE, colors=20), "PNG", transparency=3),
        "png, 16 bits": cv2.imencode(".png", deep)[1].tobytes(),
        "png, 16 bits grey": cv2.imencode(".png", deep[:, :, 0])[1].tobytes(),
        "gif": saved(photos[7].quantize(30), "GIF"),
        "bmp": saved(photos[8].resize((14, 9)), "BMP"),
        "webp": saved(photos[9], "WEBP", quality=70),
        "webp, lossless": saved(photos[10].resize((20, 14)), "WEBP", lossless=True),
        "tiff": saved(photos[11].resize((18, 13)), "TIFF", compression="tiff_lzw"),
        "tiff, CMYK": saved(photos[1].resize((12, 10)).convert("CMYK"), "TIFF", compression="tiff_adobe_deflate"),
        "ppm": saved(photos[2].resize((14, 9)), "PPM"),
        "avif": saved(photos[3], "AVIF", quality=60),
        "jpeg2000": saved(photos[4], "JPEG2000", irreversible=False, quality_mode="rates", quality_layers=[8]),
    }


def write(path: Path, images: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, data in images.items():
            file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 9)


def main() -> None:
    write(Path(sys.argv[1], "decoder.zip"), decoder_images())
    write(Path(sys.argv[1], "sources.zip"), source_images())


if __name__ == "__main__":
    main()
