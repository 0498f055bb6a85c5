"""Images of samples, of the types that a dataset returns: whole, or crops, which may be rows of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from presize.codecs.stored_value import DAMAGE
from presize.datasets.collate import Views
from presize.datasets.crops import Crops
from presize.datasets.fuse import Fused, Transform, fuse
from presize.datasets.joined import JoinedData
from presize.datasets.reading.batch_reader import BatchReader
from presize.datasets.reading.memory import new_batch, rows_of
from presize.datasets.reading.regions import like_images
from presize.datasets.reading.stored_image import Decode, StoredImage, StoredJpeg, images_of, to_output
from presize.datasets.reading.transfer import Normalize, normalized
from presize.datasets.targets import tv_tensors_module
from presize.options import check_function
from presize.store.dataset import Dataset

Draws = tuple[int, int, npt.NDArray[np.int64]]
"""(seed, epoch, keys) from which crops are drawn, as for BatchReader.read."""


class SampleImages:
    """A reader of samples' images, as Views if there are several. Thread-safe. `reader`: None for whole images."""

    def __init__(
        self,
        data: Dataset | JoinedData,
        decode: Decode,
        companions: Sequence[str] = (),
        tv_tensors: bool = False,
        crop: Crops | None = None,
        flip: float = 0.0,
        normalize: Normalize | None = None,
    ) -> None:
        self.data = data
        self.decode: Decode = decode
        self.names = tuple(companions)
        self.companions: list[Any] = [data.companion(name) for name in companions]
        self.tv_tensors = tv_tensors
        self.reader: BatchReader | None = None
        if crop is not None or flip:
            reader = BatchReader(data, crop, flip, companions=self.companions)  # type: ignore[arg-type]
            self.reader, _ = normalized(reader, normalize)

    def of(self, data: Dataset | JoinedData) -> SampleImages:
        """Return the same reader for another dataset."""
        crops = () if self.reader is None else (self.reader.crop, self.reader.flip)
        return SampleImages(data, self.decode, self.names, self.tv_tensors, *crops)

    def read_with(self, transform: Transform | None, takes_over: bool) -> TransformedImages:
        check_function("transform", transform)
        if not takes_over:
            return TransformedImages(self, transform, transform)
        fused = fuse(transform, decode=self.decode, data=self.data)  # type: ignore[arg-type]
        if isinstance(fused.crop, tuple) and self.companions:
            reason = "companions come with one view of their image"
            fused = replace(
                fused, crop=None, flip=0.0, normalize=None, rest=transform, decode=self.decode, taken=(),
                stays=fused.taken + fused.stays, reason=reason,
            )  # fmt: skip
        crops = fused.crop, fused.flip, fused.normalize
        images = SampleImages(self.data, fused.decode, self.names, self.tv_tensors, *crops)
        return TransformedImages(images, transform, fused.rest, fused)

    def stored(self, samples: Sequence[int], *, lazily: bool) -> list[Any]:
        """Return the stored images of `samples`. `lazily`: PIL images of JPEGs may be decoded at first use."""
        images = _stored(self.data, samples, self.decode, lazily)
        if not self.companions:
            return images
        others = [self._wrapped(data, samples, _stored(data, samples, self.decode, False)) for data in self.companions]
        return [Views(parts) for parts in zip(images, *others, strict=True)]

    def crops(self, reader: BatchReader, samples: Sequence[int], draws: Draws, *, whole: bool) -> list[Any]:
        """Return the crops of `samples`. `whole`: as rows of one batch, which collate returns without a copy."""
        whole = whole and len(samples) > 1
        rows, tensors = new_batch(reader.formats, len(samples), travels=whole)
        reader.read(rows, np.array(samples, np.int64), *draws)
        images = [self._images(tensor, whole) for tensor in tensors[: reader.views]]
        for companion, tensor in zip(reader.companions, tensors[reader.views :], strict=True):
            if companion.data.manifest.is_array and self.decode != "tensor":  # NumPy's, also with "pil"
                own: Any = list((tensor.permute(0, 2, 3, 1) if companion.formats[0].channels_last else tensor).numpy())
            else:
                own = self._images(tensor, whole)
            images.append(self._wrapped(companion.data, samples, own))
        return [Views(parts) for parts in zip(*images, strict=True)] if reader.gives_tuples else list(images[0])

    def nbytes(self) -> float:
        if self.reader is not None:
            return sum(math.prod(format.row_shape) for format in self.reader.formats)
        if not len(self.data):
            return 0
        heights, widths = self.data.numbers("height"), self.data.numbers("width")
        arrays = [data for data in self.companions if data.manifest.is_array]
        images = [data for data in self.companions if data not in arrays]
        manifest = self.data.manifest
        pixel_bytes = manifest.channels * manifest.depth // 8
        pixel_bytes += sum(data.manifest.depth // 8 if _is_exact(data) else 3 for data in images)
        pixels = np.multiply(heights, widths, dtype=np.int64).mean()
        return float(pixel_bytes * pixels + sum(data.numbers("nbytes").mean() for data in arrays))

    def _wrapped(self, companion: Dataset, samples: Sequence[int], images: Sequence[Any]) -> Sequence[Any]:
        """Return the tensors of a companion as torchvision's masks if `tv_tensors`."""
        if not self.tv_tensors or self.decode != "tensor" or not _is_exact(companion):
            return images
        mask = tv_tensors_module().Mask
        if not companion.manifest.is_array:
            return [mask(image) for image in images]
        are_cropped = like_images(companion, samples).tolist()
        return [mask(image) if is_cropped else image for image, is_cropped in zip(images, are_cropped, strict=True)]

    def _images(self, batch: torch.Tensor, whole: bool) -> Sequence[Any]:
        return rows_of(batch) if whole and self.decode == "tensor" else images_of(batch, self.decode)


class TransformedImages(NamedTuple):
    """Images and their transform. `fused`: how `transform` was split; `rest`: the part that is still to be called."""

    images: SampleImages
    transform: Transform | None
    rest: Transform | None
    fused: Fused | None = None

    @property
    def normalize(self) -> Normalize | None:
        return None if self.fused is None else self.fused.normalize

    @property
    def reads_batches(self) -> bool:
        images = self.images
        is_plain = images.decode == "tensor" and not (images.tv_tensors and images.companions)
        return images.reader is not None and is_plain and self.rest is None


def _is_exact(data: Dataset | JoinedData) -> bool:
    return data.manifest.color == "exact"


def _stored(data: Dataset | JoinedData, samples: Sequence[int], decode: Decode, lazily: bool) -> list[Any]:
    images: list[Any] = [None] * len(samples)
    if decode == "bytes":
        for position, value in data.values(samples):
            images[position] = bytes(value)
    elif decode == "pil" and data.manifest.format == "jpeg" and not _is_exact(data):
        for position, value in data.values(samples):
            image = _stored_image(data, samples[position], value)
            images[position] = image if lazily else image.decode()
    elif data.manifest.is_array:
        are_cropped = like_images(data, samples).tolist()
        for position, values in data.pixels(samples):
            images[position] = _array_output(values, decode, are_cropped[position])
    else:
        make = _numbers_output if _is_exact(data) else to_output
        for position, pixels in data.pixels(samples):
            images[position] = make(pixels, decode)
    return images


def _array_output(values: npt.NDArray[Any], decode: Decode, is_cropped: bool) -> Any:
    """Return an array, also with decode="pil", or a tensor, which has channels first if it is cropped."""
    if decode != "tensor":
        return values
    tensor = torch.from_numpy(values)
    return tensor.permute(2, 0, 1) if is_cropped and tensor.ndim == 3 else tensor


def _numbers_output(pixels: npt.NDArray[Any], decode: Decode) -> Any:
    return torch.from_numpy(pixels) if decode == "tensor" and pixels.ndim == 2 else to_output(pixels, decode)


def _stored_image(data: Dataset | JoinedData, sample: int, value: memoryview) -> StoredImage:
    damage = partial(data.damage, sample)
    color: Any = data.manifest.color  # of images, not of a companion's exact values
    try:
        return StoredImage(StoredJpeg(bytes(value), color, data.shape(sample), data.max_pixels, damage))
    except DAMAGE as error:
        raise damage(error) from None
