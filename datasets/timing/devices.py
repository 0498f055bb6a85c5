"""What torch has on this machine: its build, its threads and its GPUs."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from presize.system.resources import Gpu, Torch


def read_torch() -> Torch:
    """Ask torch."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    accelerator = torch.accelerator.current_accelerator()
    rocm = f"ROCm {torch.version.hip}" if torch.version.hip else None
    return Torch(
        version=torch.__version__,
        platform=f"CUDA {torch.version.cuda}" if torch.version.cuda else rocm,
        threads=torch.get_num_threads(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        accelerator=None if accelerator is None else accelerator.type,
        said=str(said[0].message).partition("\n")[0] if said else None,
        gpus=tuple(map(_gpu, range(torch.cuda.device_count()))) if usable else (),
    )


def _gpu(number: int) -> Gpu:
    found: Any = torch.cuda.get_device_properties(number)
    return Gpu(found.name, found.total_memory, f"{found.major}.{found.minor}" if torch.version.cuda else None)
