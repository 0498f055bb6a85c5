"""Values of batches, for bit-exact comparison."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def values(batch: Any) -> Any:
    """Return a batch as plain values, with the types of their containers."""
    if isinstance(batch, torch.Tensor):
        strides = batch.stride() if len(batch) > 1 else ()
        pixels = batch.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)
        return batch.dtype, tuple(batch.shape), strides, pixels.numpy().tobytes()
    if isinstance(batch, dict):
        return type(batch).__name__, [(name, values(part)) for name, part in batch.items()]
    if isinstance(batch, (list, tuple)):
        return type(batch).__name__, [values(part) for part in batch]
    return type(batch).__name__, batch


def digest(batches: Iterable[Any]) -> list[Any]:
    return [values(batch) for batch in batches]


def same(ours: Any, theirs: Any) -> bool:
    return bool(values(ours) == values(theirs))
