"""Small images in many formats, subsamplings and colour models, made once by tools/make_golden.py.

The sources must never change: their transcoded bytes are part of the identity of datasets."""

from __future__ import annotations

import io
import zipfile
from importlib import resources


def decoder_images() -> dict[str, bytes]:
    """Return baseline JPEGs of every kind that presize's own decoder supports, by name."""
    return _read("decoder.zip")


def source_images() -> dict[str, bytes]:
    """Return the images that the fingerprint of the codecs transcodes, by name."""
    return _read("sources.zip")


def _read(name: str) -> dict[str, bytes]:
    data = resources.files(__name__).joinpath(name).read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as images:
        return {image: images.read(image) for image in images.namelist()}
