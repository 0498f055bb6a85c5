"""The options of a build: choices listed once, and frozen dataclasses that check themselves."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from numbers import Real
from typing import Any, Literal, NamedTuple, Self, get_args

from presize.errors import OptionError

Fit = Literal["shorter", "longer", "stretch", "crop", "pad"]
Filter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
ResizeBackend = Literal["cykooz", "pillow"]
Color = Literal["rgb", "gray", "rgba", "keep"]
Depth = Literal[8, 16]
Icc = Literal["convert", "ignore"]
StoredColor = Color | Literal["exact"]
"""What stored values are: "exact" for a companion whose pixels have the values of its source, such as class numbers."""
Format = Literal["jpeg", "png", "webp", "raw"]
Subsampling = Literal["420", "422", "444"]
Layout = Literal["lmdb", "folder"]
OnError = Literal["skip", "fail"]
Engine = Literal["processes", "sequential"]
BoxFormat = Literal["xyxy", "xywh", "cxcywh"]
KeypointFormat = Literal["xy", "xyv"]
BadBoxes = Literal["clip", "reject"]
KeyPreset = Literal["text-recognition", "basicsr", "lsun"]
Repeated = Literal["refuse", "list"]

MAX_SIDE = 16383
"""The longest side of a target, in pixels: WebP's format ends there, JPEG's at 65535."""

MAX_PIXELS = 178_956_970
"""Sources with more pixels than this are refused by default: Pillow's own decompression-bomb limit."""


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


