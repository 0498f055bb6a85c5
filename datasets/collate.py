"""collate: a batch that was decoded as one array stays one array on its way through a DataLoader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from presize.datasets.reading.shared_batches import shared_batch

Stays = bool | tuple[bool, ...]
"""Whether the targets of a batch stay a list of Python objects; one for each where a sample has a tuple of them."""


class BatchOfViews(list[Any]):
    """Samples whose images are views of `images`, (B, channels, height, width) in channels-last memory.

    To code that does not know it, a list. `stays` is for collate_targets.
    """

    def __init__(self, samples: Sequence[Any], images: torch.Tensor, stays: Stays = False) -> None:
        super().__init__(samples)
        self.images = images
        self.stays = stays


class BatchWithLists(list[Any]):
    """Samples with targets that torch cannot stack. To code that does not know it, a list."""

    def __init__(self, samples: Sequence[Any], stays: Stays) -> None:
        super().__init__(samples)
        self.stays = stays


def collate(samples: Sequence[Any]) -> Any:
    """A DataLoader's collate_fn: torch's default, but the images of a BatchOfViews become a batch without a copy, and
    targets that torch cannot stack a list."""
    if isinstance(samples, BatchWithLists) and samples:
        images, values = map(list, zip(*samples, strict=True))
        return [torch.utils.data.default_collate(images), collate_targets(values, samples.stays)]
    if not isinstance(samples, BatchOfViews) or not samples:
        return torch.utils.data.default_collate(samples)  # type: ignore[arg-type]
    if isinstance(samples[0], torch.Tensor):
        return samples.images
    targets: Any = tuple(target for _, target in samples)  # as torch passes them: a tuple of strings stays one
    return [samples.images, collate_targets(targets, samples.stays)]


def collate_targets(targets: Sequence[Any], stays: Stays) -> Any:
    """The targets of a batch as torch's default collate combines them, or as a list where they have to stay one."""
    if isinstance(stays, tuple):
        columns = zip(*targets, strict=True) if targets else ([] for _ in stays)
        return [collate_targets(column, stay) for column, stay in zip(columns, stays, strict=True)]
    if stays:
        return list(targets)
    if not targets:
        return torch.empty(0, dtype=torch.int64)
    return torch.utils.data.default_collate(tuple(targets))  # type: ignore[arg-type]


def new_batch(shape: tuple[int, int, int, int], *, travels: bool) -> tuple[npt.NDArray[np.uint8], torch.Tensor]:
    """Uninitialised pixels of `shape` (B, height, width, channels), and the same memory as a tensor (B, channels,
    height, width). If it `travels`, and this is a DataLoader's worker, the memory is shared with the consumer."""
    if travels and torch.utils.data.get_worker_info() is not None:
        return shared_batch(shape)
    pixels = np.empty(shape, np.uint8)
    return pixels, torch.from_numpy(pixels).permute(0, 3, 1, 2)
