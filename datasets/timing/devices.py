"""What torch has on this machine: its build, its threads, its GPUs and what decodes JPEGs on them."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from presize.datasets.reading.device_decode import find_decoder
from presize.errors import OptionError
from presize.system.machine import Gpu, Torch


def read_torch() -> Torch:
    """Ask torch. Where there is a GPU, the decoders are tried on the first one, which takes some hundred MB of its
    memory until the process ends."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    accelerator = torch.accelerator.current_accelerator()
    decoder, no_decoder = _decoder(torch.device("cuda", 0)) if usable else (None, None)
    return Torch(
        version=torch.__version__,
        platform=f"CUDA {torch.version.cuda}" if torch.version.cuda else _rocm(),
        threads=torch.get_num_threads(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        accelerator=None if accelerator is None else accelerator.type,
        said=str(said[0].message).partition("\n")[0] if said else None,
        gpus=tuple(map(_gpu, range(torch.cuda.device_count()))) if usable else (),
        decoder=decoder,
        no_decoder=no_decoder,
    )


def _rocm() -> str | None:
    return f"ROCm {torch.version.hip}" if torch.version.hip else None


def _gpu(number: int) -> Gpu:
    found: Any = torch.cuda.get_device_properties(number)
    return Gpu(found.name, found.total_memory, f"{found.major}.{found.minor}" if torch.version.cuda else None)


def _decoder(device: torch.device) -> tuple[str | None, str | None]:
    """The library that decodes JPEGs on `device`, or why there is none."""
    try:
        found: Any = find_decoder(device, 3)
    except OptionError as error:
        return None, str(error).partition(": ")[2]
    return str(found.func.__module__).partition(".")[0], None
