"""Checks of `presize doctor`, including those that need torch, if it is installed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from presize.measure.doctor import CheckUp, Finding, Level, check_up, judge, verdict
from presize.system.files import expanded

if TYPE_CHECKING:
    from presize.system.resources import Torch


@dataclass(frozen=True)
class MachineReport:
    """Findings about a machine: what slows down loading, and how to fix it. Each has a topic, a level, an observation
    and a fix; `facts` are the measurements behind them."""

    findings: tuple[Finding, ...]
    facts: CheckUp

    @property
    def verdict(self) -> Level:
        """Return the worst level of the findings."""
        return verdict(self.findings)


def doctor(path: str | os.PathLike[str] | None = None) -> MachineReport:
    """Find what slows down loading on this machine, and how to fix it. `path`, a dataset, a folder of images or a file,
    is read for a few seconds; nothing is written. Raises DatasetError if it does not exist."""
    facts = check_up(_torch(), None if path is None else Path(expanded(path)))
    return MachineReport(tuple(judge(facts)), facts)


def _torch() -> Torch | str:
    """Return facts about torch, or the reason why it cannot be imported."""
    try:
        from presize.datasets.timing.devices import read_torch
    except (ImportError, AttributeError, OSError) as error:  # such as a missing library, or a broken cv2
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            return "not installed"
        return f"cannot be imported: {str(error).partition(chr(10))[0]}"
    return read_torch()
