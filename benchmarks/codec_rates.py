"""Rows of results/codecs.csv -> time and error of each back-end.

`python benchmarks/codec_rates.py CSV` prints the tables that benchmarks/codecs.py prints at its end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from rates import Row, Spread, read

PHOTOS = "photographs"
LARGE = "12 megapixels"
PLATE = "zone plate"
"""The sets of images: see benchmarks/codecs.py. The last is there for its errors alone."""

EXACT = "exact, rounded"
"""The reference itself, rounded to whole numbers: no back-end can be nearer."""

BASE = "Pillow"

BACKENDS: dict[str, tuple[str, str]] = {
    "cykooz.resizer": ("cykooz", ""),
    "pillow-simd, AVX2": ("pillow", "avx2"),
    "pillow-simd, SSE4": ("pillow", "sse4"),
    BASE: ("pillow", ""),
    "torch, antialiased": ("torch", ""),
    "libvips": ("vips", "vips"),
    "OpenCV area": ("opencv-area", ""),
    "OpenCV cubic": ("opencv-cubic", ""),
    "OpenCV linear": ("opencv-linear", ""),
}
"""For each its name in peers/resizers.py, and the environment it is in; "" is that of presize."""

OURS: dict[str, Literal["cykooz", "pillow"]] = {"cykooz.resizer": "cykooz", BASE: "pillow"}
"""What --resize-backend calls them."""


def call_ms(rows: list[Row], images: str) -> dict[str, list[float]]:
    """Milliseconds an image from array to array, one number a round, in the order of the rounds."""
    return _by_backend(rows, images, ("load_ms", "resize_ms", "unload_ms"))


def resize_ms(rows: list[Row], images: str) -> dict[str, list[float]]:
    """The same, without the copies into the library's own form and back."""
    return _by_backend(rows, images, ("resize_ms",))


def _by_backend(rows: list[Row], images: str, columns: tuple[str, ...]) -> dict[str, list[float]]:
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["set"] == images and row["round"]:
            spent = sum(float(row[column]) for column in columns)
            found.setdefault(row["backend"], {})[int(row["round"])] = spent
    return {name: [found[name][number] for number in sorted(found[name])] for name in BACKENDS if name in found}


def errors(rows: list[Row], images: str) -> dict[str, Row]:
    """A row of each back-end."""
    return {row["backend"]: row for row in rows if row["set"] == images}


def times_base(measured: dict[str, list[float]], name: str) -> Spread:
    """How many times as fast as BASE in the same round."""
    return Spread.of([base / value for base, value in zip(measured[BASE], measured[name], strict=True)])


def speed_table(rows: list[Row], images: str) -> str:
    """Markdown: medians, and least and most in brackets."""
    whole, alone, wrong = call_ms(rows, images), resize_ms(rows, images), errors(rows, images)
    lines = [
        f"| {images} | ms an image | times Pillow | without copies | times Pillow | PSNR, dB | error: most | mean |",
        "|---|---|---|---|---|---|---|---|",
    ]
    pattern = ".3f" if images == PHOTOS else ".1f"
    for name, values in whole.items():
        cells = [
            Spread.of(values).format(pattern),
            times_base(whole, name).format(".2f"),
            Spread.of(alone[name]).format(pattern),
            times_base(alone, name).format(".2f"),
            *_error_cells(wrong[name]),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append(f"| {EXACT} | | | | | {' | '.join(_error_cells(wrong[EXACT]))} |")
    return "\n".join(lines)


def plate_table(rows: list[Row]) -> str:
    wrong = errors(rows, PLATE)
    lines = [f"| {PLATE} | PSNR, dB | error: most | mean |", "|---|---|---|---|"]
    for name in [*BACKENDS, EXACT]:
        if name in wrong:
            lines.append(f"| {name} | {' | '.join(_error_cells(wrong[name]))} |")
    return "\n".join(lines)


def _error_cells(row: Row) -> list[str]:
    return [f"{float(row['psnr_db']):.1f}", f"{float(row['max_error']):.1f}", f"{float(row['mean_error']):.2f}"]


def summary(rows: list[Row]) -> str:
    """The tables, and what goes with them, in Markdown."""
    first = rows[0]
    rounds = len({row["round"] for row in rows if row["round"]})
    counts = {row["set"]: row["images"] for row in rows if row["images"]}
    found = {row["backend"]: row["version"] for row in rows if row["version"]}
    versions = [f"{name} {found[name]}" for name in BACKENDS if name in found]
    return "\n\n".join(
        [
            speed_table(rows, PHOTOS),
            speed_table(rows, LARGE),
            plate_table(rows),
            "\n".join(
                [
                    f"{first['date']}, {rounds} rounds, one thread, {first['clock']}; {counts[PHOTOS]} photographs "
                    f"(mean {first['mean_width']}×{first['mean_height']}) and {counts[LARGE]} of them enlarged to "
                    f"4000×3000, to {first['size']} px along the shorter side.",
                    f"{first['cpu']}, {first['cores']} cores, {first['kernel']}, Python {first['python']}.",
                    ", ".join(versions) + ".",
                ]
            ),
        ]
    )


if __name__ == "__main__":
    print(summary(read(Path(sys.argv[1]))))
