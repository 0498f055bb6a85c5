"""TIFFs with extra bands, such as near infrared. Pillow takes an undeclared fourth band for alpha and reads few other
layouts. This module reads each band as grey, and writes the colours and the declared alpha as a plain TIFF. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from presize.codecs import plugins, tiff
from presize.codecs.tiff import Fields, Tiff
from presize.errors import ImageError

Values = npt.NDArray[Any]

_COLORS: Final = {2: 3, 5: 4, 6: 3, 8: 3}
"""Number of colour bands of each PHOTOMETRIC with more than one."""
_RGB, _CMYK, _YCBCR, _LAB = 2, 5, 6, 8
_ALPHA: Final = (1, 2, 999)
"""Values of EXTRA_SAMPLES: associated alpha, unassociated alpha, and Corel Draw's alpha."""

_BYTEWISE: Final = {1: False, 5: True, 8: True, 32773: False, 32946: True, 34925: True, 50000: True}
"""Values of COMPRESSION that ignore bands, and whether PREDICTOR applies: none, LZW, Deflate, PackBits, Deflate, LZMA,
Zstandard."""
_AS_MODE: Final = {2: (1, (2,)), 3: (_RGB, ()), 4: (_CMYK, ())}
"""PHOTOMETRIC and EXTRA_SAMPLES with which Pillow returns this many bands unchanged."""


class Bands(NamedTuple):
    """Bands of a TIFF: its PHOTOMETRIC, the number of leading colour bands and of all bands, the index of its alpha."""

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
    """Return a TIFF of one directory with only the colours and alpha. Raises ImageError for unsupported bands."""
    bits = {*image.numbers(fields, tiff.BITS)}
    planar = image.number(fields, tiff.PLANAR, 1) == 2
    if bands.alpha is not None and (bands.photometric in (0, _CMYK, _LAB) or (bands.colors, bits) == (1, {16})):
        raise ImageError("its alpha is not supported; expected alpha with RGB, a palette or 8-bit grey")
    # Pillow mixes up planes if one is alpha, or if they are uncompressed 16-bit.
    deep = 16 in bits and bands.total > 1 and image.number(fields, tiff.COMPRESSION, 1) == 1
    mixed = planar and (bands.alpha is not None or deep)
    readable = _readable(image, fields, bands, bits)
    if not bands.has_surplus and not mixed:
        return image.alone(fields, readable)
    width, height = image.number(fields, tiff.WIDTH, 0), image.number(fields, tiff.HEIGHT, 0)
    if height * width * bands.total > 4 * max_pixels:
        raise ImageError(
            f"{width} x {height} pixels of {bands.total} bands, more than max_pixels allows ({max_pixels})"
        )
    unsigned = {*image.numbers(fields, tiff.SAMPLE_FORMAT)} <= {1}
    if bits not in ({8}, {16}) or not unsigned or bands.photometric == _YCBCR:
        kind = "unsigned numbers of 8 or 16 bits, not as YCbCr"
        raise ImageError(f"{bands.total} bands are only supported as {kind}")
    (depth,) = bits
    values = (_planes if planar else _interleaved)(image, fields, bands)
    if values.shape[:2] != (height, width):
        raise ImageError("broken TIFF: its bands differ from the image in size")
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
    return image.alone(fields, readable | changes, pixels)


def _readable(image: Tiff, fields: Fields, bands: Bands, bits: set[int]) -> dict[int, Sequence[int]]:
    """Return changes with which Pillow reads grey of 12 and 16 bits where 0 is white, uninverted, in any byte order,
    and a palette of 8-bit values, as old writers store them, although the specification has 16."""
    changes: dict[int, Sequence[int]] = {}
    if bands.photometric == 0 and bits in ({12}, {16}):
        changes[tiff.PHOTOMETRIC] = (1,)
    colors = image.numbers(fields, tiff.COLOR_MAP)
    if colors and max(colors) <= 255:
        changes[tiff.COLOR_MAP] = [257 * value for value in colors]
    return changes


def declares_alpha(data: bytes, name: str) -> bool:
    """Return whether an image declares the alpha channel that Pillow gives it. TGA and JPEG 2000 may not."""
    if name == "tga":
        return data[17] & 15 != 0 or data[1] == 1  # alpha bits, or a palette with its own alpha
    return name != "jpeg2000" or _opacity_in_boxes(data)


def _opacity_in_boxes(data: bytes) -> bool:
    """Return whether the boxes of a JP2 define a channel (cdef) as opacity. A bare codestream has none."""
    box = next((content for kind, content in jp2_boxes(data) if kind == b"cdef"), b"")
    types = [int.from_bytes(box[at : at + 2]) for at in range(4, len(box) - 1, 6)]
    return 1 in types or 2 in types


def jp2_boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (kind, content) of the boxes of a JP2, and of those in its header, up to the codestream."""
    at = 0
    while at + 8 <= len(data):
        nbytes, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"jp2h":
            at += 8
        elif nbytes < 8:  # the codestream: its length has 64 bits (1), or it lasts until the end of the file (0)
            return
        else:
            if kind != b"jp2c":
                yield kind, data[at + 8 : at + nbytes]
            at += nbytes


def _planes(image: Tiff, fields: Fields, bands: Bands) -> Values:
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
    compression = image.number(fields, tiff.COMPRESSION, 1)
    width, tile = image.number(fields, tiff.WIDTH, 0), image.number(fields, tiff.TILE_WIDTH, 0)
    if compression not in _BYTEWISE:
        if bands.total not in _AS_MODE:
            raise ImageError(f"{bands.total} bands in compression {compression}; expected at most 4")
        photometric, extra = _AS_MODE[bands.total]
        values = _read(image, fields, {tiff.PHOTOMETRIC: (photometric,), tiff.EXTRA_SAMPLES: extra})
        return values[:, :, bands.kept]
    # Read all bands of a row as grey pixels. Undo the predictor here: libtiff would add neighbours of another band.
    changes = {tiff.WIDTH: (width * bands.total,), tiff.TILE_WIDTH: (tile * bands.total,) if tile else ()}
    values = _grey(image, fields, {**changes, tiff.PREDICTOR: ()})
    values = values.reshape(values.shape[0], width, bands.total)[:, :, bands.kept]
    predictor = image.number(fields, tiff.PREDICTOR, 1) if _BYTEWISE[compression] else 1
    if predictor == 1:
        return values
    if predictor != 2:
        raise ImageError(f"broken TIFF: predictor {predictor} for integers")
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
