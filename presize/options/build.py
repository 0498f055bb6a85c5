"""BuildOptions: all that decides the bytes of a dataset, besides its source; and how they are recorded."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self, get_args

from presize.errors import OptionError
from presize.options.checks import (
    BadBoxes,
    BoxFormat,
    KeypointFormat,
    Layout,
    ValueType,
    check_choice,
    check_range,
    check_text,
    check_type,
)
from presize.options.companion import Companion
from presize.options.image import ImageOptions, Size


class Coordinates(NamedTuple):
    """A column of the label table that holds places in the image, in pixels of the upright source or in shares of it.

    Attributes:
        column: its name.
        format: a BoxFormat or a KeypointFormat; with a % behind it x and y are shares of the width and height, 0 to 1.
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

    @property
    def in_shares(self) -> bool:
        return self.format.endswith("%")

    @property
    def numbers(self) -> str:
        """What its numbers are, in their order: ``xywh`` for ``xywh%``, too."""
        return self.format.removesuffix("%")

    def __str__(self) -> str:
        return f"{self.column}:{self.format}"


class ColumnType(NamedTuple):
    """The type of a column of labels, where it would be read as another.

    Attributes:
        column: its name.
        type: "text" as it is written, "int", "float"; or "class", of the column ``label``: text that names classes,
            whole numbers in the order of their values.
    """

    column: str
    type: ValueType

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        >>> ColumnType.parse("label:class")
        ColumnType(column='label', type='class')
        """
        column, _, type = text.rpartition(":")
        if not column:
            raise OptionError(f"column_type: expected COLUMN:TYPE, such as label:text, got {text!r}")
        return cls(column, type)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.column}:{self.type}"


class Stream(NamedTuple):
    """A thing that every sample of a build stores: its image, or a companion, in one of the sizes.

    Attributes:
        name: of the companion; empty for the image.
        size: the target size.
    """

    name: str
    size: Size

    def column(self, name: str) -> str:
        """Return the name that a column about its records has in the index.

        >>> Stream("mask", Size(256, 256)).column("nbytes")
        'mask_nbytes'
        """
        return f"{self.name}_{name}" if self.name else name


@dataclass(frozen=True)
class BuildOptions:
    """All that decides the bytes of a dataset, besides its source.

    Attributes:
        image: how each image is stored.
        layout: LMDB shards, or a folder of image files.
        shard_samples: samples a shard, at least 1; None chooses by the number of samples (presize.store.dealing).
        follow_links: follow links that lead out of the source.
        checksum: keep the CRC-32 of each source file in the index; an update then compares that instead of
            modification times, and reads every file for it. Off by default for that; computing it takes 0.3 % of the
            time of an image (benchmarks/building/results/overheads.csv, 2026-11-25).
        companions: further images of every sample, such as masks; kept in the order of their names.
        boxes: columns of boxes. The dataset holds them as x1, y1, x2, y2 in pixels of the stored image.
        keypoints: columns of keypoints, likewise: of each object one list, x, y of each point (or x, y, visibility).
        bad_boxes: what becomes of boxes that reach more than a pixel outside of their image, have no area, or are not
            four numbers: "clip" cuts them to the image, and readers leave out those without area; "reject" rejects the
            image.
        column_types: types of columns that would be read as another.
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
    column_types: tuple[ColumnType, ...] = ()

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
        check_type("column_type", self.column_types, tuple)
        for each in self.column_types:
            check_type("column_type", each, ColumnType)
            check_text("column_type", each.column)
            check_choice(f"column_type: {each.column}", each.type, ValueType)
            if each.type == "class" and each.column != "label":
                raise OptionError(
                    f"column_type: only label has classes, got {each}; choose text, and a vocabulary to read"
                )
        typed = [each.column for each in self.column_types]
        if len(set(typed)) < len(typed):
            raise OptionError(f"column_type: expected each column once, got {', '.join(typed)}")
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
        # One order, so that the same options make the same dataset.
        object.__setattr__(self, "companions", tuple(sorted(self.companions, key=lambda companion: companion.name)))
        object.__setattr__(self, "column_types", tuple(sorted(self.column_types)))

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Everything that a sample stores: its image in each size, then each companion in each size."""
        names = ("", *(companion.name for companion in self.companions))
        return tuple(Stream(name, size) for name in names for size in self.image.sizes)

    def to_json(self) -> dict[str, Any]:
        """Plain values for manifest.json; sizes as the strings that Size.parse reads."""
        image = _recorded(self.image) | {"sizes": [str(size) for size in self.image.sizes]}
        values = _recorded(self) | {"image": image}
        for name in ("boxes", "keypoints", "column_types"):
            if name in values:
                values[name] = list(map(str, values[name]))
        if self.companions:
            values["companions"] = {companion.name: companion.to_json() for companion in self.companions}
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """The options that to_json records; ``derived``, which a derived dataset records as well, is none of them.

        Raises:
            OptionError: for those of a later presize, and for invalid ones.
            TypeError, KeyError, AttributeError: the values are not what to_json gives.
        """
        given = {name: value for name, value in values.items() if name != "derived"}
        unknown = sorted(given.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise OptionError(f"{unknown[0]}: this presize has no such option; upgrade it")
        return cls(
            **given
            | {
                "image": ImageOptions.from_json(given["image"]),
                "companions": tuple(Companion(name, **how) for name, how in given.get("companions", {}).items()),
                "boxes": tuple(map(Coordinates.parse_boxes, _texts(given, "boxes"))),
                "keypoints": tuple(map(Coordinates.parse_keypoints, _texts(given, "keypoints"))),
                "column_types": tuple(map(ColumnType.parse, _texts(given, "column_types"))),
            }
        )


def _texts(values: dict[str, Any], name: str) -> list[str]:
    found = values.get(name, [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise TypeError(name)
    return found


ALWAYS_RECORDED = frozenset(
    "image layout shard_samples follow_links checksum sizes fit filter resize_backend color format quality subsampling "
    "tiles upscale keep_metadata max_pixels".split()
)
"""The options of format version 1, which every manifest records. Never add to them: an option of a later release is
recorded where it differs from its default, so that datasets built before it keep their identity and can be updated."""


def _recorded(options: BuildOptions | ImageOptions) -> dict[str, Any]:
    """The options that are part of a dataset's identity, in the order of their fields."""
    defaults = type(options)()
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {
        name: value for name, value in values.items() if name in ALWAYS_RECORDED or value != getattr(defaults, name)
    }
