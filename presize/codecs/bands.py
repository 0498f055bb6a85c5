"""TIFFs with bands beside the colours, such as near infrared. Pillow takes an undeclared fourth band for alpha, and
reads few other layouts, so bands are read as grey here, and colours and declared alpha written as a plain TIFF. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from presize.codecs import plugins, tiff
from presize.codecs.tiff import Fields, Tiff
from presize.errors import ImageError

Values = npt.NDArray[Any]

_COLORS: Final = {2: 3, 5: 4, 6: 3, 8: 3}
"""The bands of each PHOTOMETRIC that has more than one."""
_RGB, _CMYK, _YCBCR, _LAB = 2, 5, 6, 8
_ALPHA: Final = (1, 2, 999)
"""EXTRA_SAMPLES: associated and unassociated alpha, and Corel Draw's."""

_BYTEWISE: Final = {1: False, 5: True, 8: True, 32773: False, 32946: True, 34925: True, 50000: True}
"""COMPRESSION that knows nothing of bands, and whether it heeds PREDICTOR: none, LZW, Deflate, PackBits, Deflate, LZMA,
Zstandard."""
_AS_MODE: Final = {2: (1, (2,)), 3: (_RGB, ()), 4: (_CMYK, ())}
"""PHOTOMETRIC and EXTRA_SAMPLES under which Pillow gives so many bands as they are."""


class Bands(NamedTuple):
    """The bands of a TIFF: what its colours are, how many come first, how many there are, which is declared alpha."""

    photometric: int
    colors: int
    total: int
    alpha: int | None

    @property
    def kept(self) -> list[int]:
        return [*range(self.colors), *([] if self.alpha is None else [self.alpha])]

    @property
    def has_surplus(self) -> bool:
        return self.total > len(self.kept)


def bands_of(image: Tiff, fields: Fields) -> Bands:
    photometric = image.number(fields, tiff.PHOTOMETRIC, 0)
    colors = _COLORS.get(photometric, 1)
    bands = image.number(fields, tiff.SAMPLES, colors)
    extra = image.numbers(fields, tiff.EXTRA_SAMPLES)[: max(bands - colors, 0)]
    alpha = next((colors + k for k, meaning in enumerate(extra) if meaning in _ALPHA), None)
    return Bands(photometric, colors, bands, alpha)


def plain(image: Tiff, fields: Fields, bands: Bands, max_pixels: int) -> bytes:
    """A TIFF of one directory, of its colours and alpha alone. Raises ImageError for bands that are not read."""
    bits = {*image.numbers(fields, tiff.BITS)}
    planar = image.number(fields, tiff.PLANAR, 1) == 2
    if bands.alpha is not None and (bands.photometric in (0, _CMYK, _LAB) or (bands.colors, bits) == (1, {16})):
        raise ImageError("its alpha is not supported, which is read beside RGB, a palette, and grey of 8 bits")
    # Pillow mixes up planes with alpha, and planes of 16 bits that are not compressed.
    deep = 16 in bits and bands.total > 1 and image.number(fields, tiff.COMPRESSION, 1) == 1
    mixed = planar and (bands.alpha is not None or deep)
    if not bands.has_surplus and not mixed:
        return image.alone(fields)
    width, height = image.number(fields, tiff.WIDTH, 0), image.number(fields, tiff.HEIGHT, 0)
    if height * width * bands.total > 4 * max_pixels:
        raise ImageError(
            f"{width} x {height} pixels of {bands.total} bands, more than max_pixels allows ({max_pixels})"
        )
    unsigned = {*image.numbers(fields, tiff.SAMPLE_FORMAT)} <= {1}
    if bits not in ({8}, {16}) or not unsigned or bands.photometric == _YCBCR:
        kind = "unsigned numbers of 8 or 16 bits, and not as YCbCr"
        raise ImageError(f"{bands.total} bands, which are only read as {kind}")
    (depth,) = bits
    values = (_planes if planar else _interleaved)(image, fields, bands)
    if values.shape[:2] != (height, width):
        raise ImageError("broken TIFF: its bands have other sizes than the image")
    pixels = values.astype(f"{image.order}u{depth // 8}").tobytes()
    meaning = image.numbers(fields, tiff.EXTRA_SAMPLES)
    changes = {
        tiff.BITS: (depth,) * len(bands.kept),
        tiff.COMPRESSION: (1,),
        tiff.FILL_ORDER: (),
        tiff.STRIPS: (len(image.data),),
        tiff.SAMPLES: (len(bands.kept),),
        tiff.STRIP_ROWS: (height,),
        tiff.STRIP_BYTES: (len(pixels),),
        tiff.PLANAR: (1,),
        tiff.PREDICTOR: (),
        **dict.fromkeys((tiff.TILE_WIDTH, tiff.TILE_HEIGHT, tiff.TILES, tiff.TILE_BYTES), ()),
        tiff.EXTRA_SAMPLES: () if bands.alpha is None else (meaning[bands.alpha - bands.colors],),
        tiff.SAMPLE_FORMAT: (),
    }
    return image.alone(fields, changes, pixels)


