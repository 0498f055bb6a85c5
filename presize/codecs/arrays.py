"""Numeric arrays that accompany an image, such as depth, normals or an embedding: read from .npy files, OpenEXR files
and images whose pixels are numbers, and stored as .npy. Pure. Nothing is unpickled."""

from __future__ import annotations

import functools
import importlib
import io
import math
import re
import struct
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from presize.codecs.sniff import NPY, check_size
from presize.errors import ImageError

Values = npt.NDArray[Any]

HEADER_BYTES = 128
"""Size of the header of a stored value, as numpy.save writes it, for any shape of 1 to 3 axes."""

_MOST_HEADER_BYTES = 10_000  # NumPy's own limit

_TYPES = frozenset("b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())
"""Kind and size in bytes, as in the `descr` of a .npy: booleans, integers, floating-point and complex numbers."""

_DESCR = re.compile(r"""['"]descr['"]\s*:\s*['"]([<>|=]?)([^'"]+)['"]""")
_ORDER = re.compile(r"""['"]fortran_order['"]\s*:\s*(True|False)\b""")
_SHAPE = re.compile(r"""['"]shape['"]\s*:\s*\(([\d,\sL]*)\)""")


class ArrayHeader(NamedTuple):
    """Header of a .npy file. `is_fortran`: the first axis changes fastest; `begin`: byte offset of the numbers."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    begin: int

    @classmethod
    def of(cls, data: bytes | memoryview) -> Self:
        """Parse the header without evaluating it. Raises ValueError unless it describes an array of numbers with 1 to 3
        axes that lies within `data`."""
        size, field = ("<H", 2) if data[6:7] == b"\1" else ("<I", 4)
        begin = 8 + field
        if data[:6] != NPY or len(data) < begin:
            raise ValueError("not a .npy file: wrong first bytes")
        (nbytes,) = struct.unpack(size, data[8:begin])
        if nbytes > _MOST_HEADER_BYTES:
            raise ValueError(f"its header has {nbytes:,} bytes, more than {_MOST_HEADER_BYTES:,}")
        dtype, shape, is_fortran = _parsed(bytes(data[begin : begin + nbytes]))
        begin += nbytes
        needed = begin + math.prod(shape) * dtype.itemsize
        if needed > len(data):
            raise ValueError(f"it has {len(data):,} bytes, but its header says {needed:,}")
        return cls(dtype, shape, is_fortran, begin)


@functools.lru_cache(64)  # a dataset has few distinct headers, a batch mostly one
def _parsed(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    text = header.decode("latin1")
    descr, order, axes = (pattern.search(text) for pattern in (_DESCR, _ORDER, _SHAPE))
    if order is None or axes is None:
        raise ValueError("the .npy header lacks fortran_order or shape")
    if descr is None or descr[2] not in _TYPES:
        kind = "several fields" if descr is None else "Python objects" if descr[2] == "O" else f"{descr[2]!r}"
        raise ValueError(f"an array of {kind}; expected numbers of up to 64 bits, or complex ones of up to 128")
    shape = tuple(int(length) for length in axes[1].replace("L", "").split(",") if length.strip())
    if not 1 <= len(shape) <= 3 or max(shape) >= 1 << 31:
        raise ValueError(f"an array of shape {shape}; expected 1 to 3 axes, each of less than 2**31")
    return np.dtype(descr[1] + descr[2]), shape, order[1] == "True"


def decode_array(data: bytes | memoryview) -> Values:
    """Return the array of a .npy, new, C-contiguous and in native byte order. Raises ValueError like ArrayHeader.of."""
    dtype, shape, is_fortran, begin = ArrayHeader.of(data)
    numbers = np.frombuffer(data, dtype, math.prod(shape), begin).reshape(shape, order="F" if is_fortran else "C")
    return numbers.astype(dtype.newbyteorder("="), order="C")


def encode_array(values: Values) -> bytes:
    """Encode as .npy, like numpy.save of a C-contiguous little-endian array, regardless of the version of NumPy."""
    little = values.astype(values.dtype.newbyteorder("<"), order="C", copy=False)
    text = f"{{'descr': '{little.dtype.str}', 'fortran_order': False, 'shape': {little.shape}, }}"
    room = HEADER_BYTES - 10
    return NPY + b"\1\0" + struct.pack("<H", room) + f"{text:{room - 1}}\n".encode() + little.tobytes()


def index_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (height, width) of an array for the index: its first two axes, at least 1 each; 1 for a missing axis."""
    height, width = (*shape, 1)[:2]
    return max(1, height), max(1, width)


def read_exr(data: bytes, max_pixels: int) -> Values:
    """Return the channel of an OpenEXR file, (height, width), or its R, G and B, (height, width, 3), in their own type.
    Raises ImageError if the file is broken, too large or has other channels, and if OpenEXR is not installed."""
    try:
        OpenEXR: Any = importlib.import_module("OpenEXR")
    except ImportError:
        raise ImageError('OpenEXR files need OpenEXR, which is not installed: pip install "presize[exr]"') from None
    OpenEXR.set_global_thread_count(0)  # workers are processes
    try:
        file = OpenEXR.InputFile(io.BytesIO(data))
        header = file.header()
        low, high = header["dataWindow"].min, header["dataWindow"].max
        height, width = high.y - low.y + 1, high.x - low.x + 1
        check_size(height, width, max_pixels)
        channels = header["channels"]
        names = ["R", "G", "B"] if set(channels) == {"R", "G", "B"} else list(channels)
        sampled = {(channel.xSampling, channel.ySampling) for channel in channels.values()}
        if len(names) not in (1, 3) or (len(names) == 3 and names[0] != "R") or sampled != {(1, 1)}:
            raise ImageError(f"its channels are {', '.join(names)}; expected one, or R, G and B, without subsampling")
        types = {0: np.uint32, 1: np.float16, 2: np.float32}
        planes = [np.frombuffer(file.channel(n), types[channels[n].type.v]).reshape(height, width) for n in names]
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise ImageError(f"broken EXR: {error}") from None
    return planes[0] if len(planes) == 1 else np.stack(planes, axis=2)
