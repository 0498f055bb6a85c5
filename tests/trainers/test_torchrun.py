"""A plain training script under torchrun: DistributedDataParallel over two ranks, with Loader and make_loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from presize.datasets import Shuffled

pytestmark = pytest.mark.slow


def test_two_processes_share_every_epoch_and_stay_in_step(ranks: Callable[[str], list[Any]]) -> None:
    first, second = ranks("plain")
    assert first["weights"] == second["weights"]
    for kind in ("Loader", "make_loader"):
        for epoch in range(2):
            samples = Shuffled(50, seed=1).samples(epoch, np.arange(50)).tolist()
            padded = samples + samples[:6]
            assert first[kind][epoch] == padded[::2] and second[kind][epoch] == padded[1::2]
