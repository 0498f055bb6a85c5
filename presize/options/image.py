"""ImageOptions: all that decides the stored bytes of one image; target sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

from presize.errors import OptionError
from presize.options.checks import (
    Color,
    Depth,
    Filter,
    Fit,
    Format,
    Icc,
    ResizeBackend,
    Subsampling,
    Tiles,
    check_choice,
    check_range,
    check_type,
)

MAX_SIDE = 16383
"""The longest side of a target, in pixels: WebP's format ends there, JPEG's at 65535."""


class Size(NamedTuple):
    """A target size, (height, width) in pixels, with sides from 1 to MAX_SIDE; or KEEP."""

    height: int
    width: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """``"256"`` is a square, ``"320x240"`` is width x height, as people write it, ``"keep"`` is KEEP.

        >>> Size.parse("256")
        Size(height=256, width=256)
        >>> Size.parse("320x240")
        Size(height=240, width=320)
        """
        if text.strip() == "keep":
            return cls(-1, -1)
        match = re.fullmatch(r"(\d{1,9})(?:[xX](\d{1,9}))?", text.strip(), re.ASCII)
        if not match:
            raise OptionError(f"size: expected N or WxH in pixels or keep, such as 256 or 320x240, got {text!r}")
        width = int(match[1])
        return cls(int(match[2] or width), width)

    def __str__(self) -> str:
        """The name of its folder when there are several: ``256``, ``320x240`` (width x height), or ``keep``."""
        if self == (-1, -1):
            return "keep"
        return str(self.height) if self.height == self.width else f"{self.width}x{self.height}"


KEEP = Size.parse("keep")
"""The target size that leaves each image at its own."""


def size_words(size: Size | str) -> str:
    """``256 px``, or ``their own size`` for KEEP and its name."""
    return "their own size" if str(size) == "keep" else f"{size} px"


MAX_PIXELS = 178_956_970
"""Sources with more pixels than this are refused by default: Pillow's own decompression-bomb limit."""


@dataclass(frozen=True)
class ImageOptions:
    """All that decides the stored bytes of one image.

    Attributes:
        sizes: one target or several, all made from one decode; stored in this order. KEEP stores an image that is in
            `format` already as it is, without decoding it (presize.codecs.unchanged).
        fit: how an image meets its target (see presize.codecs.resize.target).
        filter: bicubic is torchvision's and Pillow's (a = -0.5). All but nearest antialias; nearest takes pixels as
            they are, which is for class numbers, not for photographs.
        resize_backend: the library that resamples. The default is cykooz.resizer, 5.7 times as fast as Pillow and as
            close to exact arithmetic (benchmarks/transcoding/results/resizers.csv, 2026-11-25); "pillow" gives Pillow's
            own pixels.
        color: "rgb" stores three channels, "gray" one, "rgba" four; "keep" one of grey sources, and three of others.
            Transparency is composed on white, but for "rgba".
        depth: bits a channel. 16 scales sources of 8 bits.
        icc: "convert" brings pixels from the colours of an ICC profile to sRGB; "ignore" takes them as they are, as
            torchvision and Pillow do.
        format: what is stored.
        quality: 1 to 100, for jpeg and webp. 90 with 4:2:0 is what FFCV and the timm recipes train from.
        subsampling: of the chroma, for jpeg.
        tiles: which JPEGs are stored in tiles, so that a reader decodes just the part that it crops
            (presize.codecs.tiles): those that were resized, all, so that JPEGs stored as they came are coded again
            without loss, which takes the compiled code of presize.codecs.jpeg.decoder, or none. True is another
            spelling of "resized", and False one of "none". Other formats have no tiles.
        upscale: enlarge images smaller than the target; otherwise they keep their size.
        keep_metadata: keep EXIF, XMP and comments, with the orientation reset since the pixels are upright.
        max_pixels: a source of more pixels is an ImageError, raised before it is decoded.
    """

    sizes: tuple[Size, ...] = (Size(256, 256),)
    fit: Fit = "shorter"
    filter: Filter = "bicubic"
    resize_backend: ResizeBackend = "cykooz"
    color: Color = "rgb"
    depth: Depth = 8
    icc: Icc = "convert"
    format: Format = "jpeg"
    quality: int = 90
    subsampling: Subsampling = "420"
    tiles: Tiles | bool = "resized"
    upscale: bool = False
    keep_metadata: bool = False
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        check_type("size", self.sizes, tuple)
        for size in self.sizes:
            check_type("size", size, Size)
            for pixels in size if size != KEEP else ():
                check_range("size", pixels, 1, MAX_SIDE)
        if not self.sizes:
            raise OptionError("size: expected at least one, such as 256, got none")
        if len(set(self.sizes)) < len(self.sizes):
            raise OptionError(f"size: expected each size once, got {', '.join(map(str, self.sizes))}")
        check_choice("fit", self.fit, Fit)
        check_choice("filter", self.filter, Filter)
        check_choice("resize_backend", self.resize_backend, ResizeBackend)
        check_choice("color", self.color, Color)
        check_type("depth", self.depth, int)
        check_choice("depth", self.depth, Depth)
        check_choice("icc", self.icc, Icc)
        check_choice("format", self.format, Format)
        check_choice("subsampling", self.subsampling, Subsampling)
        if isinstance(self.tiles, bool):
            object.__setattr__(self, "tiles", "resized" if self.tiles else "none")
        check_choice("tiles", self.tiles, Tiles)
        check_range("quality", self.quality, 1, 100)
        check_range("max_pixels", self.max_pixels, 1, 2**40)
        check_type("upscale", self.upscale, bool)
        check_type("keep_metadata", self.keep_metadata, bool)
        if self.color == "keep" and self.format == "webp":
            raise OptionError("color: keep needs a format that has grey images; WebP has none, choose jpeg, png or raw")
        if self.color == "rgba" and self.format == "jpeg":
            raise OptionError("color: rgba needs a format that has transparency; choose png, webp or raw, got jpeg")
        if self.depth == 16 and self.format not in ("png", "raw"):
            raise OptionError(f"depth: 16 bits need a format that has them; choose png or raw, got {self.format}")
        if self.keep_metadata and self.format == "raw":
            raise OptionError("keep_metadata: format raw stores pixels alone; choose jpeg, png or webp")

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """The image options that BuildOptions.to_json records. Raises OptionError for those of a later presize."""
        unknown = sorted(values.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise OptionError(f"{unknown[0]}: this presize has no such option; upgrade it")
        return cls(**values | {"sizes": tuple(map(Size.parse, values["sizes"]))})
