"""The forms in which a dataset gives an image."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from presize.options import check_choice

Decode = Literal["pil", "numpy", "tensor", "bytes"]


def check_decode(decode: str) -> None:
    """Raise OptionError unless `decode` is one of the choices."""
    check_choice("decode", decode, Decode)


def to_output(pixels: npt.NDArray[np.uint8], decode: Decode) -> Any:
    """`pixels`, uint8 (height, width, 3) or (height, width), as a PIL image, an array, or a tensor
    (channels, height, width) over the same memory."""
    if decode == "pil":
        return Image.fromarray(pixels)
    if decode == "numpy":
        return pixels
    tensor = torch.from_numpy(pixels)
    return tensor.permute(2, 0, 1) if pixels.ndim == 3 else tensor.unsqueeze(0)
