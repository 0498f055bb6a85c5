"""collate: a batch that was decoded as one array stays one array."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.utils.data
from PIL import Image
from torch.utils._pytree import register_pytree_node, tree_leaves

from presize.errors import OptionError

NEEDS_A_CROP = (
    "have different sizes and cannot be stacked; choose a crop, such as RandomResizedCrop(224) or CenterCrop(224)"
)

Images = torch.Tensor | tuple[torch.Tensor, ...]
"""One batch (B, channels, height, width) in channels-last memory, or a tuple with one for each view or companion."""

AsList = bool | tuple[bool, ...] | dict[str, bool]
"""True if the targets of a batch stay a list of Python objects; one flag for each if samples have several targets."""


class Views(tuple[Any, ...]):
    """The images of one sample: several crops, or an image and its companions. collate makes a tuple of batches."""


# Otherwise torchvision's transforms v2 would treat Views as a leaf of unknown type, and leave them unchanged.
register_pytree_node(Views, lambda images: (list(images), None), lambda images, _: Views(images))


class SampleList(list[Any]):
    """Samples with targets that torch cannot stack, such as boxes. Other code can treat it as a plain list."""

    def __init__(self, samples: Sequence[Any], as_list: AsList) -> None:
        super().__init__(samples)
        self.as_list = as_list


def cpu_by_default() -> AbstractContextManager[Any]:
    return nullcontext() if torch.empty(0).device.type == "cpu" else torch.device("cpu")


def collate(samples: Sequence[Any]) -> Any:
    """Combine samples as torch's default collate_fn does, with two exceptions: views become a tuple of batches; targets
    that torch cannot stack, and companion arrays of different shapes, stay lists. Images read as one batch are not
    copied."""
    if not hasattr(samples, "__getitem__") or len(samples) == 0:
        raise OptionError(f"samples: expected a list of at least one sample, got {samples!r}")
    as_list = samples.as_list if isinstance(samples, SampleList) else False
    first = samples[0]
    if isinstance(first, Views):
        return _stack(samples)
    has_views = isinstance(first, tuple) and len(first) == 2 and isinstance(first[0], Views)
    if not as_list and not has_views:
        return _collated(samples)
    images, targets = zip(*samples, strict=True)
    return [_stack(images), collate_targets(targets, as_list)]


def collate_targets(targets: Sequence[Any], as_list: AsList) -> Any:
    """Combine the targets of a batch as torch's default collate does, or as lists where `as_list` says so."""
    if isinstance(as_list, dict):
        return {key: collate_targets([target[key] for target in targets], stay) for key, stay in as_list.items()}
    if isinstance(as_list, tuple):
        columns = zip(*targets, strict=True) if targets else ([] for _ in as_list)
        return [collate_targets(column, stay) for column, stay in zip(columns, as_list, strict=True)]
    if as_list:
        return list(targets)
    if not targets:
        return torch.empty(0, dtype=torch.int64, device="cpu")
    with cpu_by_default():
        return torch.utils.data.default_collate(targets)  # type: ignore[arg-type]


def _stack(images: Sequence[Any]) -> Any:
    """Return a batch of images, or a tuple of batches of views. Arrays of several shapes or types stay a list."""
    if not isinstance(images[0], Views):
        return _collated(list(images))
    first, *others = zip(*images, strict=True)
    batches = [_collated(list(first))]
    for arrays in others:
        kinds = {(getattr(array, "shape", None), getattr(array, "dtype", None)) for array in arrays}
        batches.append(_collated(list(arrays)) if len(kinds) == 1 else list(arrays))
    return tuple(batches)


def _collated(samples: Any) -> Any:
    try:
        with cpu_by_default():
            return torch.utils.data.default_collate(samples)
    except (RuntimeError, TypeError):
        for number, parts in enumerate(zip(*map(tree_leaves, samples), strict=False)):
            if any(isinstance(part, Image.Image) for part in parts):
                problem = 'decode: PIL images cannot be stacked; choose "tensor", or give a transform'
                raise OptionError(problem) from None
            shapes = {getattr(part, "shape", ()) for part in parts}
            if len(shapes) > 1 and (number == 0 or max(map(len, shapes)) > 2):  # or they are boxes
                raise OptionError(f"crop: the images of a batch {NEEDS_A_CROP}") from None
        raise
