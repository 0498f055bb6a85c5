"""Fingerprint of the codecs: a hash of their results for the golden images. Pure."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace

from presize.codecs import pillow_resize, resize
from presize.codecs.golden import source_images
from presize.codecs.jpeg.tiles import restart_interval
from presize.codecs.transcode import transcode
from presize.errors import ImageError
from presize.options import MAX_PIXELS, ImageOptions, Size

_SIZES = ((Size(24, 24), Size(9, 13)), (Size(14, 14),), (Size(7, 7),))
"""At these sizes, the largest JPEG is decoded at 1/2, 1/4 and 1/8. Some images are smaller than the first size."""


@functools.cache
def codecs_digest(options: ImageOptions) -> str:
    """Return the SHA-256, in hexadecimal, of the golden images transcoded with `options` at small sizes. It changes
    when a codec changes the bytes of such a build. A format that the installed Pillow lacks counts as rejected."""
    options = replace(options, max_pixels=MAX_PIXELS)
    digest = hashlib.sha256()
    if options.format == "jpeg" and options.tiles != "none":
        digest.update(bytes(map(restart_interval, range(1, 256))))  # the golden images have short rows of MCUs
    # The order of passes for such a tall image depends on the version of Pillow; no golden image is as tall.
    tall = resize.Target(resize.Box(0, 0, 60, 20), Size(13, 17))
    resized = resize.resize(pillow_resize.noise((60, 20, 3)), tall, options.filter, options.resize_backend)
    digest.update(resized.tobytes())
    for name, data in source_images().items():
        for sizes in _SIZES if name.startswith("jpeg") else _SIZES[:1]:  # others are decoded in full
            try:
                made = transcode(data, replace(options, sizes=sizes))
            except ImageError:
                digest.update(f"{name}: rejected\n".encode())
                continue
            shapes = [(len(record.value), record.height, record.width) for record in made.records]
            digest.update(f"{name}: {tuple(made.source)} {made.facts} {shapes}\n".encode())
            for record in made.records:
                digest.update(record.value)
    return digest.hexdigest()
