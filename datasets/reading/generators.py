"""Seeds torch's, NumPy's and Python's generators before the transform of each visit. Its random numbers then depend on
(seed, epoch, key), as a crop does, and not on the number of workers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

from presize.datasets.reading.draws import uniform

_STREAM = -1
"""Used as the number of a view, so that seeds are independent of the random numbers of crops."""


@contextmanager
def seeded(visits: tuple[int, int, npt.NDArray[np.int64]] | None) -> Iterator[Callable[[int], None]]:
    """Yield a function that seeds the generators for the visit at a position of `visits`, (seed, epoch, keys).

    They are restored afterwards, since other code draws from them. All threads of a process share them. With None
    nothing is seeded."""
    if visits is None:
        yield lambda _: None
        return
    seeds = (uniform(*visits, 1, _STREAM)[:, 0] * 2**53).astype(np.int64).tolist()

    def seed_at(position: int) -> None:
        seed = seeds[position]
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        # With only these two words NumPy would draw the same numbers as Python, whose generator is the same.
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32, 1])

    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=()):
        try:
            yield seed_at
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
