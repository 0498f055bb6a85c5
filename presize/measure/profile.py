"""Times of functions, as cProfile counts them -> the parts of making a batch. Pure.

A function is recognized by its file or its name. The time of an unknown function belongs to its callers: when Pillow's
`resize` calls a helper of the standard library, the time of the helper counts as augmenting.
"""

from __future__ import annotations

import cProfile
import re
import sys
import sysconfig
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

from presize.errors import DiagnosisError

T = TypeVar("T")
Part = Literal["read", "decode", "augment", "collate", "other"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)

_PATTERNS: Final[tuple[tuple[Part, tuple[str, ...]], ...]] = (
    (
        "collate",
        (
            r"^torch/utils/data/_utils/(collate|pin_memory)\.py:", r"^<built-in method torch\.(stack|cat)>",
            r"^transformers/data/data_collator\.py:", r"datasets/(collate|reading/memory)\.py:",
        ),
    ),
    (
        "augment",
        (
            r"^<method '(resize|reduce|crop|expand|rotate|transpose|transform|filter|point|\w+_blur)' of 'ImagingCore'",
            r"^PIL/Image(Enhance|Ops|Filter|Chops)\.py:",
            r"^PIL/Image\.py:(resize|crop|rotate|transpose|transform)$",
            r"^<(resize|warpAffine|warpPerspective|remap|flip|LUT|cvtColor|GaussianBlur|copyMakeBorder)>",
            r"^(albumentations|albucore|kornia)/", r"^(torchvision/transforms|timm/data)/",
            r"^<built-in method torch\._C\._nn\._?upsample", r"^torch/nn/functional\.py:interpolate",
            r"_pillow_(resize\.resize|color\.\w+)>", r"datasets/(applied|crops|reading/draws)\.py:",
            r"datasets/reading/regions\.py:(resample|_by_library|by_pillow|_by_torch|_window)$",
            r"presize/codecs/(pillow_color|(pillow_)?resize)\.py:",
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
"""Regular expressions for the names of functions, see `_name`. The first part that matches counts."""

_KNOWN = [(part, re.compile("|".join(patterns))) for part, patterns in _PATTERNS]

_STDLIB = sysconfig.get_path("stdlib")

_ROUNDS = 16  # levels of callers that are followed from an unknown function


class Spent(NamedTuple):
    parts: dict[Part, float]  # seconds
    functions: list[tuple[str, Part, float]]  # (name, part, own seconds), longest first
    frames: dict[str, float]  # seconds of the part "other" by function outside installed packages, largest first


class Profile(cProfile.Profile):
    """A profile of the thread that enables it.

    From Python 3.12 on, cProfile also receives the events of all other threads, and attributes their calls to the
    function that is running."""

    def enable(self, subcalls: bool = True, builtins: bool = True) -> None:
        super().enable(subcalls, builtins)
        if sys.version_info >= (3, 12):
            tool, thread = sys.monitoring.PROFILER_ID, threading.get_ident()
            for name in _EVENTS:
                event = getattr(sys.monitoring.events, name)
                if (callback := sys.monitoring.register_callback(tool, event, None)) is not None:
                    sys.monitoring.register_callback(tool, event, _only_in(thread, callback))


_EVENTS = ("PY_START", "PY_RESUME", "PY_THROW", "PY_RETURN", "PY_YIELD", "PY_UNWIND", "CALL", "C_RETURN", "C_RAISE")


def _only_in(thread: int, callback: Callable[..., Any]) -> Callable[..., None]:
    def filtered(*event: Any) -> None:
        if threading.get_ident() == thread:
            callback(*event)

    return filtered


def check_unprofiled() -> None:
    """Raise DiagnosisError if another profiler is active in this process: a process has only one."""
    if sys.version_info >= (3, 12):
        active: object = sys.monitoring.get_tool(sys.monitoring.PROFILER_ID)
    else:
        active = sys.getprofile()
    if active is not None:
        raise DiagnosisError("another profiler is active; run the script without it")


def split(profile: cProfile.Profile, most: int = 8, *, collate: Any = None) -> Spent:
    """Split the own time of all profiled functions by part, and list the `most` functions that took longest. The time
    of `collate`, a function or a callable object, counts as collating, whatever its name."""
    own, callers, mine = _calls(profile)
    known = {name: part_of(name) for name in own}
    code = getattr(collate, "__code__", None) or getattr(type(collate).__call__, "__code__", None)
    if code is not None and _name(code) in own:
        known[_name(code)] = "collate"
    nobody: Part = "other"
    shares, owners = _shares(known, callers, nobody), _shares(mine, callers, "")
    parts: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
    frames: Counter[str] = Counter()
    for name, seconds in own.items():
        for part, share in shares[name].items():
            parts[part] += share * seconds
        others_s = shares[name].get("other", 0.0) * seconds
        frames.update({frame: share * others_s for frame, share in owners[name].items()})
    del frames[""]
    longest = sorted(own, key=own.__getitem__, reverse=True)[:most]
    return Spent(
        parts,
        [(name, max(shares[name], key=shares[name].__getitem__), own[name]) for name in longest],
        dict(frames.most_common(most)),
    )


_Callers = dict[str, dict[str, float]]


def _calls(profile: cProfile.Profile) -> tuple[dict[str, float], _Callers, dict[str, str | None]]:
    """Return for each profiled function its own seconds, the seconds that each caller spent in it ("" for no caller),
    and its name, None for functions of Python and of installed packages."""
    entries: Any = profile.getstats()
    own: dict[str, float] = defaultdict(float)
    total: dict[str, float] = defaultdict(float)
    callers: _Callers = defaultdict(lambda: defaultdict(float))
    mine: dict[str, str | None] = {}
    for entry in entries:
        name = _name(entry.code)
        mine[name] = name if _is_mine(entry.code) else None
        own[name] += entry.inlinetime
        total[name] += entry.totaltime
        for call in entry.calls or ():
            callers[_name(call.code)][name] += call.totaltime
    for name, seconds in total.items():
        # cProfile records no caller of the profiled function itself, though other functions may also call it.
        callers[name][""] = max(seconds - sum(callers[name].values()), 0.0)
    return own, callers, mine


def own_python(profile: cProfile.Profile) -> dict[str, float]:
    """Return the profiled seconds by function outside installed packages, largest first. Such a function also gets the
    time of what it calls, except torch."""
    own, callers, mine = _calls(profile)
    owners = _shares({name: "torch" if "torch" in name else mine[name] for name in own}, callers, "torch")
    found: Counter[str] = Counter()
    for name, seconds in own.items():
        found.update({owner: share * seconds for owner, share in owners[name].items()})
    return {owner: seconds for owner, seconds in found.most_common() if owner != "torch"}


def part_of(name: str) -> Part | None:
    """Return the part that a function named `name` belongs to; None if not known."""
    return next((part for part, pattern in _KNOWN if pattern.search(name)), None)


def _shares(known: dict[str, T | None], callers: _Callers, nobody: T) -> dict[str, dict[T, float]]:
    """Return the shares of each function's time by category: its own in `known`, or else the shares of its callers."""
    shares: dict[str, dict[T, float]] = {name: {nobody if one is None else one: 1.0} for name, one in known.items()}
    unknown = [name for name, one in known.items() if one is None and sum(callers[name].values()) > 0]
    for _ in range(_ROUNDS):
        for name in unknown:
            total = sum(callers[name].values())
            mixed: dict[T, float] = defaultdict(float)
            for caller, seconds in callers[name].items():
                for one, share in shares.get(caller, {nobody: 1.0}).items():
                    mixed[one] += share * seconds / total
            shares[name] = dict(mixed)
    return shares


def _is_mine(code: Any) -> bool:
    if isinstance(code, str) or code.co_filename.startswith("<"):
        return False
    return "-packages/" not in code.co_filename.replace("\\", "/") and not code.co_filename.startswith(_STDLIB)


def _name(code: Any) -> str:
    """Return "package/file:function" for a function of an installed package, cProfile's name, "<built-in ...>", for one
    without a file, and "./folder/file:function" for others: "./" keeps local folders apart from packages."""
    if isinstance(code, str):
        return code
    file = code.co_filename.replace("\\", "/")
    _, installed, inside = file.rpartition("-packages/")
    return f"{inside if installed else './' + '/'.join(file.split('/')[-2:])}:{code.co_name}"