@dataclass(frozen=True)
class ImageOptions:
    """All that decides the stored bytes of one image.

    Attributes:
        sizes: one target or several, all made from one decode; stored in this order. KEEP stores an image that is in
            `format` already as it is, without decoding it (presize.codecs.special.unchanged).
        fit: how an image meets its target (see presize.codecs.resize.target).
        filter: bicubic is torchvision's and Pillow's (a = -0.5). All but nearest antialias; nearest takes pixels as
            they are, which is for class numbers, not for photographs.
        resize_backend: the library that resamples. The default is cykooz.resizer, 5 times as fast as Pillow and as
            close to exact arithmetic (benchmarks/transcoding/results/resizers.csv, 2026-11-21); "pillow" gives Pillow's
            own pixels.
        color: "rgb" stores three channels, "gray" one, "rgba" four; "keep" one of grey sources, and three of others.
            Transparency is composed on white, but for "rgba".
        depth: bits a channel. 16 scales sources of 8 bits.
        icc: "convert" brings pixels from the colours of an ICC profile to sRGB; "ignore" takes them as they are, as
            torchvision and Pillow do.
        format: what is stored.
        quality: 1 to 100, for jpeg and webp. 90 with 4:2:0 is what FFCV and the timm recipes train from.
        subsampling: of the chroma, for jpeg.
        tiles: store JPEG in tiles, so that a reader decodes just the part that it crops (presize.codecs.jpeg_tiles);
            other formats, and JPEGs that are stored unchanged, have none.
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
    tiles: bool = True
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
        check_range("quality", self.quality, 1, 100)
        check_range("max_pixels", self.max_pixels, 1, 2**40)
        check_type("tiles", self.tiles, bool)
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


@dataclass(frozen=True)
class SourceOptions:
    """Which samples a source has. It decides the bytes of a dataset; the samples are recorded, and nothing here is.

    Attributes:
        labels: a table (CSV, JSON lines, Parquet or a list of paths) that lists the samples, in their order; "none" for
            all files of the source, without labels; None for class folders, or a flat folder.
        classes: the class list; None for the sorted names of folders or labels.
        repeated: "refuse" a path that several rows of the table have, or make of them one sample whose columns are
            lists.
        split: how the column ``split`` comes about: "folders", by the folder of the source that a sample lies in; or
            shares that add up to 1, as in "train=0.9,val=0.1", drawn by the sample's path; None for no such column.
        split_seed: random seed of the shares, from 0.
        keys: which images to take from files that hold many. Of an LMDB a pattern for keys, such as
            ``image-{:09d}``, or a KeyPreset; of tar shards an extension, such as ``jpg``; of Parquet a column. Tar
            shards and Parquet need it where a sample has several images.
        label_keys: the pattern for the keys of an LMDB's labels, such as ``label-{:09d}``. ``text=label-{:09d}`` calls
            their column ``text``.
    """

    labels: str | os.PathLike[str] | None = None
    classes: Sequence[str] | None = None
    repeated: Repeated = "refuse"
    split: str | None = None
    split_seed: int = 0
    keys: str | None = None
    label_keys: str | None = None

    def __post_init__(self) -> None:
        check_choice("repeated", self.repeated, Repeated)
        check_range("split_seed", self.split_seed, 0, 2**63 - 1)
        if self.split is not None and self.split != "folders":
            parse_shares(self.split)
        if self.repeated == "list" and self.table is None:
            raise OptionError("repeated: list is about rows of a table; name one with --labels")
        if self.classes is not None and self.labels == "none":
            raise OptionError("classes: samples have no class with --labels none; leave one of them out")
        for name in ("keys", "label_keys"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise OptionError(f"{name}: expected a text such as image-{{:09d}}, got {value!r}")
        if self.label_keys is not None and self.keys is None:
            raise OptionError("label_keys: it needs --keys, the pattern for the keys of the images")
        if self.label_keys is not None and self.keys in get_args(KeyPreset):
            raise OptionError(f"label_keys: --keys {self.keys} has its own; give patterns for both, or leave it out")

    @property
    def table(self) -> str | os.PathLike[str] | None:
        """The label table, if there is one."""
        return None if self.labels == "none" else self.labels


def parse_shares(text: str) -> dict[str, Fraction]:
    """The share of each split: names and decimals that add up to 1.

    >>> parse_shares("train=0.9,val=0.1")
    {'train': Fraction(9, 10), 'val': Fraction(1, 10)}
    """
    check_type("split", text, str)
    found = [re.fullmatch(r"\s*([^=\s][^=]*?)\s*=\s*(\d*\.?\d+)\s*", part, re.ASCII) for part in text.split(",")]
    shares = {match[1]: Fraction(match[2]) for match in found if match}
    if len(shares) < len(found) or not all(shares.values()):
        raise OptionError(f"split: expected folders, or names and shares, such as train=0.9,val=0.1, got {text!r}")
    if sum(shares.values()) != 1:
        raise OptionError(f"split: the shares in {text!r} add up to {float(sum(shares.values())):g}, expected 1")
    return shares


class Coordinates(NamedTuple):
    """A column of the label table that holds places in the image, in pixels of the upright source.

    Attributes:
        column: its name.
        format: a BoxFormat or a KeypointFormat.
    """

    column: str
    format: str

    @classmethod
    def parse_boxes(cls, text: str) -> Self:
        """``"bbox:xywh"``: the format has to be named.

        >>> Coordinates.parse_boxes("bbox:xywh")
        Coordinates(column='bbox', format='xywh')
        """
        column, colon, format = text.rpartition(":")
        if not colon:
            raise OptionError(f"boxes: expected COLUMN:FORMAT, such as bbox:xyxy, got {text!r}")
        return cls(column, format)

    @classmethod
    def parse_keypoints(cls, text: str) -> Self:
        """``"points:xyv"``, or ``"points"`` for ``points:xy``.

        >>> Coordinates.parse_keypoints("points")
        Coordinates(column='points', format='xy')
        """
        column, _, format = text.rpartition(":")
        return cls(column, format) if format in get_args(KeypointFormat) and column else cls(text, "xy")

    def __str__(self) -> str:
        return f"{self.column}:{self.format}"


def companion_color(format: Format) -> Color:
    """How many channels a companion has that is stored as an image is: those of its source, where `format` has them."""
    return "rgb" if format == "webp" else "keep"


COMPANION_NAME = r"[A-Za-z][A-Za-z0-9_]{0,31}"
"""The names that companions may have, as a regular expression for ASCII."""
_FIELD = re.compile(r"\{\{|\}\}|\{(\w*)\}|[{}]", re.ASCII)
_FIELDS = ("stem", "dir", "name")


@dataclass(frozen=True)
class Companion:
    """A second image of every sample, such as a segmentation mask, with the geometry of the first.

    Attributes:
        name: of its shards and index columns.
        pattern: the path of its file, relative to the source: ``masks/{stem}.png``. ``{name}`` is the name of the
            image's file, ``{stem}`` the same without its suffix, ``{dir}`` its folder, ``{{`` and ``}}`` are braces.
        column: the column of the label table that holds the path, in place of `pattern`.
        format: what is stored.
        filter: "nearest" keeps the values of pixels exactly: those of grey images, of 16 bits, too, and the indices of
            palettes. With any other filter the companion is stored as an image is.
    """

    name: str
    pattern: str | None = None
    column: str | None = None
    format: Format = "png"
    filter: Filter = "nearest"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(COMPANION_NAME, self.name, re.ASCII):
            raise OptionError(f"pair: expected a name of at most 32 letters, digits and _, got {self.name!r}")
        if self.name == "source" or self.name.endswith("_source"):
            raise OptionError(f"pair: {self.name!r} would have columns that the index has already; choose another name")
        if (self.pattern is None) == (self.column is None):
            raise OptionError(
                f"pair: expected a pattern or a column for {self.name}, such as masks/{{stem}}.png, got "
                f"{'neither' if self.pattern is None else 'both'}"
            )
        if self.pattern is not None:
            self.pieces()
            parts = self.pattern.split("/")
            if not self.pattern or parts[0] == "" or not {".", ".."}.isdisjoint(parts):
                raise OptionError(f"pair: expected a path from the source for {self.name}, got {self.pattern!r}")
        check_choice("pair_format", self.format, Format)
        check_choice("pair_filter", self.filter, Filter)
        if self.is_exact and self.format not in ("png", "raw"):
            raise OptionError(
                f"pair_format: {self.format} changes the values of pixels, which nearest keeps; choose png or raw, "
                f"or another filter for {self.name}"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """``NAME=PATTERN``, or ``NAME=column:COLUMN``.

        >>> Companion.parse("mask=masks/{stem}.png").pattern
        'masks/{stem}.png'
        """
        name, equals, place = text.partition("=")
        if not equals:
            raise OptionError(f"pair: expected NAME=PATTERN, such as mask=masks/{{stem}}.png, got {text!r}")
        kind, colon, column = place.partition(":")
        return cls(name, column=column) if kind + colon == "column:" else cls(name, place)

    @property
    def is_exact(self) -> bool:
        """Whether the values of its pixels are kept."""
        return self.filter == "nearest"

    def pieces(self) -> list[tuple[str, str]]:
        """The pattern as pairs of literal text and the field that follows it, "" for none.

        >>> Companion("mask", "masks/{stem}.png").pieces()
        [('masks/', 'stem'), ('.png', '')]
        """
        pattern, pieces, literal, end = self.pattern or "", [], "", 0
        for match in _FIELD.finditer(pattern):
            literal += pattern[end : match.start()]
            end = match.end()
            if match[0] in ("{{", "}}"):
                literal += match[0][0]
            elif match[1] in _FIELDS:
                pieces.append((literal, match[1]))
                literal = ""
            else:
                raise OptionError(
                    f"pair: {match[0]} in {pattern!r} is none of {{stem}}, {{dir}} and {{name}}; "
                    "write {{ and }} for braces"
                )
        return [*pieces, (literal + pattern[end:], "")]

    def image_options(self, image: ImageOptions) -> ImageOptions:
        """How it is stored beside images of these options. The values of an exact one are kept whatever its color."""
        color = companion_color(self.format)
        return replace(image, format=self.format, filter=self.filter, color=color, depth=8, keep_metadata=False)

    def to_json(self) -> dict[str, str]:
        """Plain values for manifest.json, without the name."""
        place = {"column": self.column} if self.pattern is None else {"pattern": self.pattern}
        return {**place, "format": self.format, "filter": self.filter}  # type: ignore[dict-item]


@dataclass(frozen=True)
class BuildOptions:
    """All that decides the bytes of a dataset, besides its source.

    Attributes:
        image: how each image is stored.
        layout: LMDB shards, or a folder of image files.
        shard_samples: samples a shard, at least 1; None chooses by the number of samples (presize.store.dealing).
        follow_links: follow links that lead out of the source.
        checksum: keep the CRC-32 of each source file in the index; an update then compares that instead of
            modification times. Off by default, since it adds 1.1 % to the time of an image
            (benchmarks/building/results/checksum.csv, 2026-11-21).
        companions: further images of every sample, such as masks; kept in the order of their names.
        boxes: columns of boxes. The dataset holds them as x1, y1, x2, y2 in pixels of the stored image.
        keypoints: columns of keypoints, likewise: of each object one list, x, y of each point (or x, y, visibility).
        bad_boxes: what becomes of boxes that reach more than a pixel outside of their image, have no area, or are not
            four numbers: "clip" cuts them to the image, and readers leave out those without area; "reject" rejects the
            image.
    """

    image: ImageOptions = field(default_factory=ImageOptions)
    layout: Layout = "lmdb"
    shard_samples: int | None = None
    follow_links: bool = False
    checksum: bool = False
    companions: tuple[Companion, ...] = ()
    boxes: tuple[Coordinates, ...] = ()
    keypoints: tuple[Coordinates, ...] = ()
    bad_boxes: BadBoxes = "clip"

    def __post_init__(self) -> None:
        check_type("image", self.image, ImageOptions)
        for name, formats in (("boxes", BoxFormat), ("keypoints", KeypointFormat)):
            check_type(name, getattr(self, name), tuple)
            for place in getattr(self, name):
                check_type(name, place, Coordinates)
                check_choice(f"{name}: {place.column}", place.format, formats)
        named = [place.column for place in (*self.boxes, *self.keypoints)]
        if len(set(named)) < len(named):
            raise OptionError(f"boxes: expected each column once in boxes and keypoints, got {', '.join(named)}")
        check_choice("bad_boxes", self.bad_boxes, BadBoxes)
        check_choice("to", self.layout, Layout)
        check_type("follow_links", self.follow_links, bool)
        check_type("checksum", self.checksum, bool)
        if self.shard_samples is not None:
            check_range("shard_samples", self.shard_samples, 1, 2**31 - 1)
        if self.layout == "folder" and self.image.format == "raw":
            raise OptionError("to: format raw has no image files; choose --to lmdb, or jpeg, png or webp")
        check_type("pair", self.companions, tuple)
        for companion in self.companions:
            check_type("pair", companion, Companion)
        if len({companion.name for companion in self.companions}) < len(self.companions):
            raise OptionError(f"pair: expected each name once, got {', '.join(c.name for c in self.companions)}")
        if self.layout == "folder" and self.companions:
            raise OptionError("to: pairs are stored in shards alone; choose --to lmdb, or build without --pair")
        # One order, so that the same companions make the same dataset.
        object.__setattr__(self, "companions", tuple(sorted(self.companions, key=lambda companion: companion.name)))

    def to_json(self) -> dict[str, Any]:
        """Plain values for manifest.json; sizes as the strings that Size.parse reads."""
        image = _recorded(self.image) | {"sizes": [str(size) for size in self.image.sizes]}
        values = _recorded(self) | {"image": image}
        for name in ("boxes", "keypoints"):
            if name in values:
                values[name] = list(map(str, values[name]))
        if self.companions:
            values["companions"] = {companion.name: companion.to_json() for companion in self.companions}
        return values


ALWAYS_RECORDED = frozenset(
    "image layout shard_samples follow_links checksum sizes fit filter resize_backend color format quality subsampling "
    "tiles upscale keep_metadata max_pixels".split()
)
"""The options of format version 1, which every manifest records. Never add to them: an option of a later release is
recorded where it differs from its default, so that datasets built before it keep their identity and can be updated."""


def _recorded(options: BuildOptions | ImageOptions) -> dict[str, Any]:
    """The options that are part of a dataset's identity, in the order of their fields."""
    defaults = type(options)()
    values = {name: getattr(options, name) for name in (field.name for field in fields(options))}
    return {
        name: value for name, value in values.items() if name in ALWAYS_RECORDED or value != getattr(defaults, name)
    }


