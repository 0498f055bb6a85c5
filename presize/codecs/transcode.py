"""One source image -> one stored value for each size: all that a build does to an image. Pure.

bytes -> header -> targets -> one decode, at reduced size where that loses nothing -> resize -> encode
"""

from __future__ import annotations

from typing import NamedTuple

from presize.codecs import decode, encode, icc, jpeg_metadata, jpeg_segments, resize, sniff
from presize.codecs.exif import with_orientation_reset
from presize.codecs.pillow_decoder import Decoded
from presize.options import ImageOptions, Size


class Record(NamedTuple):
    """One stored image: its encoded bytes, and its height and width in pixels."""

    value: bytes
    height: int
    width: int


class Transcoded(NamedTuple):
    """A source image, transcoded.

    Attributes:
        records: one for each of ImageOptions.sizes.
        source: its upright height and width, in pixels.
        facts: what it was (presize.codecs.source_facts), packed.
    """

    records: tuple[Record, ...]
    source: Size
    facts: int


def transcode(data: bytes, options: ImageOptions) -> Transcoded:
    """Decode, resize and encode one image of any format that presize.codecs.decode reads. Thread-safe.

    Raises:
        ImageError: the image cannot be stored; the message says why.
    """
    header = jpeg_segments.parse(data) if sniff.sniff(data) == "jpeg" else None
    scale = 1
    targets = None
    if header is not None:
        targets = _targets(_upright(header), options)
        if options.filter != "nearest":  # it takes pixels as they are, and a reduced decode gives means of them
            scale = _decode_scale(targets)
    decoded = decode.decode(data, options.color, options.max_pixels, scale, header, unfinished=True)
    source = Size(decoded.source_height, decoded.source_width)
    metadata = encode.Metadata()
    if options.keep_metadata:
        exif = with_orientation_reset(decoded.exif) if decoded.exif else None
        metadata = encode.Metadata(exif, decoded.xmp, decoded.comment)

    records = []
    facts = decoded.facts
    for target in targets or _targets(source, options):
        if target.is_whole_image and _passes_through(decoded, options):
            records.append(Record(jpeg_metadata.strip(data, options.keep_metadata), *source))
            facts = facts._replace(kept=True)
            continue
        pixels = resize.resize(
            decoded.pixels,
            _scaled(target, source, decoded.pixels.shape),
            options.filter,
            options.resize_backend,
        )
        if decoded.icc is not None or options.format != "jpeg":
            pixels = decode.finish(pixels, decoded.icc, options.color)
        records.append(Record(encode.encode(pixels, options, metadata), *pixels.shape[:2]))
    return Transcoded(tuple(records), source, facts.pack())


def record_bytes(options: ImageOptions, size: Size) -> int:
    """An upper estimate of a stored record, in bytes, for sizing maps and transactions: its raw pixels.

    With fit "shorter" the longer side is open; twice the square covers most photographs, and a shard that overflows is
    begun again with a larger map.
    """
    return size.height * size.width * 3 * (2 if options.fit == "shorter" else 1)


def _targets(source: Size, options: ImageOptions) -> list[resize.Target]:
    return [resize.target(source, size, options.fit, options.upscale) for size in options.sizes]


def _upright(header: jpeg_segments.JpegHeader) -> Size:
    turned = header.orientation >= 5
    return Size(header.width, header.height) if turned else Size(header.height, header.width)


def _decode_scale(targets: list[resize.Target]) -> int:
    """k to decode at 1/k: the smallest of 1/2, 1/4 and 1/8 that leaves the filter twice the pixels of every target.

    So the filter and not the decoder determines the result. Other fractions are slower than a full decode.
    """
    reduction = min(target.reduction for target in targets)
    return next((k for k in (8, 4, 2) if reduction >= 2 * k), 1)


def _scaled(target: resize.Target, source: Size, shape: tuple[int, ...]) -> resize.Target:
    """`target` in the coordinates of an image that was decoded at a reduced size."""
    y, x = shape[0] / source.height, shape[1] / source.width
    if (y, x) == (1, 1):
        return target
    box = target.box
    return target._replace(box=resize.Box(box.top * y, box.left * x, box.height * y, box.width * x))


def _passes_through(decoded: Decoded, options: ImageOptions) -> bool:
    """Whether a JPEG can be stored as it is, since a second compression would only lose quality: 8 bits, Huffman coded,
    YCbCr or grey, upright, sRGB, and in the colours of `options`."""
    header = decoded.header
    if options.format != "jpeg" or header is None or not decoded.plain:
        return False
    return (
        header.precision == 8
        and header.huffman
        and (header.colorspace == "gray" or (header.colorspace == "YCbCr" and options.color != "gray"))
        and header.orientation == 1
        and (header.icc is None or icc.is_srgb(header.icc))
    )