def declares_alpha(data: bytes, name: str) -> bool:
    """Return whether an image that Pillow gives an alpha channel declares it: a TGA or JPEG 2000 may not."""
    if name == "tga":
        return data[17] & 15 != 0 or data[1] == 1  # bits of alpha; a palette has its own
    return name != "jpeg2000" or _opacity_in_boxes(data)


def _opacity_in_boxes(data: bytes) -> bool:
    """Return whether the boxes of a JP2 define a channel (cdef) as opacity. A bare codestream has none."""
    at, end = 0, len(data)
    while at + 8 <= end:
        nbytes, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"jp2h":
            at += 8
        elif kind == b"cdef":
            types = [int.from_bytes(data[field : field + 2]) for field in range(at + 12, min(at + nbytes, end) - 1, 6)]
            return 1 in types or 2 in types
        elif nbytes < 8:  # of 64 bits, or up to the end: the codestream
            return False
        else:
            at += nbytes
    return False


def _planes(image: Tiff, fields: Fields, bands: Bands) -> Values:
    """The kept bands of a TIFF in which each lies by itself."""
    planes = []
    for band in bands.kept:
        changes: dict[int, Sequence[int]] = {}
        for tag in (tiff.STRIPS, tiff.STRIP_BYTES, tiff.TILES, tiff.TILE_BYTES):
            places = image.numbers(fields, tag)
            each = len(places) // bands.total
            changes[tag] = places[band * each : (band + 1) * each]
        planes.append(_grey(image, fields, {**changes, tiff.PLANAR: (1,)}))
    return np.stack(planes, axis=-1)


def _interleaved(image: Tiff, fields: Fields, bands: Bands) -> Values:
    """The kept bands of a TIFF in which those of a pixel follow one another."""
    compression = image.number(fields, tiff.COMPRESSION, 1)
    width, tile = image.number(fields, tiff.WIDTH, 0), image.number(fields, tiff.TILE_WIDTH, 0)
    if compression not in _BYTEWISE:
        if bands.total not in _AS_MODE:
            raise ImageError(f"{bands.total} bands in compression {compression}, which is read with at most 4")
        photometric, extra = _AS_MODE[bands.total]
        values = _read(image, fields, {tiff.PHOTOMETRIC: (photometric,), tiff.EXTRA_SAMPLES: extra})
        return values[:, :, bands.kept]
    # All bands of a row as grey pixels; the predictor, which would look at the neighbour of another band, by hand.
    changes = {tiff.WIDTH: (width * bands.total,), tiff.TILE_WIDTH: (tile * bands.total,) if tile else ()}
    values = _grey(image, fields, {**changes, tiff.PREDICTOR: ()})
    values = values.reshape(values.shape[0], width, bands.total)[:, :, bands.kept]
    predictor = image.number(fields, tiff.PREDICTOR, 1) if _BYTEWISE[compression] else 1
    if predictor == 1:
        return values
    if predictor != 2:
        raise ImageError(f"broken TIFF: predictor {predictor} for whole numbers")
    cuts = [*range(tile, width, tile)] if tile else []
    parts = np.split(values, cuts, axis=1)
    return np.concatenate([part.cumsum(axis=1, dtype=part.dtype) for part in parts], axis=1)


def _grey(image: Tiff, fields: Fields, changes: Mapping[int, Sequence[int]]) -> Values:
    bits = image.numbers(fields, tiff.BITS)[:1]
    plain = {tiff.BITS: bits, tiff.PHOTOMETRIC: (1,), tiff.SAMPLES: (1,), tiff.EXTRA_SAMPLES: (), tiff.COLOR_MAP: ()}
    return _read(image, fields, {**changes, **plain, tiff.SAMPLE_FORMAT: ()})


def _read(image: Tiff, fields: Fields, changes: Mapping[int, Sequence[int]]) -> Values:
    opened = plugins.open_image(image.alone(fields, changes), "tiff")
    plugins.load(opened, "tiff")
    values = np.asarray(opened)
    return values.astype(values.dtype.newbyteorder("="))