@dataclass(frozen=True)
class ErrorBudget:
    """How many rejected images a build tolerates. Any number when neither attribute is given.

    Attributes:
        count: at most so many, from 0.
        share: at most this share of all samples, from 0 to 1.
    """

    count: int | None = None
    share: Fraction | float | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            check_range("max_errors", self.count, 0, 2**63 - 1)
        if self.share is not None and not (isinstance(self.share, Real) and 0 <= self.share <= 1):
            raise OptionError(f"max_errors: expected a share from 0 to 1, got {self.share!r}")
        if self.count is not None and self.share is not None:
            raise OptionError(f"max_errors: expected a count or a share, got both {self.count} and {self.share}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """``"100"`` is a count from 0 up, ``"0.5%"`` a share from 0 to 100 percent.

        >>> ErrorBudget.parse("0.5%").allows(1, of=200)
        True
        """
        match = re.fullmatch(r"(\d{1,18})|(\d{1,3}(?:\.\d{1,9})?)%", text.strip(), re.ASCII)
        if not match or (match[2] and Fraction(match[2]) > 100):
            raise OptionError(f"max_errors: expected a count or a percentage, such as 100 or 0.5%, got {text!r}")
        return cls(count=int(match[1])) if match[1] else cls(share=Fraction(match[2]) / 100)

    def __str__(self) -> str:
        """What parse() reads, or ``unlimited``."""
        if self.share is not None:
            return f"{float(self.share * 100):.9f}".rstrip("0").rstrip(".") + "%"
        return "unlimited" if self.count is None else str(self.count)

    def allows(self, rejected: int, of: int) -> bool:
        """True when `rejected` of `of` samples are within the budget."""
        if self.count is not None:
            return rejected <= self.count
        return self.share is None or rejected <= self.share * of


_MAX_TIMEOUT_S = 1_000_000


@dataclass(frozen=True)
class RunOptions:
    """How a build is carried out. Only `update` changes where samples are stored; nothing here changes an image.

    Attributes:
        jobs: processes, at least 1; None uses every core this process may use.
        engine: "processes" contains crashes: an image that ends its decoder, twice, is rejected; "sequential" uses
            this process alone, whatever `jobs` is, and contains nothing.
        on_error: "skip" records images that cannot be stored and goes on; "fail" stops at the first.
        max_errors: how many rejected images a build tolerates.
        overwrite: replace a dataset that was made from another source or with other options.
        update: bring a dataset up to date with its source. It gives the same samples as a build from scratch;
            they may lie in other shards.
        report: write report.html, a page about the build, into each dataset.
        timeout_s: an image that takes longer is tried once more, alone, and then rejected; above 0 and up to
            1,000,000 seconds. By "processes" alone.
    """

    jobs: int | None = None
    engine: Engine = "processes"
    on_error: OnError = "skip"
    max_errors: ErrorBudget = ErrorBudget()
    overwrite: bool = False
    update: bool = False
    report: bool = True
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        check_choice("backend", self.engine, Engine)
        check_choice("on_error", self.on_error, OnError)
        check_type("max_errors", self.max_errors, ErrorBudget)
        check_type("overwrite", self.overwrite, bool)
        check_type("report", self.report, bool)
        check_type("update", self.update, bool)
        if self.update and self.overwrite:
            raise OptionError("update: it keeps what is there and --overwrite replaces it; choose one")
        if self.jobs is not None:
            check_range("jobs", self.jobs, 1, 4096)
        if not 0 < self.timeout_s <= _MAX_TIMEOUT_S:
            raise OptionError(f"timeout_s: expected seconds above 0, up to {_MAX_TIMEOUT_S:,}, got {self.timeout_s!r}")


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise OptionError unless `value` is one of the Literal `choices`."""
    allowed = get_args(choices)
    if value not in allowed:
        raise OptionError(f"{name}: expected one of {', '.join(map(str, allowed))}, got {value!r}")


def check_range(name: str, value: object, low: int, high: int) -> None:
    """Raise OptionError unless `value` is a whole number from `low` to `high`, both included."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise OptionError(f"{name}: expected a whole number from {low} to {high}, got {value!r}")


def check_above_0(name: str, value: float) -> None:
    """Raise OptionError unless `value` is a number above 0, and finite."""
    if not 0 < value < math.inf:
        raise OptionError(f"{name}: expected a number above 0, got {value!r}")


def check_type(name: str, value: object, kind: type) -> None:
    """Raise OptionError unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise OptionError(f"{name}: expected {kind.__name__}, got {value!r}")
