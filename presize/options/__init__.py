"""The options of a build: choices listed once, and frozen dataclasses that check themselves."""

from presize.options.build_options import ALWAYS_RECORDED, TILES_RECORDED, BuildOptions, Coordinates
from presize.options.choices import (
    BadBoxes,
    BoxFormat,
    Color,
    Depth,
    Engine,
    ExportLayout,
    Filter,
    Fit,
    Format,
    Icc,
    KeypointFormat,
    KeyPreset,
    Layout,
    OnError,
    Repeated,
    ResizeBackend,
    StoredColor,
    Subsampling,
    Tiles,
)
from presize.options.companion_options import COMPANION_NAME, Companion, companion_color
from presize.options.image_options import MAX_PIXELS, ImageOptions
from presize.options.option_checks import check_above_0, check_choice, check_range, check_type
from presize.options.run_options import BuildPart, ErrorBudget, RunOptions
from presize.options.sizes import KEEP, MAX_SIDE, Size, size_words
from presize.options.source_options import SourceOptions, parse_shares

__all__ = [
    "ALWAYS_RECORDED",
    "COMPANION_NAME",
    "KEEP",
    "MAX_PIXELS",
    "MAX_SIDE",
    "TILES_RECORDED",
    "BadBoxes",
    "BoxFormat",
    "BuildOptions",
    "BuildPart",
    "Color",
    "Companion",
    "Coordinates",
    "Depth",
    "Engine",
    "ErrorBudget",
    "ExportLayout",
    "Filter",
    "Fit",
    "Format",
    "Icc",
    "ImageOptions",
    "KeyPreset",
    "KeypointFormat",
    "Layout",
    "OnError",
    "Repeated",
    "ResizeBackend",
    "RunOptions",
    "Size",
    "SourceOptions",
    "StoredColor",
    "Subsampling",
    "Tiles",
    "check_above_0",
    "check_choice",
    "check_range",
    "check_type",
    "companion_color",
    "parse_shares",
    "size_words",
]
