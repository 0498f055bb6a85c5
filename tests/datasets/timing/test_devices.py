"""What torch has here. Where there is no GPU, that is what it says."""

from __future__ import annotations

import warnings

import pytest
import torch

from presize.datasets.timing.devices import read_torch


def test_torch_tells_its_version_its_threads_and_its_gpus() -> None:
    found = read_torch()
    assert (found.version, found.threads) == (torch.__version__, torch.get_num_threads())
    assert found.instructions == torch.backends.cpu.get_cpu_capability()
    assert len(found.gpus) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert all(gpu.name and gpu.memory_bytes > 0 for gpu in found.gpus)


def test_what_torch_says_about_its_driver_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old\nsecond line", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    found = read_torch()
    assert found.said == "CUDA initialization: The NVIDIA driver on your system is too old"
    assert found.gpus == ()
