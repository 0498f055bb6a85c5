"""Plug-ins of Pillow that read formats: its own, and for HEIC and JPEG XL those that users install."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import re
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from PIL import Image

from presize.errors import ImageError

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

    ImageClass = Callable[[io.BytesIO], ImageFile]

# Plug-ins are called directly: Image.open would try others too, and apply Pillow's own size limit.
_PILLOW_SPELLS: Final = {"webp": "WebP", "jpeg2000": "Jpeg2K"}
"""Formats whose name in Pillow's modules and classes is not the capitalized name."""


_AS_NATIVE: Final = {"I;16BS": "I;16NS", "I;32BS": "I;32NS", "F;32BF": "F;32NF"}
"""Pillow's raw modes of big-endian signed integers and floats, as native ones."""


class Plugin(NamedTuple):
    """Plug-in that users install: its distribution, the module and class that read the format, the module that has
    DECODE_THREADS and its value for one thread (workers are processes), and the suffixes of its files."""

    distribution: str
    module: str
    image_file: str
    settings: str
    one_thread: int
    suffixes: tuple[str, ...]


_JXL: Final = "pillow_jxl.JpegXLImagePlugin"
PLUGINS: Final = {
    "heic": Plugin(
        "pillow-heif", "pillow_heif.as_plugin", "HeifImageFile", "pillow_heif.options", 1, (".heic", ".heif", ".hif")
    ),
    "jxl": Plugin("pillow-jxl-plugin", _JXL, "JXLImageFile", _JXL, 0, (".jxl",)),
}
"""Plug-ins by format, as sniff() names it."""

# Pillow raised these for a million damaged files of all formats.
_DECODER_ERRORS: Final = (
    OSError, SyntaxError, ValueError, Image.DecompressionBombError, EOFError, OverflowError, RuntimeError, TypeError,
    ZeroDivisionError, struct.error, zlib.error,
)  # fmt: skip


def image_file(name: str) -> ImageClass:
    """Return the class that reads a format. Raises ImageError if its plug-in is not installed."""
    plugin = PLUGINS.get(name)
    if plugin is None:
        own = _PILLOW_SPELLS.get(name, name.capitalize())
        return cast("ImageClass", getattr(importlib.import_module(f"PIL.{own}ImagePlugin"), f"{own}ImageFile"))
    try:
        module = importlib.import_module(plugin.module)
    except ImportError:
        raise ImageError(
            f'{name.upper()} needs a Pillow plug-in, which is not installed: pip install "presize[{name}]"'
        ) from None
    settings: Any = importlib.import_module(plugin.settings)
    settings.DECODE_THREADS = plugin.one_thread
    return cast("ImageClass", getattr(module, plugin.image_file))


def open_image(data: bytes, name: str) -> ImageFile:
    open_file = image_file(name)
    try:
        return open_file(io.BytesIO(data))
    except _DECODER_ERRORS as error:
        raise ImageError(f"broken {name.upper()}: {reason(error)}") from error


def load(image: ImageFile, name: str) -> None:
    if name == "tiff":
        # Pillow applies its own size limit to a TIFF, and warns, unless the memory is already allocated.
        image.im = Image.new(image.mode, image.size).im
        image.tile = [_in_native_order(tile) for tile in image.tile]
    try:
        image.load()
    except _DECODER_ERRORS as error:
        raise ImageError(f"broken {name.upper()}: {reason(error)}") from error


def _in_native_order(tile: Any) -> Any:
    """libtiff returns native numbers, but for signed integers and floats Pillow assumes the byte order of the file."""
    if tile.codec_name != "libtiff":
        return tile
    mode, *others = tile.args
    return tile._replace(args=(_AS_NATIVE.get(mode, mode), *others))


def reason(error: BaseException) -> str:
    """Return the error as one line that is the same in every run, without addresses or unprintable characters."""
    cause = error.args[0] if error.args else None
    if isinstance(cause, Exception):  # Pillow wraps unexpected exceptions
        error = cause
    if isinstance(error, KeyError):
        return f"unknown value {error}"
    if isinstance(error, (struct.error, IndexError)):
        return "it is truncated"
    if isinstance(error, TypeError) or str(error).startswith("invalid literal"):
        return "a value in its header is invalid"
    text = re.sub(r"<[^<>]* at 0x[0-9a-fA-F]+>", "the file", str(error))
    text = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(text.split())[:200] or type(error).__name__


def versions(suffixes: Iterable[str]) -> dict[str, str]:
    """Return the version of each plug-in that files with these suffixes need; "none" if it is not installed."""
    wanted = set(suffixes)
    names = [plugin.distribution for plugin in PLUGINS.values() if not wanted.isdisjoint(plugin.suffixes)]
    return dict.fromkeys(names, "none") | installed(names)


class JxlHeader(NamedTuple):
    """Coded size of a JPEG XL in pixels, its bits per sample (8 behind a preview or if animated), and whether it is
    animated (False behind a preview)."""

    height: int
    width: int
    bits: int
    animated: bool = False


def jxl_header(data: bytes) -> JxlHeader:
    """Parse the header of a JPEG XL; a size of 0 without one. The plug-in decodes an image when it opens it, so the
    size must be checked first, and it does not say how many bits it has dropped."""
    codestream = _jxl_codestream(data)
    if codestream[:2] != b"\xff\x0a":
        return JxlHeader(0, 0, 8)
    unread = int.from_bytes(codestream[2:], "little")

    def take(count: int) -> int:
        nonlocal unread
        value = unread & (1 << count) - 1
        unread >>= count
        return value

    def number(*choices: tuple[int, int]) -> int:
        """Return the sum of the first number of a choice and of as many bits as the second says."""
        least, count = choices[take(2)]
        return least + take(count)

    def size() -> tuple[int, int]:
        small = take(1)

        def side() -> int:
            return 8 * (take(5) + 1) if small else number((1, 9), (1, 13), (1, 18), (1, 30))

        height, ratio = side(), take(3)
        if ratio == 0:
            return height, side()
        over, under = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))[ratio - 1]
        return height, height * over // under

    height, width = size()
    if take(1):  # everything else has its default
        return JxlHeader(height, width, 8)
    if take(1):
        take(3)  # the orientation
        if take(1):
            size()  # for display
        if take(1):  # a preview, whose fields follow
            return JxlHeader(height, width, 8)
        if take(1):
            return JxlHeader(height, width, 8, animated=True)
    is_float = take(1)
    bits = number((32, 0), (16, 0), (24, 0), (1, 6)) if is_float else number((8, 0), (10, 0), (12, 0), (1, 6))
    return JxlHeader(height, width, bits)


_JXL_BYTES: Final = 34  # as many as the header may have


def _jxl_codestream(data: bytes) -> bytes:
    """Return the first bytes of the codestream of a JPEG XL, which may be in boxes."""
    if data[:2] == b"\xff\x0a":
        return data[:_JXL_BYTES]
    at, found = 0, b""
    while at + 16 <= len(data) and len(found) < _JXL_BYTES:
        nbytes, kind, more = struct.unpack_from(">I4sQ", data, at)
        nbytes, begin = (more, at + 16) if nbytes == 1 else (nbytes or len(data), at + 8)
        if kind in (b"jxlc", b"jxlp"):  # whole, or a part behind its number
            found += data[begin + 4 * (kind == b"jxlp") : at + nbytes][:_JXL_BYTES]
        at = max(at + nbytes, begin)
    return found


OPENCVS: Final = ("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python")
"""Distributions of OpenCV. All of them install into the folder cv2."""


def installed(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed distributions."""
    found = {}
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
