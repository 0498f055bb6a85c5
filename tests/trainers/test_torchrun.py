"""A plain training script under torchrun: DistributedDataParallel over two ranks, with Loader and make_loader."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from presize.datasets import Shuffled
from processes import run_two_ranks

pytestmark = pytest.mark.slow


def test_two_processes_share_every_epoch_and_stay_in_step(dataset: Path, tmp_path: Path) -> None:
    run_two_ranks(Path(__file__).with_name("plain_ddp.py"), dataset, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["weights"] == second["weights"]
    for kind in ("Loader", "make_loader"):
        for epoch in range(2):
            samples = Shuffled(50, seed=1).samples(epoch, np.arange(50)).tolist()
            padded = samples + samples[:6]
            assert first[kind][epoch] == padded[::2] and second[kind][epoch] == padded[1::2]
