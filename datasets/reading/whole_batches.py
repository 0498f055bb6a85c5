"""Images that know the batch they are rows of, so that torch's own collate passes the batch on without a copy.

Copying a batch of 128 float images in a DataLoader's worker, into new shared memory, takes longer than reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from presize.datasets.reading.shared_batches import SharedBatch, SharedBatches


class RowImage(torch.Tensor):
    """An image that is row `row` of `batch`. What is computed from it is a plain tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    batch: torch.Tensor | None = None
    row = 0


class ValuesBatch(torch.Tensor):
    """In a worker, a batch of numbers over the memory of `shared`, which is sent without a copy. It arrives as a plain
    tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    shared: SharedBatch | None = None
    remake: Any = None


class ValuesBatches(tuple[torch.Tensor, ...]):
    """In a worker, batches of numbers over the memory of `shared`, sent together without a copy. They arrive as a plain
    tuple."""

    shared: SharedBatches
    dtype: torch.dtype


def rows_of(batch: torch.Tensor) -> list[RowImage]:
    """The images of a batch, for default_collate to make `batch` of again."""
    images = []
    for row, view in enumerate(batch.unbind()):
        image = view.as_subclass(RowImage)
        image.batch, image.row = batch, row
        images.append(image)
    return images


def values_batch(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A batch of `dtype` over the memory of `rows`, uint8 (B, bytes, height, width) in channels-last memory: (B,
    channels, height, width). Sent to another process without a copy if `rows` is."""
    return _over(rows, rows.permute(0, 2, 3, 1).view(dtype).permute(0, 3, 1, 2), values_batch)


def values_batches(rows: tuple[torch.Tensor, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """values_batch of each, sent to another process without a copy if `rows` are."""
    values = tuple(values_batch(batch, dtype) for batch in rows)
    if not isinstance(rows, SharedBatches):
        return values
    batches = ValuesBatches(values)
    batches.shared, batches.dtype = rows, dtype
    return batches


def numbers_batch(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As values_batch, of one channel, such as masks: (B, height, width)."""
    return _over(rows, rows.permute(0, 2, 3, 1).view(dtype)[:, :, :, 0], numbers_batch)


def _over(rows: torch.Tensor, values: torch.Tensor, remake: Callable[..., torch.Tensor]) -> torch.Tensor:
    if not isinstance(rows, SharedBatch):
        return values
    batch = values.as_subclass(ValuesBatch)
    batch.shared, batch.remake = rows, remake
    return batch


def _collate_rows(images: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    batch: torch.Tensor | None = getattr(images[0], "batch", None)
    if batch is not None and len(batch) == len(images):
        if all(isinstance(at, RowImage) and at.batch is batch and at.row == row for row, at in enumerate(images)):
            return batch
    plain = [image.as_subclass(torch.Tensor) for image in images]
    stacked: torch.Tensor = collate_tensor_fn(plain, collate_fn_map=collate_fn_map)
    return stacked


default_collate_fn_map[RowImage] = _collate_rows  # as documented for types of one's own


def _reduce_values(batch: ValuesBatch) -> Any:
    if batch.shared is None:
        return reduce_tensor(batch.as_subclass(torch.Tensor))  # type: ignore[no-untyped-call]
    return batch.remake, (batch.shared, batch.dtype)


def _reduce_all_values(batches: ValuesBatches) -> Any:
    return values_batches, (batches.shared, batches.dtype)


def _reduce_row(image: RowImage) -> Any:
    return reduce_tensor(image.as_subclass(torch.Tensor))  # type: ignore[no-untyped-call]


ForkingPickler.register(ValuesBatch, _reduce_values)
ForkingPickler.register(ValuesBatches, _reduce_all_values)
ForkingPickler.register(RowImage, _reduce_row)
