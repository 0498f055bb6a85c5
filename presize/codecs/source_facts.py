"""Properties of a source image before conversion, packed into 32 bits: the ``source_facts`` column of an index
(docs/format.md). Values may be added, never moved. 0 means that nothing is known about the image. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from presize.formatting import plural

KINDS: Final = (
    "unknown", "jpeg", "png", "gif", "bmp", "webp", "tiff", "ppm",
    "avif", "jpeg2000", "heic", "jxl", "tga", "ico", "dds", "other",
)  # fmt: skip
Colors = Literal["unknown", "grey", "RGB", "palette", "CMYK", "LAB"]
Process = Literal["none", "baseline", "extended", "progressive", "lossless", "arithmetic", "hierarchical"]

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
    "surplus": (30, 1),
    "like_image": (31, 1),
}
"""The first bit of each field, and the mask of its value."""


class Facts(NamedTuple):
    """Facts about one source image, in the order of the bits in docs/format.md. A `kind` that is not in KINDS, such as
    "sgi", is packed as "other". `kept`: its compressed image is stored wherever it needs no resize."""

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
    surplus: bool = False
    like_image: bool = False

    def pack(self) -> int:
        """Pack the fields into 32 bits, laid out as in FIELDS."""
        return _packed(self)


@functools.lru_cache(256)  # a folder has few distinct ones, and storing an image unchanged takes only 40 µs
def _packed(facts: Facts) -> int:
    numbers = facts._asdict() | {
        "kind": KINDS.index(facts.kind if facts.kind in KINDS else "other"),
        "colors": COLORS.index(facts.colors),
        "process": PROCESSES.index(facts.process),
    }
    return sum(numbers[field] << shift for field, (shift, _) in FIELDS.items())


def unpack_facts(packed: npt.NDArray[Any], field: str) -> npt.NDArray[np.int64]:
    """Unpack the values of one field: indices into KINDS, COLORS or PROCESSES, 0 and 1, or plain numbers."""
    shift, mask = FIELDS[field]
    return packed.astype(np.int64) >> shift & mask


def are_rgb(packed: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which images the filter nearest stores in three channels."""
    return np.isin(unpack_facts(packed, "colors"), (COLORS.index("RGB"), COLORS.index("CMYK")))


class Losses(NamedTuple):
    """Numbers of images that lost information, by kind of loss (see LOSSES)."""

    deep: int = 0
    transparent: int = 0
    palette: int = 0
    several: int = 0
    surplus: int = 0


LOSSES: Final = {
    "deep": ("of more than 8 bits per channel, stored with 8", "--depth 16 keeps them, as png or raw"),
    "transparent": ("with transparency, composited on white", "--color rgba keeps it, as png, webp or raw"),
    "palette": ("with a palette, stored as its colours", "--pair keeps the numbers of a mask"),
    "several": ("of several frames or pages, only the first stored", "split such a file to store the others"),
    "surplus": ("with extra bands, stored without them", "save an extra band as its own file to store it"),
}
"""Description of each loss, and how to avoid it. An MPO counts as one photograph, not as several frames."""


def loss_sentences(images: Losses, companions: Mapping[str, Losses]) -> list[str]:
    """Return a sentence for each loss of the images, then of the companions by name, with how to avoid it."""
    lost = {"image": images} | {f"{name} image": losses for name, losses in companions.items()}
    return [
        f"{plural(count, kind)} {what}; {fix}"
        for kind, counts in lost.items()
        for count, (what, fix) in zip(counts, LOSSES.values(), strict=True)
        if count
    ]


def losses(packed: npt.NDArray[Any], image: Mapping[str, Any]) -> Losses:
    """Count the losses of images with these packed facts; `image` are the image options from the manifest."""
    palette = unpack_facts(packed, "colors") == COLORS.index("palette")
    return companion_losses(packed)._replace(
        deep=0 if image.get("depth") == 16 else int(unpack_facts(packed, "deep").sum()),
        transparent=0 if image["color"] == "rgba" else int(unpack_facts(packed, "transparent").sum()),
        palette=int(palette.sum()),
    )


def companion_losses(packed: npt.NDArray[Any]) -> Losses:
    """Count the losses of companions with these packed facts that no option avoids: frames and bands."""
    several = (unpack_facts(packed, "several") == 1) & (unpack_facts(packed, "kind") != KINDS.index("jpeg"))
    return Losses(several=int(several.sum()), surplus=int(unpack_facts(packed, "surplus").sum()))
