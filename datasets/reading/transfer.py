"""Batches on their way to a device: pinned memory, asynchronous copies, normalization."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from presize.datasets.reading.slots import SharedSlots
from presize.errors import LoaderError, OptionError
from presize.formatting import size_text

Normalize = tuple[Sequence[float], Sequence[float]]
"""(mean, std) of each channel, in units of 0 to 1."""

_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for all devices, as torch does it."""


def as_device(device: torch.device | str | None) -> torch.device:
    """The device of that name, the CPU for None. CUDA gets its number, since the current device may change.

    Raises:
        OptionError: torch knows no such device, or sees no CUDA.
    """
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise OptionError(f"device: {str(error).partition('. ')[0]}, got {device!r}") from None
    if found.type != "cuda":
        return found
    if not torch.cuda.is_available():
        raise OptionError(f"device: expected one that this machine has, got {device!r}, and torch sees no CUDA")
    return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device`; copies from pinned memory are asynchronous."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """The batch with `change` applied to each tensor in it, also in mappings, lists and tuples; all else as it is."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: map_tensors(change, part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        parts = [map_tensors(change, part) for part in batch]
        if hasattr(batch, "_fields"):  # a named tuple
            return type(batch)(*parts)
        return tuple(parts) if isinstance(batch, tuple) else parts
    return batch


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors in a batch, also in mappings, lists and tuples."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, (list, tuple, Mapping)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_of(part)


class Normalization:
    """uint8 images (B, channels, height, width) -> (images / 255 - mean) / std, in the same memory format.

    Args:
        normalize: (mean, std), one number a channel each.
        dtype: floating point; float32 when None.
        channels: of the images.
        device: where the images are.

    Raises:
        OptionError: `normalize` does not fit `channels`, a std is not above 0, or `dtype` is not floating point.
    """

    def __init__(self, normalize: Normalize, dtype: torch.dtype | None, channels: int, device: torch.device) -> None:
        try:
            mean, std = (torch.as_tensor(values, dtype=torch.float64).flatten() for values in normalize)
        except (TypeError, ValueError):
            raise OptionError(f"normalize: expected (mean, std), got {normalize!r}") from None
        if len(mean) != channels or len(std) != channels or not (std > 0).all():
            raise OptionError(
                f"normalize: expected (mean, std) of {channels} channels each, std above 0, got {normalize!r}"
            )
        self.dtype = torch.float32 if dtype is None else dtype
        if not self.dtype.is_floating_point:
            raise OptionError(f"dtype: expected a floating-point type, got {dtype}")
        self.scale = (1 / (255 * std)).to(device, self.dtype).reshape(1, -1, 1, 1)
        self.offset = (-mean / std).to(device, self.dtype).reshape(1, -1, 1, 1)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(self.dtype).mul_(self.scale).add_(self.offset)


def pin(shared: SharedSlots, device: torch.device) -> None:
    """Pin the memory of `shared`, so that CUDA copies from it directly, for as long as `shared` lives.

    Raises:
        LoaderError: CUDA refuses, as where ``ulimit -l`` is too low.
    """
    address, nbytes = shared.memory.ctypes.data, shared.memory.nbytes
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        code = int(runtime.cudaHostRegister(address, nbytes, _PORTABLE))
    if code != 0:
        raise LoaderError(f"CUDA cannot pin {size_text(nbytes)} of memory (error {code}); raise ulimit -l")
    weakref.finalize(shared, _unpin, os.getpid(), runtime, address)


def _unpin(owner: int, runtime: Any, address: int) -> None:
    if os.getpid() == owner:  # in a forked child it is the parent's
        runtime.cudaHostUnregister(address)
