"""What a source image was: the facts that tell what a build converted, packed into 32 bits. Pure.

The numbers stand in the ``source_facts`` column of every index (docs/format.md), so what is here may
be added to, never moved. 0 is an image of which nothing is known.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

Kind = Literal["unknown", "jpeg", "png", "gif", "bmp", "webp", "tiff", "ppm", "avif", "jpeg2000"]
Colors = Literal["unknown", "grey", "RGB", "palette", "CMYK", "LAB"]
Process = Literal["none", "baseline", "extended", "progressive", "lossless", "arithmetic", "hierarchical"]

KINDS: Final[tuple[str, ...]] = get_args(Kind)
COLORS: Final[tuple[str, ...]] = get_args(Colors)
PROCESSES: Final[tuple[str, ...]] = get_args(Process)

FIELDS: Final = {
    "kind": (0, 15),
    "colors": (4, 15),
    "orientation": (8, 15),
    "process": (12, 15),
    "quality": (16, 127),
    "transparent": (24, 1),
    "deep": (25, 1),
    "several": (26, 1),
    "profile": (27, 1),
    "tolerated": (28, 1),
    "kept": (29, 1),
}
"""For each field the bit that it begins at, and the mask of its value."""


class Facts(NamedTuple):
    """One source image.

    kind: its format, by content. colors: YCbCr is RGB, YCCK is CMYK.
    orientation: EXIF's, from 1 to 8. process, quality: of a JPEG; the quality, 1 to 100, is the one of the
        IJG tables nearest to its own, 0 when it has none.
    transparent: it has an alpha channel, or a transparent colour. deep: more than 8 bits a channel.
    several: an animation, or pages: the first was taken. profile: an ICC profile changed its colours.
    tolerated: a JPEG that the strict decoder refused and the second took.
    kept: its compressed image may be stored as it is, and is where it need not be resized.
    """

    kind: str = "unknown"
    colors: Colors = "unknown"
    orientation: int = 1
    process: str = "none"
    quality: int = 0
    transparent: bool = False
    deep: bool = False
    several: bool = False
    profile: bool = False
    tolerated: bool = False
    kept: bool = False

    def pack(self) -> int:
        """As FIELDS has it."""
        return (
            KINDS.index(self.kind)
            | COLORS.index(self.colors) << 4
            | self.orientation << 8
            | PROCESSES.index(self.process) << 12
            | self.quality << 16
            | self.transparent << 24
            | self.deep << 25
            | self.several << 26
            | self.profile << 27
            | self.tolerated << 28
            | self.kept << 29
        )


def unpack(packed: npt.NDArray[Any], field: str) -> npt.NDArray[np.int64]:
    """The numbers of one field: places in KINDS, COLORS and PROCESSES, 0 and 1, or what they are."""
    shift, mask = FIELDS[field]
    return packed.astype(np.int64) >> shift & mask
