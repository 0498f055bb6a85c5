"""The forms in which a dataset gives an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from presize.datasets.reading.stored_image import StoredImage, plain_image
from presize.errors import OptionError
from presize.options import check_choice
from presize.store.manifest import Manifest

Decode = Literal["pil", "numpy", "tensor", "bytes"]


def check_decode(decode: str, is_cropped: bool = False) -> None:
    """Raise OptionError unless `decode` is one of the choices, and goes with a crop where there is one."""
    check_choice("decode", decode, Decode)
    if decode == "bytes" and is_cropped:
        raise OptionError("decode: bytes are not decoded, so they cannot be cropped or flipped; choose another")


def check_pil(decode: Decode, manifest: Manifest) -> None:
    """Raise OptionError where `decode` is "pil" and the images are such as PIL does not have."""
    if decode == "pil" and manifest.depth == 16 and manifest.color not in ("gray", "exact"):
        raise OptionError("decode: PIL has no colour images of 16 bits; choose numpy or tensor")


def to_output(pixels: npt.NDArray[Any], decode: Decode) -> Any:
    """`pixels`, uint8 or uint16 (height, width, 3), (height, width, 4) or (height, width), as a PIL image, an array, or
    a tensor (channels, height, width), over the same memory."""
    if decode == "pil":
        return plain_image(pixels) if pixels.dtype == np.uint16 else StoredImage(pixels)
    if decode == "numpy":
        return pixels
    tensor = torch.from_numpy(pixels)
    return tensor.permute(2, 0, 1) if pixels.ndim == 3 else tensor.unsqueeze(0)


def images_of(batch: torch.Tensor, decode: Decode) -> Sequence[Any]:
    """The images of a batch, each as to_output() gives it. PIL images have copies of their pixels: with a view each
    would keep those of the whole batch."""
    if decode == "tensor":
        return batch.unbind()
    pixels = (batch.permute(0, 2, 3, 1) if batch.ndim == 4 else batch).numpy()
    squeezed = pixels[:, :, :, 0] if pixels.shape[3:] == (1,) else pixels
    return [to_output(image.copy() if decode == "pil" else image, decode) for image in squeezed]
