"""Fuzz presize/codecs/_pillow_color.c with random images and arguments, under the address and undefined-behaviour
sanitizers.

    python tools/fuzz_pillow_color.py --seconds 60

Each operation must return the bytes of the installed Pillow, with and without AVX2. Stops at the first image that
violates this, prints the arguments, and exits with 1. Needs gcc and its sanitizers, on Linux.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from fuzz_jpeg_decoder import CODECS, try_until_the_end, under_sanitizers
from PIL import Image

from presize.codecs.pillow_color import OPERATIONS, Name


def matrix(choice: random.Random) -> tuple[float, ...]:
    """Return a random affine matrix: scales or rotations, and shifts."""
    scales = [choice.choice([0.0, 1.0, -1.0, choice.uniform(-3, 3)]) for _ in range(4)]
    return (*scales[:2], choice.uniform(-99, 99), *scales[2:], choice.uniform(-99, 99))


ARGUMENTS: dict[Name, Callable[[random.Random], tuple[Any, ...]]] = {
    "gray": lambda _: (),
    "saturate": lambda choice: (choice.choice([choice.random(), choice.uniform(-3, 5)]),),
    "blend": lambda choice: (choice.randint(0, 255), choice.choice([choice.random(), choice.uniform(-3, 5)])),
    "sharpen": lambda choice: (choice.choice([choice.random(), choice.uniform(-3, 5)]),),
    "hue": lambda choice: (choice.randint(-255, 255),),
    "blur": lambda choice: ((choice.uniform(0, 99), choice.choice([0, choice.uniform(0, 3)])),),
    "affine": lambda choice: ((choice.randint(1, 99), choice.randint(1, 99)), matrix(choice), choice.randint(0, 255)),
}


def wrong(module: Any, choice: random.Random) -> str | None:
    """Return the error of one random operation, or None."""
    name = choice.choice(list(OPERATIONS))
    shape = (choice.choice([1, 2, 3, choice.randint(1, 150)]), choice.randint(1, 150), *choice.choice([(), (3,)]))
    noise = np.random.default_rng(choice.getrandbits(30))
    pixels = noise.integers(-64, 320, shape).clip(0, 255).astype(np.uint8)
    arguments, operation = ARGUMENTS[name](choice), OPERATIONS[name]
    expected = np.asarray(operation.pillows(Image.fromarray(pixels), *arguments))
    for level in (1, 0):
        module.limit(level)
        found = operation.ours(module, pixels, *arguments)
        if found is not None and not np.array_equal(found, expected):
            return f"{name} of {shape} by {arguments}, {level=}: different pixels"
    return None


def main() -> None:
    module, options = under_sanitizers(__doc__, [str(CODECS / "_pillow_color.c")])
    try_until_the_end(options, partial(wrong, module), "operations")


if __name__ == "__main__":
    main()
