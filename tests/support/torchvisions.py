"""torchvision, if installed, for tests that compare with it."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest

_SHIM = Path(__file__).parents[2] / "benchmarks" / "peers" / "torchvision_shim.py"


def torchvision_or_skip() -> tuple[Any, Any]:
    """Return torchvision.transforms and torchvision.transforms.v2; skip the module if they are missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own extensions, which transforms do not need
        try:
            runpy.run_path(str(_SHIM))
            from torchvision import transforms
            from torchvision.transforms import v2
        except ImportError as error:
            pytest.skip(f"needs torchvision: {error}", allow_module_level=True)
    return transforms, v2
