"""Samples -> images in the form that a dataset gives: all that is stored, or crops, which may be rows of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from presize.datasets.collate import Images, Views, new_batches
from presize.datasets.joined import JoinedData
from presize.datasets.reading.batches import BatchReader
from presize.datasets.reading.outputs import Decode, LazyImage, to_output
from presize.datasets.reading.whole_batches import rows_of, values_batch
from presize.store.dataset import Dataset

Draws = tuple[int, int, npt.NDArray[np.int64]]
"""(seed, epoch, keys) from which crops are drawn, as for BatchReader.read."""


def read_images(data: Dataset | JoinedData, samples: Sequence[int], decode: Decode, *, lazily: bool) -> list[Any]:
    """The stored images of `samples`, in their order.

    Args:
        data: the dataset.
        samples: their numbers in it.
        decode: the form of the images, as in LMDBDataset.
        lazily: whether PIL images of JPEGs may be decoded when their pixels are needed.

    Raises:
        DatasetError: an image is damaged.
    """
    images: list[Any] = [None] * len(samples)
    if decode == "bytes":
        for position, value in data.values(samples):
            images[position] = bytes(value)
    elif lazily and decode == "pil" and data.manifest.format == "jpeg":
        for position, value in data.values(samples):
            images[position] = _lazy_image(data, samples[position], value)
    else:
        for position, pixels in data.pixels(samples):
            images[position] = to_output(pixels, decode)
    return images


def _lazy_image(data: Dataset | JoinedData, sample: int, value: memoryview) -> LazyImage:
    damage = partial(data.damage, sample)
    color: Any = data.manifest.color  # of images, not of a companion, which has no JPEGs with exact values
    try:
        return LazyImage(bytes(value), color, data.shape(sample), data.max_pixels, damage)
    except ValueError as error:
        raise damage(error) from None


def read_crops(
    reader: BatchReader, samples: Sequence[int], draws: Draws, decode: Decode, *, dtype: torch.dtype | None, whole: bool
) -> tuple[list[Any], Images]:
    """The crops of `samples`, in their order: of each an image, or Views of several; and the batch of all, or that of
    each view.

    Args:
        reader: reads the crops.
        samples: their numbers in the dataset.
        draws: from which the crops are drawn.
        decode: the form of the images, as in LMDBDataset. The batch is always a tensor.
        dtype: of the numbers in the rows of a reader that normalizes (Normalization.in_workers); None for pixels.
        whole: whether the batch will be passed on as it is. In a DataLoader's worker, its memory is then shared with
            the consumer.

    Raises:
        DatasetError: an image is damaged, or too small for a crop.
    """
    whole = whole and len(samples) > 1
    pixels, batches = new_batches([(len(samples), *shape) for shape in reader.rows.shapes], travel=whole)
    reader.read(pixels, np.array(samples, np.int64), *draws)
    if dtype is not None:
        batches = tuple(values_batch(batch, dtype) for batch in batches)
    views: list[Sequence[Any]]
    if decode == "tensor":
        views = [rows_of(batch) if whole else batch.unbind() for batch in batches]
    else:
        squeezed = [array[:, :, :, 0] if array.shape[3] == 1 else array for array in pixels]
        views = [[to_output(image, decode) for image in array] for array in squeezed]
    if reader.has_views:
        return [Views(parts) for parts in zip(*views, strict=True)], batches
    return list(views[0]), batches[0]
