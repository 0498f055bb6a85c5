"""One source image -> one stored value for each size: everything that a build does to an image. Pure.

bytes -> header -> targets -> one decode, at reduced size if that loses nothing -> resize -> encode"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from presize.codecs import arrays, decode, encode, resize, sniff
from presize.codecs.exact import decode_any, decode_numbers, narrowed
from presize.codecs.jpeg import metadata as jpeg_metadata
from presize.codecs.jpeg import segments as jpeg_segments
from presize.codecs.jpeg import tiles as tiling
from presize.codecs.pillow_decoder import Wanted
from presize.codecs.source_facts import Facts
from presize.codecs.tiff import with_orientation_reset
from presize.codecs.unchanged import fits, unchanged
from presize.errors import ImageError
from presize.options import KEEP, ImageOptions, Size


class Record(NamedTuple):
    """One stored image: its encoded bytes, and its size in pixels."""

    value: bytes
    height: int
    width: int


class Transcoded(NamedTuple):
    """Transcoded image: a record for each of ImageOptions.sizes, and the source's upright size and packed facts."""

    records: tuple[Record, ...]
    source: Size
    facts: int


def transcode(data: bytes, options: ImageOptions) -> Transcoded:
    """Decode, resize and encode one image of any supported format. Thread-safe. Raises ImageError if it cannot be
    stored."""
    as_it_is = unchanged(data, options) if KEEP in options.sizes else None
    if as_it_is is not None and options.sizes == (KEEP,):
        value, height, width, found = as_it_is
        return Transcoded((Record(_in_tiles(value, options), height, width),), Size(height, width), found.pack())
    header = jpeg_segments.parse(data) if sniff.sniff(data) == "jpeg" else None
    scale = 1
    targets = scaled = None
    if header is not None:
        upright = header.upright_size
        targets = _targets(upright, options)
        if options.filter != "nearest":  # nearest needs the original pixels, and a reduced decode averages them
            scale = decode_scale(targets)
            if options.resize_backend == "presize":
                shape = (-(-upright.height // scale), -(-upright.width // scale))
                scaled = [_scaled(target, upright, shape) for target in targets]
    wanted = Wanted(options.color, options.depth, options.icc)
    unfinished = options.color != "rgba" and options.depth == 8
    decoded = decode.decode(data, wanted, options.max_pixels, scale, header, unfinished, scaled, options.filter)
    source = decoded.source
    metadata = encode.Metadata()
    if options.keep_metadata:
        exif = with_orientation_reset(decoded.exif) if decoded.exif else None
        metadata = encode.Metadata(exif, decoded.xmp, decoded.comment)

    records = []
    facts = decoded.facts
    passes = header is not None and not facts.tolerated and fits(header, options)
    for number, (size, target) in enumerate(zip(options.sizes, targets or _targets(source, options), strict=True)):
        kept = as_it_is.value if as_it_is is not None and size == KEEP else None
        if kept is None and passes and target.is_whole_image:
            kept, _ = jpeg_metadata.strip(data, options.keep_metadata)
        if kept is not None:
            records.append(Record(_in_tiles(kept, options), *source))
            facts = facts._replace(kept=True)
            continue
        if decoded.resized:
            pixels = decoded.resized[number]
        else:
            inside, alpha = _scaled(target, source, decoded.pixels.shape), options.color == "rgba"
            pixels = resize.resize(decoded.pixels, inside, options.filter, options.resize_backend, alpha=alpha)
        if unfinished and (decoded.icc is not None or options.format != "jpeg"):
            pixels = decode.finish(pixels, decoded.icc, options.color)
        records.append(Record(encode.encode(pixels, options, metadata), *pixels.shape[:2]))
    return Transcoded(tuple(records), source, facts.pack())


def _in_tiles(kept: bytes, options: ImageOptions) -> bytes:
    """Recode a JPEG that would be stored unchanged, if all JPEGs are to have tiles."""
    return tiling.recoded(kept) if options.tiles == "all" and options.format == "jpeg" else kept


_KEPT_BYTES = 1 << 20
"""Estimate for images of any size: more than most photographs on the web, and small enough to map a shard of them."""


def record_bytes(options: ImageOptions, size: Size) -> int:
    """Return an upper estimate of the bytes of a stored record, for sizing maps and transactions. With fit "shorter",
    twice the square covers most photographs; a shard that overflows is restarted with a larger map."""
    if size == KEEP:
        return _KEPT_BYTES
    channels = 4 if options.color == "rgba" else 3
    return size.height * size.width * channels * (options.depth // 8) * (2 if options.fit == "shorter" else 1)


def _targets(source: Size, options: ImageOptions) -> list[resize.Target]:
    targets = [resize.target(source, size, options.fit, options.upscale) for size in options.sizes]
    for target in targets:
        height, width = target.size
        if height * width > max(options.max_pixels, source.height * source.width):
            raise ImageError(
                f"{width}x{height} pixels after enlarging, more than max_pixels allows ({options.max_pixels})"
            )
    return targets


def decode_scale(targets: list[resize.Target]) -> int:
    """Return k to decode at 1/k: the largest of 8, 4 and 2 that leaves twice each target's pixels per axis, or 1."""
    reduction = min(target.reduction for target in targets)
    return next((k for k in (8, 4, 2) if reduction >= 2 * k), 1)


def _scaled(target: resize.Target, source: Size, shape: tuple[int, ...]) -> resize.Target:
    """Convert `target` to the coordinates of an image decoded at a reduced size."""
    y, x = shape[0] / source.height, shape[1] / source.width
    if (y, x) == (1, 1):
        return target
    box = target.box
    return target._replace(box=resize.Box(box.top * y, box.left * x, box.height * y, box.width * x))


def transcode_companion(data: bytes, source: Size, options: ImageOptions, is_array: bool = False) -> Transcoded:
    """Decode, resize and encode a companion of an image, with options from Companion.image_options. Thread-safe. Raises
    ImageError if it cannot be stored.

    `source` is the upright (height, width) of the image; a companion image must have the same. With filter "nearest",
    pixels keep their values from the file. With `is_array`, the companion is stored as .npy: resized, with channels
    last, if its first two axes, or the last two of three, are those of the image, and otherwise unchanged."""
    if is_array:
        return _transcode_array(data, source, options)
    if options.filter != "nearest":
        made = transcode(data, options)
        _check_size(made.source, source)
        return made
    values, facts = decode_numbers(data, options.max_pixels)
    _check_size(Size(*values.shape[:2]), source)
    records = []
    for size in options.sizes:
        pixels = narrowed(_by_nearest(values, source, size, options))
        records.append(Record(encode.encode(pixels, options), *pixels.shape[:2]))
    return Transcoded(tuple(records), source, facts.pack())


def _transcode_array(data: bytes, source: Size, options: ImageOptions) -> Transcoded:
    values, facts = _decode_array(data, options.max_pixels)
    if values.ndim == 3 and values.shape[:2] != source == values.shape[1:]:
        values = np.moveaxis(values, 0, 2)
    like_image = values.shape[:2] == source
    records = []
    for size in options.sizes:
        stored = _by_nearest(values, source, size, options) if like_image else values
        records.append(Record(arrays.encode_array(stored), *arrays.index_size(stored.shape)))
    return Transcoded(tuple(records), source, facts._replace(like_image=like_image).pack())


def _by_nearest(values: arrays.Values, source: Size, size: Size, options: ImageOptions) -> arrays.Values:
    target = resize.target(source, size, options.fit, options.upscale)
    return resize.resize(values, target, "nearest", options.resize_backend)


def _decode_array(data: bytes, max_pixels: int) -> tuple[arrays.Values, Facts]:
    """Decode a .npy, an OpenEXR file, or an image whose pixels are numbers."""
    if data.startswith(sniff.EXR):
        return arrays.read_exr(data, max_pixels), Facts("other")
    if not data.startswith(sniff.NPY):
        return decode_any(data, max_pixels)
    try:
        return arrays.decode_array(data), Facts("other")
    except ValueError as error:
        raise ImageError(str(error)) from None


def _check_size(found: Size, source: Size) -> None:
    if found != source:
        turned = "; EXIF turns only one of the two" if (found.width, found.height) == source else ""
        raise ImageError(
            f"{found.width} x {found.height} pixels, but its image has {source.width} x {source.height}, "
            f"upright{turned}"
        )
