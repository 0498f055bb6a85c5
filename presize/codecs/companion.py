"""One companion of a source image -> one stored value for each size, with the geometry of the image. Pure."""

from __future__ import annotations

from presize.codecs import encode, resize, transcode
from presize.codecs.exact import decode_numbers, narrowed
from presize.errors import ImageError
from presize.options import ImageOptions, Size


def transcode_companion(data: bytes, source: Size, options: ImageOptions) -> transcode.Transcoded:
    """Decode, resize and encode a companion of an image. Thread-safe.

    Args:
        data: the file.
        source: the upright (height, width) of the image that it belongs to, which has to be its own, too.
        options: how it is stored (presize.options.Companion.image_options). With filter "nearest" each pixel keeps the
            value that it has in the file.

    Raises:
        ImageError: it cannot be stored; the message says why.
    """
    if options.filter != "nearest":
        made = transcode.transcode(data, options)
        _check_size(made.source, source)
        return made
    values, facts = decode_numbers(data, options.max_pixels)
    height, width = values.shape[:2]
    _check_size(Size(height, width), source)
    records = []
    for size in options.sizes:
        target = resize.target(source, size, options.fit, options.upscale)
        pixels = narrowed(resize.resize(values, target, "nearest", options.resize_backend))
        records.append(transcode.Record(encode.encode(pixels, options), *pixels.shape[:2]))
    return transcode.Transcoded(tuple(records), source, facts.pack())


def _check_size(found: Size, source: Size) -> None:
    if found != source:
        raise ImageError(
            f"{found.width} x {found.height} pixels, and its image has {source.width} x {source.height}, upright"
        )
