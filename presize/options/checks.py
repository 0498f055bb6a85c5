"""The choices that options have, each listed once, and checks of single values."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from presize.errors import OptionError


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


def check_text(name: str, value: str) -> None:
    """Raise OptionError unless `value` is Unicode: a command line may hold any bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{name}: expected UTF-8, got {value!r}") from None


def check_type(name: str, value: object, kind: type) -> None:
    """Raise OptionError unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise OptionError(f"{name}: expected {kind.__name__}, got {value!r}")


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
Tiles = Literal["resized", "all", "none"]
Layout = Literal["lmdb", "folder"]
ExportLayout = Literal["folder", "tar", "parquet"]
OnError = Literal["skip", "fail"]
Engine = Literal["processes", "sequential", "dask", "ray", "spark"]
BoxFormat = Literal["xyxy", "xywh", "cxcywh", "xyxy%", "xywh%", "cxcywh%"]
KeypointFormat = Literal["xy", "xyv", "xy%", "xyv%"]
BadBoxes = Literal["clip", "reject"]
KeyPreset = Literal["text-recognition", "basicsr", "lsun"]
Repeated = Literal["refuse", "list"]
ValueType = Literal["text", "int", "float", "class"]

SPELLINGS = {"jpg": "jpeg", "grey": "gray"}
"""Other spellings, which the command line takes as well."""
