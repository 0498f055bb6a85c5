"""traced: the transforms that an object calls with its image, and what it makes of their results.

A class of a script, such as MoCo's TwoCropsTransform, whose method does nothing else is called once with stand-ins.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import torch

_BUILTINS = frozenset(("append", "extend", "enumerate", "len", "list", "range", "tuple"))
"""The names that a method may use beside attributes of its object."""


class Traced(NamedTuple):
    """The `parts` that an object calls with an image; `kind`: list or tuple of their results, None for one alone."""

    parts: tuple[Any, ...]
    kind: type | None


class _StandIn:
    """A transform. Returns itself when called with the image."""

    def __init__(self, part: Any, image: object) -> None:
        self.part, self.image = part, image

    def __call__(self, image: object) -> _StandIn:
        if image is not self.image:
            raise TypeError("it is called with something else than the image")
        return self


def traced(transform: Any) -> Traced | None:
    """Return what `transform` calls; None if it does anything else, or depends on anything but its attributes."""
    kind = type(transform)
    is_module = isinstance(transform, torch.nn.Module)
    if is_module and any(hooks for name, hooks in vars(transform).items() if name.endswith("_hooks")):
        return None
    if is_module and kind.__call__ is not torch.nn.Module.__call__:
        return None
    method = getattr(kind, "forward" if is_module else "__call__", None)
    if not isinstance(method, FunctionType):
        return None
    attributes = getattr(transform, "__dict__", {})  # none with __slots__
    own = {**attributes, **attributes.get("_modules", {})}
    names = _names(method.__code__)
    if names is None or not names <= own.keys() | _BUILTINS or names & own.keys() & _BUILTINS:
        return None
    image = object()
    stand_ins = {name: _stood_in(own[name], image) for name in names & own.keys()}
    try:
        result = method(SimpleNamespace(**stand_ins), image)
    except Exception:  # whatever the method does to stand-ins, it is not what is looked for
        return None
    if type(result) in (list, tuple):
        parts = tuple(each.part for each in result if isinstance(each, _StandIn))
        return Traced(parts, type(result)) if parts and len(parts) == len(result) else None
    return Traced((result.part,), None) if isinstance(result, _StandIn) else None


def _stood_in(value: Any, image: object) -> Any:
    """A stand-in for a transform, or those of a list of them."""
    if isinstance(value, (list, tuple)):
        return [_stood_in(each, image) for each in value]
    return _StandIn(value, image) if callable(value) else value


@functools.lru_cache(maxsize=256)
def _names(code: CodeType) -> frozenset[str] | None:
    """The names of attributes and globals that a method of (self, image) uses; None if it decides or keeps anything."""
    if code.co_argcount != 2 or code.co_kwonlyargcount or code.co_flags & _MORE_ARGUMENTS or code.co_freevars:
        return None
    names = set()
    for step in _steps(code):
        if step.opname.startswith(_DECIDES_OR_KEEPS):
            return None
        if step.opcode in dis.hasname:
            names.add(str(step.argval))
    return frozenset(names)


_MORE_ARGUMENTS = 0x04 | 0x08 | 0x20
"""*args, **kwargs, or a generator."""

_DECIDES_OR_KEEPS = "POP_JUMP", "JUMP_IF", "COMPARE", "STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "DELETE", "IMPORT"


def _steps(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):  # a comprehension
            yield from _steps(constant)
