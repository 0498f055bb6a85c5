"""Images whose pixels are numbers, such as class indices, not colours: decoded without changing a value. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from presize.codecs import decode, pillow_decoder
from presize.codecs.sniff import sniff
from presize.codecs.source_facts import Facts
from presize.errors import ImageError

Values = npt.NDArray[Any]


def decode_exact(data: bytes, max_pixels: int) -> tuple[Values, Facts]:
    """Decode an image to the numbers in its file: uint8 or uint16, upright, C-contiguous, (height, width) for palette
    indices and for grey of 1 to 16 bits, (height, width, 3) for 8-bit RGB. Profiles are ignored, and so are transparent
    palette indices and opaque alpha. Raises ImageError if the image is broken, and for other kinds of pixels."""
    values, facts = decode_numbers(data, max_pixels)
    return narrowed(values), facts


def decode_any(data: bytes, max_pixels: int) -> tuple[Values, Facts]:
    """Decode like decode_exact, and also 32-bit grey from a TIFF: int32 or float32."""
    if sniff(data) == "tiff":
        image, _, facts, _ = pillow_decoder.open_other(data, "tiff", max_pixels)
        if image.mode in ("I", "F"):
            values = np.asarray(image)
            if image.mode == "I" and not pillow_decoder.is_signed(image, "tiff") and values.min() < 0:
                largest = values.view(np.uint32).max()
                raise ImageError(f"values up to {largest}; a 32-bit TIFF may have up to {2**31 - 1}; save it as .npy")
            return pillow_decoder.upright(values, facts.orientation), facts
    return decode_exact(data, max_pixels)


def decode_numbers(data: bytes, max_pixels: int) -> tuple[Values, Facts]:
    """Decode like decode_exact, but return 16-bit numbers that Pillow holds in 32 bits as int32: Pillow resizes them
    differently."""
    name = sniff(data)
    if name is None or name == "jpeg":
        decoded = decode.decode(data, pillow_decoder.Wanted("keep", icc="ignore"), max_pixels)
        return decoded.pixels, decoded.facts
    image, data, facts, _ = pillow_decoder.open_other(data, name, max_pixels)
    deep = facts.deep
    mode = image.mode
    if mode == "RGBA" or (mode == "LA" and not deep):  # Pillow scales 16-bit grey with alpha to 8 bits
        mode = mode[:-1] if image.getchannel("A").getextrema() == (255, 255) else mode
    if deep and mode == "RGB":
        raise ImageError("more than 8 bits in three channels; nearest supports 8-bit RGB, 16-bit grey and palettes")
    if mode not in ("1", "L", "P", "RGB", "I") and not mode.startswith("I;16"):
        fix = "--pair-format npy keeps these" if mode == "F" else "choose another filter"
        raise ImageError(f"pixels of mode {image.mode}; nearest supports grey, palettes and RGB; {fix}")
    values = np.asarray(image)
    if mode == "L" and pillow_decoder.is_signed(image, name):
        values = values.view(np.int8)
    if values.dtype != np.uint8 and not (values.min() >= 0 and values.max() <= 0xFFFF):
        raise ImageError(f"values from {values.min()} to {values.max()}; nearest supports 0 to 65535")
    if mode == "I" or mode.startswith("I;16"):
        values, deep = values.astype(np.int32 if mode == "I" else np.uint16), True
    else:
        if mode != image.mode:
            values = values[:, :, 0] if mode == "L" else values[:, :, :3]
        values = values.astype(np.uint8)
    bits = pillow_decoder.sample_bits(image, data, name)
    if (name in ("sgi", "avif") and bits > 8) or (name == "jxl" and bits not in (8, 16)):  # they would be scaled
        article = "a" if name == "jxl" else "an"
        raise ImageError(f"{bits} bits in {article} {name.upper()}; nearest supports 16 bits in PNG, TIFF and PGM")
    if name == "jpeg2000" and mode != "P":
        held = 16 if deep else 8
        if bits > held:
            raise ImageError(f"{bits} bits in a channel; nearest supports 8-bit RGB and 16-bit grey")
        if pillow_decoder.j2k_is_signed(data):
            raise ImageError("signed numbers in a JPEG 2000; nearest supports unsigned ones")
        values >>= held - bits  # Pillow scales the largest value to white
    elif mode == "L":
        values //= pillow_decoder.PILLOW_SCALE.get(bits, 1)
    if mode in ("1", "L") and pillow_decoder.zero_is_white(image, name):
        values = (1 << bits) - 1 - values
    if name == "ppm" and mode != "1":
        values = _unscaled(values, data)
    facts = facts._replace(transparent=image.has_transparency_data, deep=deep)
    return np.ascontiguousarray(pillow_decoder.upright(values, facts.orientation)), facts


def narrowed(values: Values) -> Values:
    """Convert int32 from decode_numbers to uint16."""
    return values.astype(np.uint16) if values.dtype == np.int32 else values


def _unscaled(values: Values, data: bytes) -> Values:
    """Undo the scaling of a PGM or PPM: Pillow makes the largest value white."""
    largest = pillow_decoder.ppm_white(data)
    white = 255 if values.dtype == np.uint8 else 65535
    return values if largest == white else np.rint(values * (largest / white)).astype(values.dtype)
