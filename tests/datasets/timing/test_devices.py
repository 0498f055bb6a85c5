"""What torch has here. Where there is no GPU, that is what it says."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import simplejpeg
import torch

from presize.datasets.timing.devices import _decoder, read_torch


def test_torch_tells_its_version_and_threads() -> None:
    found = read_torch()
    assert (found.version, found.threads) == (torch.__version__, torch.get_num_threads())
    assert found.instructions == torch.backends.cpu.get_cpu_capability()


def test_every_gpu_is_named() -> None:
    found = read_torch()
    assert len(found.gpus) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert all(gpu.name and gpu.memory_bytes > 0 for gpu in found.gpus)
    assert bool(found.gpus) == (found.decoder is not None or found.no_decoder is not None)


def test_what_torch_says_about_its_driver_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        import warnings

        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old\nsecond line", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    found = read_torch()
    assert found.said == "CUDA initialization: The NVIDIA driver on your system is too old"
    assert found.gpus == ()


def test_a_decoder_is_called_by_the_name_of_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode_jpeg(jpegs: list[torch.Tensor], **_: Any) -> list[torch.Tensor]:
        return [torch.from_numpy(simplejpeg.decode_jpeg(jpeg.numpy())) for jpeg in jpegs]

    module = ModuleType("torchcodec.decoders")
    decode_jpeg.__module__ = "torchcodec.decoders._image"
    vars(module)["decode_jpeg"] = decode_jpeg
    monkeypatch.setitem(sys.modules, "torchcodec", ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", module)
    assert _decoder(torch.device("cpu")) == ("torchcodec", None)


def test_without_a_decoder_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchcodec", "torchcodec.decoders", "torchvision", "torchvision.io"):
        monkeypatch.setitem(sys.modules, name, None)
    name, reason = _decoder(torch.device("cpu"))
    assert name is None
    assert reason is not None
    assert "install torchcodec 0.16 or newer" in reason
