"""Two ranks of torchrun that train with `two_ranks.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from processes import run_two_ranks


@pytest.fixture
def ranks(dataset: Path, tmp_path: Path) -> Callable[[str], list[Any]]:
    """Return a function that trains in a given way, and returns the records of each rank."""

    def run(way: str) -> list[Any]:
        run_two_ranks(Path(__file__).with_name("two_ranks.py"), way, dataset, tmp_path)
        return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]

    return run
