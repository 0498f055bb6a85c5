"""A batch that was decoded as one array stays one array on its way through a DataLoader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils.data


class BatchOfViews(list[Any]):
    """Samples whose images are views of `images`, (B, channels, height, width) in channels-last memory.

    To all who do not know it, a list.
    """

    def __init__(self, samples: Sequence[Any], images: torch.Tensor) -> None:
        super().__init__(samples)
        self.images = images


def collate(samples: Sequence[Any]) -> Any:
    """A DataLoader's collate_fn: torch's own, but the images of a BatchOfViews become a batch without a copy."""
    if not isinstance(samples, BatchOfViews) or not samples:
        return torch.utils.data.default_collate(samples)  # type: ignore[arg-type]
    if isinstance(samples[0], torch.Tensor):
        return samples.images
    targets: Any = tuple(target for _, target in samples)  # a tuple, as torch's has it: of texts it stays one
    return [samples.images, torch.utils.data.default_collate(targets)]


def new_batch(shape: tuple[int, ...], shared: bool) -> torch.Tensor:
    """An uninitialised uint8 tensor; if `shared`, and in a DataLoader's worker, in shared memory, where a batch
    has to go."""
    if not shared or torch.utils.data.get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    # As torch's default collate does it: share_memory_() would copy what is not there yet.
    storage = torch.UntypedStorage._new_shared(torch.Size(shape).numel(), device="cpu")  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)
