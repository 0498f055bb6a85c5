"""Accelerate's prepare with Loader and make_loader, in one process and in two."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from presize.datasets import CenterCrop, LMDBDataset, Loader, Shuffled, make_loader
from processes import run_two_ranks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    accelerate: Any = pytest.importorskip("accelerate", reason="accelerate is not installed (extra: trainers)")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::Warning")]


@pytest.mark.parametrize("make", [Loader, make_loader])
def test_prepare_keeps_the_batches_of_one_process(make: Any, dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=CenterCrop(24), decode="tensor")
    prepared = accelerate.Accelerator(cpu=True).prepare(make(data, 8, shuffle=True, seed=1, workers=2))
    expected = Loader(data, 8, shuffle=True, seed=1, workers=0)
    for _ in range(2):
        assert [targets.tolist() for _, targets in prepared] == [targets.tolist() for _, targets in expected]


def test_two_processes_share_every_epoch(dataset: Path, tmp_path: Path) -> None:
    run_two_ranks(Path(__file__).with_name("accelerate_ddp.py"), dataset, tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        samples = Shuffled(56, seed=1).samples(epoch, np.arange(56)).tolist()
        together = [ranks[turn % 2]["Loader"][epoch][turn // 2] for turn in range(56)]
        assert together == samples
        for kind in ("make_loader", "before"):
            assert sorted(ranks[0][kind][epoch] + ranks[1][kind][epoch]) == [*range(56)], kind
    assert all("rank: Accelerate shares batches over ranks itself" in rank["refused"] for rank in ranks)
