"""Fuzz presize/codecs/_pillow_resize.c with random images, sizes and boxes, under the address and undefined-behaviour
sanitizers.

    python tools/fuzz_pillow_resize.py --seconds 60

Every image has its own memory, and the sanitizer detects accesses outside it. Each level of instructions of the
processor must return the bytes of tests/support/pillow_model.py. Stops at the first image that violates this, prints
its parameters, and exits with 1. Needs gcc and its sanitizers, on Linux.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from fuzz_jpeg_decoder import CODECS, try_until_the_end, under_sanitizers

import pillow_model
from presize.codecs import pillow_resize

SOURCES = [str(CODECS / "_pillow_resize.c"), *(str(path) for path in sorted((CODECS / "resampling").glob("*.c")))]


def side(choice: random.Random) -> int:
    """Return a random side, mostly small; sometimes about as long as a vector, or much longer."""
    return choice.choice([choice.randint(1, 9), choice.randint(1, 80), choice.randint(1, 300), choice.randint(1, 2000)])


def part(length: int, choice: random.Random) -> tuple[float, float]:
    """Return begin and end of a random box along a side: on whole pixels, between them, or almost on them."""
    if choice.random() < 0.5:
        return 0, length
    shift = choice.choice([0, 0, 1e-7, -1e-7, 0.5])
    first, second = (np.float32(choice.choice([choice.randint(0, length), choice.uniform(0, length)])) for _ in "ab")
    begin, end = sorted(float(np.float32(min(max(x + shift, 0), length))) for x in (first, second))
    return (begin, end) if begin < end else (0, length)


def cut(inputs: int, outputs: int, reach: float, choice: random.Random) -> tuple[int, int, int, int]:
    """Return begin and end of a random part of the outputs, and of the inputs that it may need."""
    begin = choice.randrange(outputs)
    end = choice.randint(begin + 1, outputs)
    if inputs == outputs:
        return begin, end, begin, end
    step = inputs / outputs
    reach = reach * max(step, 1) + 1
    return begin, end, max(0, int(begin * step - reach)), min(inputs, int(end * step + reach) + 1)


def wrong_part(module: Any, pixels: Any, size: tuple[int, int], filter: Any, choice: random.Random) -> str | None:
    """Return the error of a random part of a resize, or None."""
    vertical_first, reach = choice.random() < 0.5, pillow_model.FILTERS[filter][1]
    top, bottom, first_row, last_row = cut(pixels.shape[0], size[0], reach, choice)
    left, right, first_column, last_column = cut(pixels.shape[1], size[1], reach, choice)
    whole = pillow_resize.Whole(pixels.shape[:2], (first_row, first_column), size, (top, left))
    part = pixels[first_row:last_row, first_column:last_column].copy()
    expected = pillow_model.resize(pixels, size, filter, None, vertical_first)[top:bottom, left:right]
    for level in range(module.level() + 1):
        how: dict[str, Any] = {"vertical_first": vertical_first, "whole": whole, "level": level}
        found = pillow_resize.resize_by(module, part, (bottom - top, right - left), filter, **how)
        if found is None or not np.array_equal(found, expected):
            return (
                f"{pixels.shape}, {whole} by {filter}, {vertical_first=}, level {level}: not taken, or different pixels"
            )
    return None


def wrong_rows(pixels: Any, size: tuple[int, int], filter: Any, box: pillow_resize.Box, rows: int) -> str | None:
    """Return the error of resizing row by row to two sizes, or None."""
    outs = [np.empty((*one, pixels.shape[2]), np.uint8) for one in (size, (size[1], 13))]
    first = pillow_resize.row_sink(pixels.shape[:2], outs[0], filter, box)
    sink = pillow_resize.row_sink(pixels.shape[:2], outs[1], filter, box, first)
    if first is None or sink is None:
        return None
    pillow_model.give_rows(sink, pixels, rows)
    for out in outs:
        if not np.array_equal(out, pillow_model.resize(pixels, out.shape[:2], filter, box)):
            return f"{pixels.shape} to {out.shape} by {filter}, box {box}, {rows} rows at a time: different pixels"
    return None


def wrong(module: Any, choice: random.Random) -> str | None:
    """Return the error of one random resize, or None."""
    (height, width), size = (side(choice), side(choice)), (side(choice), side(choice))
    channels = choice.choice([1, 2, 3, 3, 4])
    if height * width * channels > 1 << 18 or max(size[0] * width, size[1] * height, size[0] * size[1]) > 1 << 17:
        return None
    noise = np.random.default_rng(choice.getrandbits(30))
    pixels = noise.integers(-64, 320, (height, width, channels)).clip(0, 255).astype(np.uint8)
    if choice.random() < 0.3:
        pixels = pixels[::-1] if choice.random() < 0.5 else pixels[:, ::-1]
    filter = choice.choice(get_args(pillow_resize.Filter))
    if choice.random() < 0.3:
        return wrong_part(module, pixels, size, filter, choice)
    (left, right), (top, bottom) = part(width, choice), part(height, choice)
    box = (left, top, right, bottom)
    if choice.random() < 0.3:
        return wrong_rows(pixels, size, filter, box, choice.randint(1, 31))
    vertical_first, flip = choice.random() < 0.5, choice.random() < 0.3
    alpha = channels == 4 and not vertical_first and choice.random() < 0.7
    expected = pillow_model.resize(pixels, size, filter, box, vertical_first, alpha)
    how: dict[str, Any] = {"vertical_first": vertical_first, "flip": flip, "alpha": alpha}
    for level in range(module.level() + 1):
        found = pillow_resize.resize_by(module, pixels, size, filter, box, **how, level=level)
        if found is None or not np.array_equal(found[:, ::-1] if flip else found, expected):
            return (
                f"{pixels.shape} to {size} by {filter}, box {box}, strides {pixels.strides}, {how}, "
                f"level {level}: {'not taken' if found is None else 'different pixels'}"
            )
    return None


def main() -> None:
    module, options = under_sanitizers(__doc__, SOURCES)
    pillow_resize.compiled.module = module
    try_until_the_end(options, partial(wrong, module), "resizes")


if __name__ == "__main__":
    main()
