"""All options of a build, in frozen dataclasses that check themselves, and the small types of their values. The fields
state each option once: the command line, the checks and the reference in docs/ read them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from numbers import Real
from typing import Any, Literal, NamedTuple, Self, get_args

from presize.errors import OptionError
from presize.option_fields import check_above_0 as check_above_0
from presize.option_fields import check_choice as check_choice
from presize.option_fields import check_each_once, check_options, documented, option
from presize.option_fields import check_function as check_function
from presize.option_fields import check_list as check_list
from presize.option_fields import check_range as check_range
from presize.option_fields import check_text as check_text
from presize.option_fields import check_type as check_type
from presize.option_fields import set_in_range as set_in_range

Fit = Literal["shorter", "longer", "stretch", "crop", "pad"]
Filter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
ResizeBackend = Literal["presize", "pillow"]
Color = Literal["rgb", "gray", "rgba", "keep"]
Depth = Literal[8, 16]
Icc = Literal["convert", "ignore"]
StoredColor = Color | Literal["exact"]
"""Color of stored values: "exact" for a companion that keeps the values of its source, such as class numbers."""
Format = Literal["jpeg", "png", "webp", "raw"]
CompanionFormat = Literal[Format, "npy"]
"""Format of a stored companion: "npy" is an array of numbers, in NumPy's format."""
ARRAY_SUFFIXES = (".npy", ".exr")
"""Suffixes of files that can only be stored as npy."""
Subsampling = Literal["420", "422", "444"]
Tiles = Literal["resized", "all", "none"]
Layout = Literal["lmdb", "folder"]
ExportLayout = Literal["folder", "tar", "parquet", "lmdb"]
OnError = Literal["skip", "fail"]
Engine = Literal["processes", "sequential", "dask", "ray", "spark"]
BoxFormat = Literal["xyxy", "xywh", "cxcywh", "xyxy%", "xywh%", "cxcywh%"]
KeypointFormat = Literal["xy", "xyv", "xy%", "xyv%"]
BadBoxes = Literal["clip", "reject"]
KeyPreset = Literal["text-recognition", "basicsr", "lsun"]
Repeated = Literal["refuse", "list"]
ValueType = Literal["text", "int", "float", "class"]

SPELLINGS = {"jpg": "jpeg", "grey": "gray"}
"""Other spellings that the command line accepts."""

MAX_SIDE = 16383
"""Longest side of a target, in pixels: the limit of WebP. JPEG's is 65535."""


class Size(NamedTuple):
    """Target size, (height, width) in pixels, with sides from 1 to MAX_SIDE; or KEEP."""

    height: int
    width: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``"256"`` (a square), ``"320x240"`` (width x height, as people write it) or ``"keep"`` (KEEP)."""
        check_type("size", text, str)
        if text.strip() == "keep":
            return cls(-1, -1)
        match = re.fullmatch(r"(\d{1,9})(?:[xX](\d{1,9}))?", text.strip(), re.ASCII)
        if not match:
            raise OptionError(f"size: expected N or WxH in pixels or keep, such as 256 or 320x240, got {text!r}")
        width = int(match[1])
        return cls(int(match[2] or width), width)

    def __str__(self) -> str:
        """Return ``256``, ``320x240`` (width x height) or ``keep``. Builds of several sizes use it as a folder name."""
        if self == (-1, -1):
            return "keep"
        return str(self.height) if self.height == self.width else f"{self.width}x{self.height}"


KEEP = Size.parse("keep")
"""Target size that keeps the size of each image."""


def size_words(size: Size | str) -> str:
    """Format a size as ``256 px``, or as ``their own size`` for KEEP and its name."""
    return "their own size" if str(size) == "keep" else f"{size} px"


MAX_PIXELS = 178_956_970
"""Default of ImageOptions.max_pixels: Pillow's limit for decompression bombs."""


