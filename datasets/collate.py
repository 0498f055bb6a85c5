"""collate: a batch that was decoded as one array stays one array on its way through a DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data
from torch.utils._pytree import register_pytree_node

from presize.datasets.reading.shared_batches import as_images, shared_batches
from presize.datasets.reading.slots import Shape

Images = torch.Tensor | tuple[torch.Tensor, ...]
"""A batch (B, channels, height, width) in channels-last memory, or that of each view."""

Stays = bool | tuple[bool, ...] | dict[str, bool]
"""Whether the targets of a batch stay a list of Python objects; one for each where a sample has several of them."""


class Views(tuple[Any, ...]):
    """The images of one sample, cut by several crops. To code that does not know it, a tuple."""

    def transformed(self, transform: Callable[[Any], Any]) -> Views:
        """Each of them, transformed."""
        return Views(map(transform, self))


class Paired(Views):
    """The image of one sample, and its companions. To code that does not know it, a tuple."""

    def transformed(self, transform: Callable[[Any], Any]) -> Paired:
        """The image transformed, its companions as they are."""
        return Paired((transform(self[0]), *self[1:]))


# Or torchvision's transforms v2 would take one for something that they leave as it is.
register_pytree_node(Paired, lambda images: (list(images), None), lambda images, _: Paired(images))


class WholeBatch(list[Any]):
    """Samples whose images share the memory of `images`.

    To code that does not know it, a list. `stays` is for collate_targets.
    """

    def __init__(self, samples: Sequence[Any], images: Images, stays: Stays = False) -> None:
        super().__init__(samples)
        self.images = images
        self.stays = stays


class BatchWithLists(list[Any]):
    """Samples with targets that torch cannot stack. To code that does not know it, a list."""

    def __init__(self, samples: Sequence[Any], stays: Stays) -> None:
        super().__init__(samples)
        self.stays = stays


def collate(samples: Sequence[Any]) -> Any:
    """A DataLoader's collate_fn: torch's default, but the images of a WholeBatch become a batch without a copy, those
    of several views a tuple of batches, and targets that torch cannot stack a list."""
    if not samples:
        return torch.utils.data.default_collate(samples)  # type: ignore[arg-type]
    first = samples[0]
    whole = samples.images if isinstance(samples, WholeBatch) else None
    stays = samples.stays if isinstance(samples, (WholeBatch, BatchWithLists)) else False
    if isinstance(first, Views) or (whole is not None and isinstance(first, torch.Tensor)):
        return _stack(samples) if whole is None else whole
    is_pair = isinstance(first, tuple) and len(first) == 2
    if whole is None and not stays and not (is_pair and isinstance(first[0], Views)):
        return torch.utils.data.default_collate(samples)  # type: ignore[arg-type]
    targets: Any = tuple(target for _, target in samples)  # as torch passes them: a tuple of strings stays one
    images = _stack([image for image, _ in samples]) if whole is None else whole
    return [images, collate_targets(targets, stays)]


def collate_targets(targets: Sequence[Any], stays: Stays) -> Any:
    """The targets of a batch as torch's default collate combines them, or as a list where they have to stay one."""
    if isinstance(stays, dict):
        return {key: collate_targets([target[key] for target in targets], stay) for key, stay in stays.items()}
    if isinstance(stays, tuple):
        columns = zip(*targets, strict=True) if targets else ([] for _ in stays)
        return [collate_targets(column, stay) for column, stay in zip(columns, stays, strict=True)]
    if stays:
        return list(targets)
    if not targets:
        return torch.empty(0, dtype=torch.int64)
    return torch.utils.data.default_collate(targets)  # type: ignore[arg-type]


def _stack(images: Sequence[Any]) -> Any:
    """A batch of images, or of views a tuple of batches."""
    if not isinstance(images[0], Views):
        return torch.utils.data.default_collate(images)  # type: ignore[arg-type]
    return tuple(torch.utils.data.default_collate(view) for view in map(list, zip(*images, strict=True)))


def new_batches(
    shapes: Sequence[Shape], *, travel: bool
) -> tuple[list[npt.NDArray[np.uint8]], tuple[torch.Tensor, ...]]:
    """Uninitialised pixels of `shapes` (B, height, width, channels), and the same memory as tensors (B, channels,
    height, width). If they `travel`, and this is a DataLoader's worker, the memory is shared with the consumer."""
    if travel and torch.utils.data.get_worker_info() is not None:
        return shared_batches(shapes)
    pixels = [np.empty(shape, np.uint8) for shape in shapes]
    return pixels, as_images(pixels)
