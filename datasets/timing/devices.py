"""torch on this machine: build, threads and accelerators."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from presize.datasets.reading.transfer import accelerator
from presize.system.resources import Gpu, Torch


def read_torch() -> Torch:
    """Return the facts of the installed torch."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        here = accelerator()
    platforms = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip, "XPU": torch.version.xpu}
    # torch.accelerator has no properties of devices; torch.cuda and torch.xpu have.
    properties: Any = None if here is None else getattr(torch.get_device_module(here), "get_device_properties", None)
    return Torch(
        version=torch.__version__,
        platform=next((f"{name} {version}" for name, version in platforms.items() if version), None),
        threads=torch.get_num_threads(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        accelerator=None if here is None else here.type,
        said=str(said[0].message).partition("\n")[0] if said else None,
        gpus=()
        if here is None or properties is None
        else tuple(_gpu(properties(index), here.type) for index in range(torch.accelerator.device_count())),
    )


def _gpu(found: Any, kind: str) -> Gpu:
    capability = f"{found.major}.{found.minor}" if kind == "cuda" and torch.version.cuda else None
    return Gpu(found.name, found.total_memory, capability)
