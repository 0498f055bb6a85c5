"""Make the pictures of docs/choosing.md, and the table with the size and error of each choice.

python tools/make_docs_pictures.py [PHOTO]

The default is the photograph that ships with Matplotlib: Grace Hopper's portrait by the US Navy, 512×600 px, in the
public domain.
"""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from presize.codecs.transcode import transcode
from presize.options import ImageOptions, Size
from presize.pages.comparison import psnr

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
PANEL = 192
"""Side of a panel, in pixels."""
FACE, RIBBONS = (0.33, 0.2), (0.6, 0.77)
"""Left and top of a detail, as shares of the width and the height."""
DETAIL = 0.25
"""Side of a detail, as a share of the width."""

SIZES = {f"{n} px": ImageOptions(sizes=(Size(n, n),)) for n in (512, 256, 160, 128)}
QUALITIES = {"png": ImageOptions(format="png")} | {
    f"quality {quality}": ImageOptions(quality=quality) for quality in (95, 90, 75, 50)
}
CHROMA = {"png": ImageOptions(format="png")} | {
    subsampling: ImageOptions(subsampling=subsampling) for subsampling in ("444", "422", "420")
}
FORMATS = {name: ImageOptions(format=name) for name in ("jpeg", "webp", "png", "raw")}
FITS = {
    fit: ImageOptions(sizes=(Size(PANEL, PANEL),), fit=fit) for fit in ("shorter", "longer", "crop", "stretch", "pad")
}


def stored(photo: bytes, options: ImageOptions) -> tuple[bytes, Image.Image]:
    """Return the bytes that a build stores for a photograph, and their picture."""
    (record,) = transcode(photo, options).records
    if options.format == "raw":
        return record.value, Image.frombytes("RGB", (record.width, record.height), record.value)
    return record.value, Image.open(io.BytesIO(record.value)).convert("RGB")


def detail(picture: Image.Image, corner: tuple[float, float], resample: Image.Resampling) -> Image.Image:
    """Return a square part of a picture, resized to a panel."""
    left, top = round(corner[0] * picture.width), round(corner[1] * picture.height)
    side = round(DETAIL * picture.width)
    return picture.resize((PANEL, PANEL), resample, (left, top, left + side, top + side))


def strip(panels: dict[str, Image.Image], path: Path) -> None:
    """Write panels side by side, each under its label."""
    line, gap, tallest = 32, 8, max(panel.height for panel in panels.values())
    sheet = Image.new("RGB", (len(panels) * (PANEL + gap) - gap, line + tallest), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (label, panel) in enumerate(panels.items()):
        left = number * (PANEL + gap)
        draw.text((left, 2), label, "black", ImageFont.load_default(22))
        sheet.paste(panel, (left, line))
    sheet.save(path, quality=92, optimize=True)


def rows(photo: bytes) -> list[dict[str, Any]]:
    """Return the bytes of each choice, and its error relative to the same pixels stored without loss."""
    exact = np.asarray(stored(photo, ImageOptions(format="png"))[1])
    found = []
    for choice, variants in (("size", SIZES), ("quality", QUALITIES), ("subsampling", CHROMA), ("format", FORMATS)):
        for name, options in variants.items():
            value, picture = stored(photo, options)
            error = "exact" if options.format in ("png", "raw") else ""
            if not error and choice != "size":
                error = f"{psnr(np.asarray(picture), exact):.1f}"
            found.append(
                {
                    "choice": choice,
                    "value": name,
                    "height": picture.height,
                    "width": picture.width,
                    "kb": f"{len(value) / 1000:.1f}",
                    "psnr_db": error,
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photo", nargs="?", type=Path)
    chosen = parser.parse_args().photo
    if chosen is None:
        from matplotlib import get_data_path

        chosen = Path(get_data_path()) / "sample_data" / "grace_hopper.jpg"
    photo = chosen.read_bytes()
    nearest, smooth = Image.Resampling.NEAREST, Image.Resampling.BICUBIC
    strip({name: detail(stored(photo, how)[1], FACE, smooth) for name, how in SIZES.items()}, PICTURES / "size.jpg")
    for variants, corner, name in ((QUALITIES, FACE, "quality"), (CHROMA, RIBBONS, "subsampling")):
        panels = {label: detail(stored(photo, how)[1], corner, nearest) for label, how in variants.items()}
        strip(panels, PICTURES / f"{name}.png")
    strip({name: stored(photo, how)[1] for name, how in FITS.items()}, PICTURES / "fit.jpg")
    with (PICTURES / "losses.csv").open("w", newline="") as file:
        found = rows(photo)
        table = csv.DictWriter(file, found[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(found)
    for row in found:
        print("| " + " | ".join(str(row[name]) for name in ("choice", "value", "kb", "psnr_db")) + " |")


if __name__ == "__main__":
    main()
