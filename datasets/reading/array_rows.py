"""The arrays of a companion -> rows of a batch: of one type, and of one shape, or as their images are cropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from presize.codecs.arrays import HEADER_BYTES, ArrayHeader, decode_array
from presize.codecs.source_facts import unpack_facts
from presize.datasets.reading.regions import Region, View, nearest
from presize.errors import OptionError


def like_images(data: Any, samples: Sequence[int] | slice = slice(None)) -> npt.NDArray[np.bool_]:
    """Whether each array of a companion, as Dataset.companion gives it, has the height and width of its image."""
    return np.asarray(unpack_facts(data.numbers("source_facts")[samples], "like_image") == 1)


@dataclass(frozen=True)
class ArrayRows:
    """Fills rows with arrays; called as read_region is. Thread-safe.

    `shape` is that of each array; of those that are cropped with their images what follows height and width.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_cropped: bool

    @classmethod
    def of(cls, data: Any) -> Self:
        """Make that of a companion from the index and the first record. Raises OptionError if its arrays differ."""
        for _, value in data.values([0]):
            try:
                header = ArrayHeader.of(value)
            except ValueError as error:
                raise data.damage(0, error) from None
        are_cropped = like_images(data)
        heights, widths = (data.numbers(name).astype(np.int64) for name in ("height", "width"))
        nbytes = data.numbers("nbytes") - HEADER_BYTES
        is_cropped, sizes = bool(are_cropped[0]), heights * widths
        alike = (are_cropped == is_cropped).all() and (nbytes * sizes[0] == nbytes[0] * sizes).all()
        if not alike or not (is_cropped or ((heights == heights[0]).all() and (widths == widths[0]).all())):
            raise OptionError(
                f"companions: the arrays of {data.companion_name!r} in {data.root} differ in shape or type and cannot "
                "be stacked; read without a crop, or name the companions to read: companions=(...)"
            )
        return cls(header.dtype.newbyteorder("="), header.shape[2 if is_cropped else 0 :], is_cropped)

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.from_numpy(np.empty(0, self.dtype)).dtype

    def __call__(self, views: Sequence[View], region: Region, shape: tuple[int, int], scale: int) -> None:  # noqa: ARG002
        (view,) = views
        values = decode_array(region.data)
        expected = (*shape, *self.shape) if self.is_cropped else self.shape
        if values.dtype != self.dtype or values.shape != expected:
            raise ValueError(
                f"it is {values.dtype} of shape {values.shape}, and the first one has {self.dtype} and so {expected}"
            )
        out = view.out.view(self.dtype)
        if self.is_cropped:
            nearest(values, view, shape, out)
        else:
            out[...] = values