@documented
@dataclass(frozen=True)
class ImageOptions:
    """Options that determine the stored bytes of an image."""

    sizes: tuple[Size, ...] = option(
        (Size(256, 256),),
        "Target size in pixels; with several, each is built in OUT/SIZE. keep: store images as they are.",
        "All are made from one decode, and stored in this order. With KEEP an image already in `format` is not "
        "decoded.",
        flag="--size", metavar="N|WxH|keep", parse=Size.parse,
    )  # fmt: skip
    fit: Fit = option(
        "shorter", "How to fit an image to the target: by its shorter or longer side, or stretch, crop or pad it."
    )
    filter: Filter = option(
        "bicubic",
        "Filter for resizing; all but nearest antialias.",
        "bicubic is torchvision's and Pillow's (a = -0.5). nearest does not mix pixels: use it for class "
        "numbers, not for photographs.",
    )
    resize_backend: ResizeBackend = option(
        "presize",
        "Library that resizes: presize, with Pillow's arithmetic, or the one installed as PIL.",
        '"presize" produces the same bytes as Pillow with the horizontal pass first, on every machine, and resizes '
        "photographs 12 times as fast (benchmarks/transcoding/results/resizers.csv, 2026-11-28). "
        '"pillow" resizes with the installed Pillow, or with pillow-simd if that is installed instead.',
    )
    color: Color = option(
        "rgb",
        "Channels to store; keep: one for grey images, three for others.",
        "Transparency is composited on white, except for rgba.",
    )
    depth: Depth = option(8, "Bits per channel; 16 needs --format png or raw.", "16 scales sources of 8 bits.")
    icc: Icc = option(
        "convert",
        "Convert colours from ICC profiles to sRGB, or ignore profiles as Pillow does.",
        "torchvision also ignores them.",
    )
    format: Format = option("jpeg", "Format to store.")
    quality: int = option(
        90,
        "JPEG and WebP quality, 1 to 100.",
        "FFCV's ImageNet recipe stores quality 90 with 4:2:0.",
        metavar="Q", low=1, high=100,
    )  # fmt: skip
    subsampling: Subsampling = option("420", "JPEG chroma subsampling.")
    tiles: Tiles | bool = option(
        "resized",
        "JPEGs to store in tiles, so that a crop is read without the rest. --no-tiles: none.",
        '"all" also recodes, without loss, JPEGs that would otherwise be stored unchanged; it needs the compiled '
        'decoder. True means "resized", False "none". Other formats have no tiles.',
    )
    upscale: bool = option(False, "Also enlarge images smaller than the target.", "Otherwise they keep their size.")
    keep_metadata: bool = option(
        False,
        "Keep EXIF, XMP and comments in stored images.",
        "The orientation is reset, because the pixels are upright.",
    )
    max_pixels: int = option(
        MAX_PIXELS,
        "Reject sources with more pixels.",
        "A larger source raises ImageError before it is decoded. The default is Pillow's limit for "
        "decompression bombs.",
        metavar="N", low=1, high=2**40,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if isinstance(self.tiles, bool):
            object.__setattr__(self, "tiles", "resized" if self.tiles else "none")
        check_options(self)
        object.__setattr__(
            self, "sizes", tuple(size if size == KEEP else _checked("sizes", size) for size in self.sizes)
        )
        if not self.sizes:
            raise OptionError("sizes: expected at least one, such as 256, got none")
        check_each_once("sizes", self.sizes, "size")
        if self.color == "keep" and self.format == "webp":
            raise OptionError("color: keep needs a format with grey images; choose jpeg, png or raw, got webp")
        if self.color == "rgba" and self.format == "jpeg":
            raise OptionError("color: rgba needs a format with transparency; choose png, webp or raw, got jpeg")
        if self.depth == 16 and self.format not in ("png", "raw"):
            raise OptionError(f"depth: 16 bits need format png or raw, got {self.format}")
        if self.keep_metadata and self.format == "raw":
            raise OptionError("keep_metadata: format raw stores only pixels; choose jpeg, png or webp")

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return the options that BuildOptions.to_json recorded. Raises OptionError for options of a later presize."""
        _check_known(cls, values)
        return cls(**values | {"sizes": tuple(map(Size.parse, values["sizes"]))})


def _check_known(options: type, values: dict[str, Any]) -> None:
    unknown = sorted(values.keys() - {field.name for field in fields(options)})
    if unknown:
        raise OptionError(f"{unknown[0]}: this version of presize has no such option; upgrade presize")


def _checked(name: str, size: Size) -> Size:
    """Return a size whose sides are ints. Raises OptionError if one is out of range."""
    return Size(*(check_range(name, side, 1, MAX_SIDE) for side in size))


def companion_color(format: CompanionFormat) -> Color:
    """Return the color of a companion that is stored like an image: that of its source, if `format` allows it."""
    return "rgb" if format == "webp" else "keep"


COMPANION_NAME = r"[A-Za-z][A-Za-z0-9_]{0,31}"
"""Regular expression (ASCII) of the names of companions."""

_FIELD = re.compile(r"\{\{|\}\}|\{(\w*)(%[^{}]+)?\}|[{}]", re.ASCII)

_FIELDS = ("stem", "dir", "name", "subdir")


@documented
@dataclass(frozen=True)
class Companion:
    """Additional image of every sample, such as a segmentation mask, transformed like the sample's image; or an array,
    such as an embedding.

    `name` names its shards and index columns. `pattern` is the path of its file, relative to the source:
    ``masks/{stem}.png``. ``{name}`` is the name of the image's file, ``{stem}`` the name without its suffix, ``{dir}``
    its folder, ``{subdir}`` that folder without its first part. ``{stem%_img}`` is the stem without a final ``_img``;
    all fields allow this. ``{{`` and ``}}`` are braces. `column`, instead of `pattern`, is the column of the label
    table that holds the path.
    """

    name: str
    pattern: str | None = None
    column: str | None = None
    format: CompanionFormat = option(
        "png",
        "Format of companions; npy for arrays of numbers.",
        "If the pattern ends in .npy or .exr, png means npy.",
        flag="--pair-format", metavar="[NAME=]FORMAT",
    )  # fmt: skip
    filter: Filter = option(
        "nearest",
        "Filter for companions; nearest keeps class numbers exactly.",
        "It keeps the values of grey images, including 16 bits, and palette indices. With any other filter the "
        "companion is stored like an image.",
        flag="--pair-filter", metavar="[NAME=]FILTER",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(COMPANION_NAME, self.name, re.ASCII):
            raise OptionError(f"pair: expected a name of up to 32 letters, digits and _, got {self.name!r}")
        if self.name == "source" or self.name.endswith("_source"):
            raise OptionError(f"pair: {self.name!r} would duplicate columns of the index; choose another name")
        if (self.pattern is None) == (self.column is None):
            raise OptionError(
                f"pair: expected a pattern or a column for {self.name}, such as masks/{{stem}}.png, got "
                f"{'neither' if self.pattern is None else 'both'}"
            )
        check_type("pair", self.column if self.pattern is None else self.pattern, str)
        if self.pattern is not None:
            check_text("pair", self.pattern)
            self.pieces()
            parts = self.pattern.split("/")
            if not self.pattern or parts[0] == "" or not {".", ".."}.isdisjoint(parts):
                raise OptionError(f"pair: expected a path relative to the source for {self.name}, got {self.pattern!r}")
        check_options(self, "pair_")
        if self.format == "png" and (self.pattern or "").lower().endswith(ARRAY_SUFFIXES):
            object.__setattr__(self, "format", "npy")
        if self.is_array and not self.is_exact:
            raise OptionError(
                f"pair_filter: {self.filter} is for images, but {self.name} is stored as arrays (npy), which only "
                "nearest resizes; set the filters of other companions with NAME=FILTER"
            )
        if self.is_exact and self.format not in ("png", "raw", "npy"):
            raise OptionError(
                f"pair_format: {self.format} changes the values of pixels, which nearest keeps; choose png or raw, "
                f"or another filter for {self.name}"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse NAME=PATTERN, such as ``mask=masks/{stem}.png``, or NAME=column:COLUMN."""
        check_type("pair", text, str)
        name, equals, place = text.partition("=")
        if not equals:
            raise OptionError(f"pair: expected NAME=PATTERN, such as mask=masks/{{stem}}.png, got {text!r}")
        kind, colon, column = place.partition(":")
        return cls(name, column=column) if kind + colon == "column:" else cls(name, place)

    @property
    def is_exact(self) -> bool:
        """Return True if the values of its pixels are kept."""
        return self.filter == "nearest"

    @property
    def is_array(self) -> bool:
        """Return True if it is stored as an array of any shape and type of number."""
        return self.format == "npy"

    def pieces(self) -> list[tuple[str, str, str]]:
        """Return the pattern as literal texts, each with the field after it ("" for none) and the ending removed from
        that field: for ``masks/{stem%_img}.png``, ``[("masks/", "stem", "_img"), (".png", "", "")]``."""
        pattern, pieces, literal, end = self.pattern or "", [], "", 0
        for match in _FIELD.finditer(pattern):
            literal += pattern[end : match.start()]
            end = match.end()
            if match[0] in ("{{", "}}"):
                literal += match[0][0]
            elif match[1] in _FIELDS:
                pieces.append((literal, match[1], (match[2] or "")[1:]))
                literal = ""
            else:
                raise OptionError(
                    f"pair: expected {{stem}}, {{dir}}, {{subdir}} or {{name}} in {pattern!r}, got {match[0]}; "
                    "write {{ and }} for braces"
                )
        return [*pieces, (literal + pattern[end:], "", "")]

    def image_options(self, image: ImageOptions) -> ImageOptions:
        """Return the image options of the companion, given those of the images; for arrays, `format` is "raw"."""
        format = "raw" if self.format == "npy" else self.format
        color = companion_color(format)
        return replace(image, format=format, filter=self.filter, color=color, depth=8, keep_metadata=False)

    def to_json(self) -> dict[str, str]:
        """Return plain values for manifest.json, without the name."""
        place = {"column": self.column} if self.pattern is None else {"pattern": self.pattern}
        return {**place, "format": self.format, "filter": self.filter}  # type: ignore[dict-item]


class Coordinates(NamedTuple):
    """Column of the label table with boxes or keypoints, in pixels of the upright source. `format` is a BoxFormat or a
    KeypointFormat; if it ends in %, x and y are fractions of the width and height, 0 to 1."""

    column: str
    format: str

    @classmethod
    def parse_boxes(cls, text: str) -> Self:
        """Parse COLUMN:FORMAT, such as ``bbox:xywh``. The format is required."""
        column, colon, format = text.rpartition(":")
        if not colon:
            raise OptionError(f"boxes: expected COLUMN:FORMAT, such as bbox:xyxy, got {text!r}")
        return cls(column, format)

    @classmethod
    def parse_keypoints(cls, text: str) -> Self:
        """Parse COLUMN:FORMAT, such as ``points:xyv``; ``points`` is ``points:xy``."""
        column, _, format = text.rpartition(":")
        return cls(column, format) if format in get_args(KeypointFormat) and column else cls(text, "xy")

    @property
    def in_shares(self) -> bool:
        return self.format.endswith("%")

    @property
    def numbers(self) -> str:
        """Return the names of its numbers, in their order: ``xywh``, also for ``xywh%``."""
        return self.format.removesuffix("%")

    def __str__(self) -> str:
        return f"{self.column}:{self.format}"


class ColumnType(NamedTuple):
    """Type of a column of the label table, which overrides the inferred type: "text" as written, "int", "float"; or,
    for the column ``label``, "class": text that names classes, sorted by value if all names are whole numbers."""

    column: str
    type: ValueType

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse COLUMN:TYPE, such as ``label:class``."""
        column, _, type = text.rpartition(":")
        if not column:
            raise OptionError(f"column_types: expected COLUMN:TYPE, such as label:text, got {text!r}")
        return cls(column, type)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.column}:{self.type}"


class Stream(NamedTuple):
    """Kind of record that every sample has in one size: its image, with the name "", or the companion of this name."""

    name: str
    size: Size

    def column(self, name: str) -> str:
        """Return the name in the index of a column about its records, such as ``mask_nbytes``."""
        return f"{self.name}_{name}" if self.name else name


@documented
@dataclass(frozen=True)
class BuildOptions:
    """Options that, together with its source, determine the bytes of a dataset."""

    image: ImageOptions = option(ImageOptions(), "How each image is stored.", flag=None)
    layout: Layout = option("lmdb", "LMDB shards, or ordinary image files.", flag="--to")
    shard_samples: int | None = option(
        None, "Maximum number of samples per shard.", unset="by sample count", metavar="N", low=1, high=2**31 - 1
    )
    follow_links: bool = option(False, "Follow links that lead out of SRC.")
    checksum: bool = option(
        False,
        "Record a checksum of each source file, which --update compares instead of modification times.",
        "The index holds the CRC-32. Off by default, because an update then reads every file.",
    )
    companions: tuple[Companion, ...] = option(
        (),
        "Companion image of each sample: mask=masks/{stem}.png, or mask=column:COLUMN of the label "
        "table.",
        "They are sorted by name.",
        flag="--pair", metavar="NAME=PATTERN",
    )  # fmt: skip
    boxes: tuple[Coordinates, ...] = option(
        (),
        "Boxes to scale with the images, in pixels: xyxy, xywh or cxcywh; in fractions of the image: "
        "xyxy%, xywh% or cxcywh%.",
        "The dataset holds them as x1, y1, x2, y2 in pixels of the stored image.",
        metavar="COLUMN:FORMAT", parse=Coordinates.parse_boxes,
    )  # fmt: skip
    keypoints: tuple[Coordinates, ...] = option(
        (),
        "Keypoints to scale with the images: xy or xyv (visibility), xy% or xyv% in fractions.  [default"
        " format: xy]",
        "The dataset holds one list for each object: x, y of each point, or x, y, visibility, in pixels of the stored "
        "image.",
        metavar="COLUMN[:FORMAT]", parse=Coordinates.parse_keypoints,
    )  # fmt: skip
    bad_boxes: BadBoxes = option(
        "clip",
        "Clip boxes that extend beyond their image, or reject the image.",
        "A box is bad if it extends more than a pixel beyond the image, has no area, or is not four numbers. Readers "
        "drop boxes that have no area after clipping.",
    )
    column_types: tuple[ColumnType, ...] = option(
        (),
        "Type of a table column that would be misread: text, int, float; class for label.",
        flag="--column-type", metavar="COLUMN:TYPE", parse=ColumnType.parse,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_options(self)
        for name, formats in (("boxes", BoxFormat), ("keypoints", KeypointFormat)):
            for coordinates in getattr(self, name):
                check_text(name, coordinates.column)
                check_choice(f"{name}: {coordinates.column}", coordinates.format, formats)
        check_each_once("boxes", tuple(each.column for each in (*self.boxes, *self.keypoints)), "column")
        for each in self.column_types:
            check_text("column_types", each.column)
            check_choice(f"column_types: {each.column}", each.type, ValueType)
            if each.type == "class" and each.column != "label":
                choose = "choose text, and give a vocabulary when reading"
                raise OptionError(f"column_types: only label has classes, got {each}; {choose}")
        check_each_once("column_types", tuple(each.column for each in self.column_types), "column")
        if self.layout == "folder" and self.image.format == "raw":
            raise OptionError(
                "layout: format raw cannot be stored as image files; choose --to lmdb, or jpeg, png or webp"
            )
        check_each_once("companions", tuple(companion.name for companion in self.companions), "name")
        if self.layout == "folder" and self.companions:
            raise OptionError("layout: companions are stored only in shards; choose --to lmdb, or build without --pair")
        # Sorted, so that the same options make the same dataset.
        object.__setattr__(self, "companions", tuple(sorted(self.companions, key=lambda companion: companion.name)))
        object.__setattr__(self, "column_types", tuple(sorted(self.column_types)))

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Return the streams of a sample: its image in each size, then each companion in each size."""
        names = ("", *(companion.name for companion in self.companions))
        return tuple(Stream(name, size) for name in names for size in self.image.sizes)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for manifest.json; sizes are strings that Size.parse reads."""
        image = _recorded(self.image) | {"sizes": [str(size) for size in self.image.sizes]}
        values = _recorded(self) | {"image": image}
        for name in _PARSERS.keys() & values.keys():
            values[name] = list(map(str, values[name]))
        if self.companions:
            values["companions"] = {companion.name: companion.to_json() for companion in self.companions}
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return the options that to_json recorded. Ignores ``derived``, which derived datasets also record.

        Raises:
            OptionError: an option is invalid, or from a later presize.
            TypeError, KeyError, AttributeError: the values were not written by to_json.
        """
        given = {name: value for name, value in values.items() if name != "derived"}
        _check_known(cls, given)
        given["image"] = ImageOptions.from_json(given["image"])
        given["companions"] = tuple(Companion(name, **how) for name, how in given.get("companions", {}).items())
        for name, parse in _PARSERS.items():
            texts = given.get(name, [])
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise TypeError(name)
            given[name] = tuple(map(parse, texts))
        return cls(**given)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "boxes": Coordinates.parse_boxes,
    "keypoints": Coordinates.parse_keypoints,
    "column_types": ColumnType.parse,
}
"""Parsers of the options that are recorded as a list of texts."""


