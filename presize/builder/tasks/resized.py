"""Stored records in a smaller size: what a task does to a dataset's records that take the place of source files."""

from __future__ import annotations

from presize.builder.tasks.records import Made
from presize.codecs import resize, transcode
from presize.codecs.encode import encode
from presize.codecs.source_facts import FIELDS
from presize.codecs.stored_value import DAMAGE, decode_value
from presize.codecs.transcode import transcode_companion
from presize.errors import ImageError
from presize.options import BuildOptions, ImageOptions, Size


def resized(made: Made, options: BuildOptions) -> Made:
    """The records of a sample, each of one size, as `options` have them; those that fit already are left as they are.

    Raises:
        ImageError: one is damaged.
    """
    image = _resized(made.transcoded, options.image, exact=False)
    companions = (
        of_companion._replace(
            transcoded=_resized(
                of_companion.transcoded, companion.image_options(options.image), exact=companion.is_exact
            )
        )
        for companion, of_companion in zip(options.companions, made.companions, strict=True)
    )
    return made._replace(transcoded=image, companions=tuple(companions))


def _resized(stored: transcode.Transcoded, image: ImageOptions, exact: bool) -> transcode.Transcoded:
    (record,) = stored.records
    size = Size(record.height, record.width)
    target = resize.target(size, image.sizes[0], image.fit, image.upscale)
    if target.is_whole_image:
        return stored
    if image.format == "raw":
        record = _resized_raw(record, target, image, exact)
    elif exact:
        record = transcode_companion(record.value, size, image).records[0]
    else:
        record = transcode.transcode(record.value, image).records[0]
    return stored._replace(records=(record,), facts=stored.facts & ~(1 << FIELDS["kept"][0]))


def _resized_raw(record: transcode.Record, target: resize.Target, image: ImageOptions, exact: bool) -> transcode.Record:
    color = "exact" if exact else image.color
    try:
        pixels = decode_value(
            memoryview(record.value), "raw", color, (record.height, record.width), image.max_pixels, image.depth
        )
    except DAMAGE as error:
        raise ImageError(f"what is stored is damaged: {error}") from None
    pixels = resize.resize(pixels, target, image.filter, image.resize_backend)
    return transcode.Record(encode(pixels, image), *pixels.shape[:2])
