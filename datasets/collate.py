"""collate: a batch that was decoded as one array stays one array on its way through a DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from presize.datasets.reading.shared_batches import as_images, shared_batches
from presize.datasets.reading.slots import Shape

Images = torch.Tensor | tuple[torch.Tensor, ...]
"""A batch (B, channels, height, width) in channels-last memory, or that of each view."""


class Views(tuple[Any, ...]):
    """The images of one sample, cut by several crops. To code that does not know it, a tuple."""


class WholeBatch(list[Any]):
    """Samples whose images share the memory of `images`.

    To code that does not know it, a list.
    """

    def __init__(self, samples: Sequence[Any], images: Images) -> None:
        super().__init__(samples)
        self.images = images


def collate(samples: Sequence[Any]) -> Any:
    """A DataLoader's collate_fn: torch's default, but the images of a WholeBatch become a batch without a copy, and
    those of several views a tuple of batches."""
    if not samples:
        return torch.utils.data.default_collate(samples)  # type: ignore[arg-type]
    first = samples[0]
    whole = samples.images if isinstance(samples, WholeBatch) else None
    if isinstance(first, Views) or (whole is not None and isinstance(first, torch.Tensor)):
        return _stack_views(samples) if whole is None else whole
    is_pair = isinstance(first, tuple) and len(first) == 2
    if whole is None and not (is_pair and isinstance(first[0], Views)):
        return torch.utils.data.default_collate(samples)  # type: ignore[arg-type]
    targets: Any = tuple(target for _, target in samples)  # as torch passes them: a tuple of strings stays one
    images = _stack_views([image for image, _ in samples]) if whole is None else whole
    return [images, torch.utils.data.default_collate(targets)]


def _stack_views(samples: Iterable[Views]) -> tuple[Any, ...]:
    return tuple(torch.utils.data.default_collate(images) for images in map(list, zip(*samples, strict=True)))


def new_batches(
    shapes: Sequence[Shape], *, travel: bool
) -> tuple[list[npt.NDArray[np.uint8]], tuple[torch.Tensor, ...]]:
    """Uninitialised pixels of `shapes` (B, height, width, channels), and the same memory as tensors (B, channels,
    height, width). If they `travel`, and this is a DataLoader's worker, the memory is shared with the consumer."""
    if travel and torch.utils.data.get_worker_info() is not None:
        return shared_batches(shapes)
    pixels = [np.empty(shape, np.uint8) for shape in shapes]
    return pixels, as_images(pixels)
