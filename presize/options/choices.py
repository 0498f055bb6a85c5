"""The choices that options have, each listed once."""

from __future__ import annotations

from typing import Literal

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
