"""Time spent in functions -> the parts of making a batch: read, decode, augment, collate, other. Pure; works on what
cProfile counted, of any code.

A function is known by its file or its name. What is not known belongs to whoever called it: the time that Pillow's
`resize` spends in a helper of the standard library is time for augmenting.
"""

from __future__ import annotations

import cProfile
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple, get_args

Part = Literal["read", "decode", "augment", "collate", "other"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)

_PATTERNS: Final[tuple[tuple[Part, tuple[str, ...]], ...]] = (
    (
        "collate",
        (
            r"^torch/utils/data/_utils/(collate|pin_memory)\.py:", r"^<built-in method torch\.(stack|cat)>",
            r"^transformers/data/data_collator\.py:", r"datasets/(collate|reading/batch)\.py:",
        ),
    ),
    (
        "augment",
        (
            r"^<method '(resize|reduce|crop|expand|rotate|transpose|transform|filter|point|\w+_blur)' of 'ImagingCore'",
            r"^PIL/Image(Enhance|Ops|Filter|Chops)\.py:",
            r"^PIL/Image\.py:(resize|crop|rotate|transpose|transform)$",
            r"^<(resize|warpAffine|warpPerspective|remap|flip|LUT|cvtColor|GaussianBlur|copyMakeBorder)>",
            r"^(albumentations|albucore|kornia|cykooz_resizer)/", r"^(torchvision/transforms|timm/data)/",
            r"^<built-in method torch\._C\._nn\._?upsample", r"^torch/nn/functional\.py:interpolate",
            r"_pillow_resize\.resize>", r"datasets/(crops|reading/(draws|resample))\.py:",
            r"presize/codecs/(pillow_)?resize\.py:",
        ),
    ),
    (
        "decode",
        (
            r"^<method 'decode' of '.*Decoder'", r"^<method 'convert' of 'ImagingCore'", r"^<(imdecode|imread)>",
            r"^PIL/(ImageFile|\w+ImagePlugin)\.py:", r"zlib\.decompress>",
            r"^PIL/Image\.py:(open|preinit|init|convert|load|draft|frombuffer|frombytes)$",
            r"^(simplejpeg|torchcodec|imageio|skimage/io|torchvision/io)/", r"^turbojpeg\.py:", r"torch\.ops\.image",
            r"presize/codecs/",
            r"datasets/reading/regions\.py:",
        ),
    ),
    (
        "read",
        (
            r"^<method 'read\w*' of '_io\.", r"^<built-in method (_io|io|posix|nt)\.", r"^<method 'recv\w*' of '_so",
            r"/pathlib\.py:(read_bytes|open)$", r"/(zipfile|tarfile)\.py:", r"^(lmdb|fsspec|h5py|pyarrow)/",
            r"^<method '\w+' of '(Transaction|Cursor)' objects>", r"presize/store/shard_reader\.py:",
        ),
    ),
)  # fmt: skip
"""The first of which a pattern is found in a function's name counts; see `_name`."""

_KNOWN = [(part, re.compile("|".join(patterns))) for part, patterns in _PATTERNS]

_ROUNDS = 16
"""How far up the callers of an unknown function are followed."""


class Spent(NamedTuple):
    """A profile, split.

    Attributes:
        parts: Seconds by part.
        functions: (name, part, own seconds) of the functions that took longest, the longest first.
    """

    parts: dict[Part, float]
    functions: list[tuple[str, Part, float]]


def split(profile: cProfile.Profile, most: int = 8) -> Spent:
    """Split the own time of all profiled functions by part, and list the `most` functions that took longest."""
    entries: Any = profile.getstats()
    own = {_name(entry.code): 0.0 for entry in entries}
    callers: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for entry in entries:
        name = _name(entry.code)
        own[name] += entry.inlinetime
        for call in entry.calls or ():
            callers[_name(call.code)][name] += call.totaltime
    shares = _shares(own, callers)
    parts: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
    for name, seconds in own.items():
        for part, share in shares[name].items():
            parts[part] += share * seconds
    longest = sorted(own, key=own.__getitem__, reverse=True)[:most]
    return Spent(parts, [(name, max(shares[name], key=shares[name].__getitem__), own[name]) for name in longest])


def part_of(name: str) -> Part | None:
    """The part that a function of this name belongs to; None if not known."""
    return next((part for part, pattern in _KNOWN if pattern.search(name)), None)


def _shares(own: Iterable[str], callers: dict[str, dict[str, float]]) -> dict[str, dict[Part, float]]:
    """How the time of each function is divided among the parts."""
    known = {name: part_of(name) for name in own}
    shares: dict[str, dict[Part, float]] = {name: {part or "other": 1.0} for name, part in known.items()}
    unknown = [name for name, part in known.items() if part is None and callers.get(name)]
    for _ in range(_ROUNDS):
        for name in unknown:
            total = sum(callers[name].values())
            if total <= 0:
                continue
            mixed: dict[Part, float] = defaultdict(float)
            for caller, seconds in callers[name].items():
                for part, share in shares.get(caller, {"other": 1.0}).items():
                    mixed[part] += share * seconds / total
            shares[name] = dict(mixed)
    return shares


def _name(code: Any) -> str:
    """The name of a function: "package/file:function" in an installed package, "./folder/file:function" elsewhere, so
    that no local folder is taken for a package, and cProfile's name, "<built-in ...>", for one without a file."""
    if isinstance(code, str):
        return code
    file = code.co_filename.replace("\\", "/")
    _, installed, inside = file.rpartition("-packages/")
    return f"{inside if installed else './' + '/'.join(file.split('/')[-2:])}:{code.co_name}"
