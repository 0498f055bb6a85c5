"""collate: a batch that was decoded as one array stays one array on its way through a DataLoader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from presize.datasets.reading.shared_batches import shared_batch


class BatchOfViews(list[Any]):
    """Samples whose images are views of `images`, (B, channels, height, width) in channels-last memory.

    To code that does not know it, a list.
    """

    def __init__(self, samples: Sequence[Any], images: torch.Tensor) -> None:
        super().__init__(samples)
        self.images = images


def collate(samples: Sequence[Any]) -> Any:
    """A DataLoader's collate_fn: torch's default, but the images of a BatchOfViews become a batch without a copy."""
    if not isinstance(samples, BatchOfViews) or not samples:
        return torch.utils.data.default_collate(samples)  # type: ignore[arg-type]
    if isinstance(samples[0], torch.Tensor):
        return samples.images
    targets: Any = tuple(target for _, target in samples)  # as torch passes them: a tuple of strings stays one
    return [samples.images, torch.utils.data.default_collate(targets)]


def new_batch(shape: tuple[int, int, int, int], *, travels: bool) -> tuple[npt.NDArray[np.uint8], torch.Tensor]:
    """Uninitialised pixels of `shape` (B, height, width, channels), and the same memory as a tensor (B, channels,
    height, width). If it `travels`, and this is a DataLoader's worker, the memory is shared with the consumer."""
    if travels and torch.utils.data.get_worker_info() is not None:
        return shared_batch(shape)
    pixels = np.empty(shape, np.uint8)
    return pixels, torch.from_numpy(pixels).permute(0, 3, 1, 2)