ALWAYS_RECORDED = frozenset(
    "image layout shard_samples follow_links checksum sizes fit filter resize_backend color format quality subsampling "
    "tiles upscale keep_metadata max_pixels".split()
)
"""Options of format version 1, which every manifest records. Never add to them: later options are recorded only if they
differ from their default, so that datasets built before them keep their identity and can be updated."""


def _recorded(options: BuildOptions | ImageOptions) -> dict[str, Any]:
    """Return the options that are part of a dataset's identity, in the order of their fields."""
    defaults = type(options)()
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {
        name: value for name, value in values.items() if name in ALWAYS_RECORDED or value != getattr(defaults, name)
    }


@documented
@dataclass(frozen=True)
class SourceOptions:
    """Options that select the samples of a source, and so the bytes of a dataset. A dataset records its samples, not
    these options."""

    labels: str | os.PathLike[str] | None = option(
        None,
        "Table of samples: CSV, JSON lines or Parquet with a path column, or a list of paths (.txt). "
        "none: all images of SRC, without labels.",
        "Samples keep the order of the table. None is for class folders, or a flat folder.",
        metavar="TABLE|none", is_path=True,
    )  # fmt: skip
    classes: Sequence[str] | None = option(
        None,
        "Class list: a file with one name per line, or a dataset's list.",
        "In Python, the names themselves; None for the sorted names of folders or labels.",
        metavar="FILE|DATASET", is_path=True,
    )  # fmt: skip
    repeated: Repeated = option(
        "refuse",
        "Repeated paths in TABLE: refuse them, or merge their rows into one sample with list columns.",
    )
    split: str | None = option(
        None,
        "Splits: the folders of SRC (SRC/train, SRC/val), or fractions by a hash of the path: train=0.9,val=0.1.",
        "Fractions add up to 1. The hash of a sample's path decides its split.",
        metavar="folders|NAME=SHARE,...",
    )
    split_seed: int = option(0, "Random seed of --split.", metavar="N")
    keys: str | None = option(
        None,
        "Keys of the images in SRC: for LMDBs a pattern such as image-{:09d}, or text-recognition, basicsr, lsun; "
        "for tars an extension; for Parquet a column.",
        "Tar shards and Parquet need it if a sample has several images.",
        metavar="PATTERN|PRESET|NAME",
    )
    label_keys: str | None = option(
        None,
        "Keys of an LMDB's labels, such as label-{:09d}.",
        "``text=label-{:09d}`` names their column ``text``.",
        metavar="PATTERN",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.labels is not None:
            if not isinstance(self.labels, str | os.PathLike):
                raise OptionError(f"labels: expected a path or none, got {self.labels!r}")
            object.__setattr__(self, "labels", os.path.expanduser(os.fspath(self.labels)))
        if self.classes is not None:
            check_list("classes", self.classes)
        if self.split is not None and self.split != "folders":
            parse_shares(self.split)
        if self.split_seed and self.split in (None, "folders"):
            raise OptionError("split_seed: needs --split with fractions, such as train=0.9,val=0.1")
        if self.repeated == "list" and self.table is None:
            raise OptionError("repeated: list merges rows of a table; give one with --labels")
        if self.classes is not None and self.labels == "none":
            raise OptionError("classes: with --labels none samples have no class; leave one of the two out")
        for name in ("keys", "label_keys"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise OptionError(f"{name}: expected a string such as image-{{:09d}}, got {value!r}")
        if self.label_keys is not None and self.keys is None:
            raise OptionError("label_keys: needs --keys, the pattern for the keys of the images")
        if self.label_keys is not None and self.keys in get_args(KeyPreset):
            raise OptionError(
                f"label_keys: cannot be combined with --keys {self.keys}; leave it out, or give patterns for both"
            )

    @property
    def table(self) -> str | os.PathLike[str] | None:
        """Return the label table; None if there is none."""
        return None if self.labels == "none" else self.labels


def parse_shares(text: str) -> dict[str, Fraction]:
    """Return the fraction of each split: for ``train=0.9,val=0.1``, 9/10 and 1/10. They add up to 1."""
    check_type("split", text, str)
    check_text("split", text)
    found = [re.fullmatch(r"\s*([^=\s][^=]*?)\s*=\s*(\d*\.?\d+)\s*", part, re.ASCII) for part in text.split(",")]
    shares = {match[1]: Fraction(match[2]) for match in found if match}
    if len(shares) < len(found) or not all(shares.values()):
        raise OptionError(f"split: expected folders, or names and fractions, such as train=0.9,val=0.1, got {text!r}")
    if sum(shares.values()) != 1:
        raise OptionError(f"split: the fractions in {text!r} add up to {float(sum(shares.values())):g}, expected 1")
    return shares


@dataclass(frozen=True)
class ErrorBudget:
    """Limit on the rejected and unreadable images of a build: a `count` of 0 or more, or a `share` of all samples,
    from 0 to 1. Without either, any number is allowed."""

    count: int | None = None
    share: Fraction | float | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            object.__setattr__(self, "count", check_range("max_errors", self.count, 0, 2**63 - 1))
        if self.share is not None and not (isinstance(self.share, Real) and 0 <= self.share <= 1):
            raise OptionError(f"max_errors: expected a fraction from 0 to 1, got {self.share!r}")
        if self.count is not None and self.share is not None:
            raise OptionError(f"max_errors: expected a count or a fraction, got both {self.count} and {self.share}")
        if isinstance(self.share, float):  # 0.29 * 100 is below 29
            object.__setattr__(self, "share", Fraction(str(self.share)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a budget: ``100`` is a count of 0 or more, ``0.5%`` a share from 0 to 100 percent."""
        check_type("max_errors", text, str)
        match = re.fullmatch(r"(\d{1,18})|(\d{1,3}(?:\.\d{1,9})?)%", text.strip(), re.ASCII)
        if not match or (match[2] and Fraction(match[2]) > 100):
            raise OptionError(f"max_errors: expected a count or a percentage, such as 100 or 0.5%, got {text!r}")
        return cls(count=int(match[1])) if match[1] else cls(share=Fraction(match[2]) / 100)

    def __str__(self) -> str:
        """Return the text that parse() reads, or ``unlimited``."""
        if self.share is not None:
            return f"{float(self.share * 100):.9f}".rstrip("0").rstrip(".") + "%"
        return "unlimited" if self.count is None else str(self.count)

    def allows(self, rejected: int, of: int) -> bool:
        """Return True if `rejected` of `of` samples are within the budget."""
        if self.count is not None:
            return rejected <= self.count
        return self.share is None or rejected <= self.share * of


_MAX_PARTS = 100_000


@dataclass(frozen=True)
class BuildPart:
    """Part of a build in parts. `number` counts from 1; `of` is the number of parts, at most 100,000."""

    number: int
    of: int

    def __post_init__(self) -> None:
        for name, most in (("of", _MAX_PARTS), ("number", self.of)):
            object.__setattr__(self, name, check_range("part", getattr(self, name), 1, most))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a part: ``3/8`` is the third of eight."""
        check_type("part", text, str)
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip(), re.ASCII)
        if not match or not 1 <= int(match[1]) <= int(match[2]) <= _MAX_PARTS:
            raise OptionError(f"part: expected I/N, part I of N, from 1/N to N/N, got {text!r}")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


_MAX_TIMEOUT_S = 1_000_000
_SCHEDULERS = {"dask": "tcp://HOST:8786", "ray": "HOST:6379", "spark": "spark://HOST:7077"}


@documented
@dataclass(frozen=True)
class RunOptions:
    """Options that determine how a build runs. Only `update` changes where samples are stored; none changes images."""

    jobs: int | None = option(None, "Processes.", unset="all cores", metavar="N", low=1, high=4096)
    engine: Engine = option(
        "processes",
        "Where the work runs: in worker processes, which isolate crashes; in this process only; or on a cluster.",
        'With "processes", "dask", "ray" and "spark" an image that crashes its decoder twice is rejected. "sequential" '
        "uses only this process, whatever `jobs` is.",
        flag="--backend",
    )
    scheduler: str | None = option(
        None,
        "Address of the scheduler: tcp://HOST:8786, HOST:6379, spark://HOST:7077.",
        "Only Dask, Ray and Spark have a scheduler. Ray also accepts ``auto``, and Spark ``yarn``.",
        metavar="ADDRESS",
    )
    timeout_s: float = option(
        300.0,
        "Time limit per image; one that exceeds it is retried alone, then rejected.",
        'Above 0 and up to 1,000,000 seconds. "sequential" has no time limit.',
        metavar="S",
    )
    on_error: OnError = option("skip", "Skip images that cannot be stored, or stop at the first.")
    max_errors: ErrorBudget = option(
        ErrorBudget(),
        "Stop after more rejected or unreadable images than this.",
        unset="any number", metavar="N|P%", parse=ErrorBudget.parse,
    )  # fmt: skip
    update: bool = option(
        False,
        "Update OUT from SRC: decode what is new or changed, keep the rest. Omitted options keep their values.",
        "The result has the same samples as a build from scratch, possibly in other shards. In Python, "
        "options_to_update returns the options of OUT.",
    )
    verify: bool = option(False, "With --update: read every kept record, and rebuild damaged ones.")
    overwrite: bool = option(
        False, "Replace a presize dataset when the new one is complete; with --to folder, replace its files one by one."
    )
    report: bool = option(True, "Write report.html about the build.", "Each dataset gets one.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.update and self.overwrite:
            raise OptionError("update: cannot be combined with --overwrite, which replaces OUT; choose one")
        if self.verify and not self.update:
            raise OptionError("verify: reads the records that --update keeps; add --update, or run presize verify OUT")
        if not isinstance(self.timeout_s, Real) or not 0 < self.timeout_s <= _MAX_TIMEOUT_S:
            raise OptionError(f"timeout_s: expected seconds above 0, up to {_MAX_TIMEOUT_S:,}, got {self.timeout_s!r}")
        backend, example = f"--backend {self.engine}", _SCHEDULERS.get(self.engine)
        if example and not self.scheduler:
            raise OptionError(f"scheduler: {backend} needs the address of its scheduler, such as {example}")
        if not example and self.scheduler is not None:
            is_for = ", ".join(_SCHEDULERS)
            raise OptionError(f"scheduler: {backend} has no scheduler, got {self.scheduler!r}; it is for {is_for}")
        if self.engine == "sequential" and self.jobs not in (None, 1):
            raise OptionError(f"jobs: {backend} works in one process, got {self.jobs}; leave it out")
        if example and self.jobs is not None:
            raise OptionError(f"jobs: with {backend} the cluster decides how many tasks run at once, got {self.jobs}")


@documented
@dataclass(frozen=True)
class DeriveOptions:
    """Options of a derived dataset."""

    size: Size | None = option(
        None,
        "Target size in pixels, no larger than that of OUT.",
        "None leaves all images as they are.",
        unset="that of OUT", metavar="N|WxH", parse=Size.parse,
    )  # fmt: skip
    only: Sequence[str] | None = option(None, "Paths of the samples to include; None includes all.", flag=None)
    classes: Sequence[str] | None = option(
        None,
        "Class list: a file with one name per line, or a dataset's list.",
        "In Python, the names themselves; None joins those of the datasets.",
        metavar="FILE|DATASET", is_path=True,
    )  # fmt: skip
    prefix: bool = option(
        False,
        "Prefix each path with the number of its OUT: 0/cats/1.jpg.",
        "This makes all paths distinct.",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.size is not None:
            if self.size == KEEP:
                raise OptionError("size: expected N or WxH, got keep; without --size images keep their size")
            object.__setattr__(self, "size", _checked("size", self.size))
        if self.only is not None:
            in_any_order = [*self.only] if isinstance(self.only, set | frozenset) else self.only
            check_list("only", in_any_order, paths := "a list of paths, at least one")
            if len(self.only) == 0:
                raise OptionError(f"only: expected {paths}, got {self.only!r}")
        if self.classes is not None:
            check_list("classes", self.classes)


def check_kinds(**given: object) -> None:
    """Raise OptionError unless the arguments `options`, `run`, `samples` and `part` of a build are of their classes."""
    kinds = {"options": BuildOptions, "run": RunOptions, "samples": SourceOptions, "part": BuildPart}
    for name, value in given.items():
        check_type(name, value, kinds[name])


@documented
@dataclass(frozen=True)
class SampleOptions:
    """Options that determine the bytes of a sample folder, for given versions of NumPy, OpenCV and Pillow."""

    images: int = option(200, "Number of files.", "Broken files are included.", metavar="N", low=1, high=10_000_000)
    classes: int = option(
        4, "Number of class folders.", "At most the number of images, which are spread evenly over them.",
        flag=None, low=1, high=10_000,
    )  # fmt: skip
    long_side: int = option(
        500,
        "Longer side of a typical image, in pixels.",
        "A few are much smaller or larger.",
        metavar="PX",
        low=16,
        high=4096,
    )
    rotated: float = option(
        0.05,
        "Fraction of the readable files, 0 to 1, that are stored rotated, with an EXIF orientation of 2 to 8.",
        flag=None,
    )
    broken: int = option(
        0,
        "Number of files that are broken.",
        "They are truncated, empty, an HTML page or random bytes, in turn.",
        metavar="N",
    )
    seed: int = option(0, "Random seed.", metavar="N")

    def __post_init__(self) -> None:
        check_options(self)
        check_range("classes", self.classes, 1, self.images)
        check_range("broken", self.broken, 0, self.images)
        if not isinstance(self.rotated, int | float) or not 0 <= self.rotated <= 1:
            raise OptionError(f"rotated: expected a fraction from 0 to 1, got {self.rotated!r}")

    def label(self, index: int) -> int:
        """Return the class of file `index`, from 0 to classes - 1."""
        return index * self.classes // self.images
