"""apply: calls a transform with a stored image. torchvision's colour operations are replaced by faster ones with the
same results, bit for bit; a transform of an unknown class is called unchanged."""

from __future__ import annotations

import dis
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from PIL import Image, ImageEnhance

from presize.codecs import pillow_color
from presize.datasets.reading.memory import LentRows
from presize.datasets.reading.stored_image import StoredImage

Transform = Callable[[Any], Any]

_TRANSFORMS = "torchvision.transforms.transforms"
_AUTOAUGMENT = "torchvision.transforms.autoaugment"
_OF_STEPS = frozenset((_TRANSFORMS, name) for name in ("RandomApply", "RandomChoice", "RandomOrder"))
_OF_COLORS = frozenset(
    [(_TRANSFORMS, name) for name in ("ColorJitter", "Grayscale", "RandomAdjustSharpness", "RandomGrayscale")]
    + [(_AUTOAUGMENT, name) for name in ("AutoAugment", "RandAugment", "TrivialAugmentWide")]
)
_TO_TENSOR = frozenset(((_TRANSFORMS, "ToTensor"), ("timm.data.transforms", "MaybeToTensor")))
_KEEP_NOTHING = frozenset(
    ((_TRANSFORMS, "Normalize"), (_TRANSFORMS, "RandomErasing"), ("timm.data.random_erasing", "RandomErasing"))
)
"""Transforms that may get a tensor in the memory of a batch: unlike Lambda and hooks, they call no user code."""


def apply(transform: Any, image: Any, rows: LentRows | None = None) -> Any:
    """Return ``transform(image)``. `rows`: the memory of a batch, for tensors that no user code has seen."""
    if isinstance(transform, EachView):
        return transform(image, rows)
    if type(image) is not StoredImage:
        return transform(image)
    kind = _kind(transform)
    if kind == (_TRANSFORMS, "Compose"):
        return _apply_all(transform.transforms, image, rows)
    if kind in _TO_TENSOR:
        return _apply_all([transform], image, rows)
    if kind in _OF_STEPS and isinstance(vars(transform).get("transforms"), (list, tuple)):
        return _like(transform, transforms=[functools.partial(apply, step) for step in transform.transforms])(image)
    if kind == ("timm.data.auto_augment", "RandAugment"):
        return _like(transform, ops=[_with_timms_colors(op) for op in transform.ops])(image)
    if kind in _OF_COLORS and isinstance(forward := type(transform).forward, FunctionType):
        own: Any = type(transform)
        return _of_class(_with_colors(own, forward), vars(transform))(image)
    found = None if kind[0].startswith(("torch", "timm.")) else traced(transform)
    if found is None:
        return transform(image)
    if found.kind is None:
        return apply(found.parts[0], image, rows)
    return found.kind(apply(part, image, rows) for part in found.parts)


def _kind(transform: Any) -> tuple[str, str]:
    return type(transform).__module__, type(transform).__name__


def _like(transform: Any, **changed: Any) -> Any:
    return _of_class(type(transform), {**vars(transform), **changed})


def _of_class(kind: type, attributes: dict[str, Any]) -> Any:
    other: Any = object.__new__(kind)
    object.__setattr__(other, "__dict__", attributes)
    return other


def _apply_all(steps: Sequence[Transform], image: Any, rows: LentRows | None) -> Any:
    steps, at = list(steps), 0
    while at < len(steps):
        pair = steps[at : at + 2]
        keep_nothing = (_kind(step) in _KEEP_NOTHING and not _has_hooks(step) for step in steps[at + 1 :])
        ours = rows if all(keep_nothing) else None
        tensor = _tensor(image, ours, *pair) if _kind(pair[0]) in _TO_TENSOR and type(image) is StoredImage else None
        if tensor is not None:
            image, done = tensor
            at += done
        else:
            # Not apply() for a ToTensor, since it would call this function again.
            image = pair[0](image) if _kind(pair[0]) in _TO_TENSOR else apply(pair[0], image, ours)
            at += 1
    return image


def _tensor(image: StoredImage, rows: LentRows | None, to_tensor: Any, then: Any = None) -> tuple[Any, int] | None:
    """Return the result of ToTensor, or of it and a Normalize, and their number; None if they must be called."""
    pixels = image.pixels()
    if pixels is None or torch.get_default_dtype() != torch.float32:
        return None
    channels = len(image.mode)
    normalize = then if _kind(then) == (_TRANSFORMS, "Normalize") and not _has_hooks(then) else None
    numbers: tuple[tuple[float, ...], ...] = ()
    if normalize is not None:
        numbers = _numbers(normalize.mean), _numbers(normalize.std)
        if {len(each) for each in numbers} - {1, channels} or 0 in numbers[1]:
            return None
    kinds: Any = type(to_tensor), None if normalize is None else type(normalize)
    tables = _tables(image.mode, *kinds, *numbers)
    shape = channels, *pixels.shape[:2]
    out = torch.empty(shape) if rows is None or channels == 1 else rows.tensor(shape)
    if channels == 1:
        out = out.view(*pixels.shape, 1).permute(2, 0, 1)  # torchvision's strides
    return (out, 1 + (normalize is not None)) if pillow_color.planes(pixels, tables, out.numpy()) else None


def _has_hooks(module: Any) -> bool:
    return any(hooks for name, hooks in vars(module).items() if name.endswith("_hooks"))


def _numbers(values: Any) -> tuple[float, ...]:
    values = values.tolist() if hasattr(values, "tolist") else values
    return tuple(map(float, values)) if isinstance(values, (list, tuple)) else ()


@functools.lru_cache(maxsize=64)
def _tables(mode: str, to_tensor: type, normalize: type | None, *numbers: tuple[float, ...]) -> Any:
    """Return the 256 values of each channel, computed by the transforms themselves: float32 (channels, 256)."""
    ramp = Image.frombytes(mode, (256, 1), np.arange(256, dtype=np.uint8).repeat(len(mode)).tobytes())
    tensor = to_tensor()(ramp)
    if normalize is not None:
        tensor = normalize(*numbers)(tensor)
    return tensor.reshape(len(mode), 256).numpy()


# ---- torchvision's colour operations ----


@functools.lru_cache(maxsize=32)
def _with_colors(kind: type, forward: FunctionType) -> type:
    return type(kind.__name__, (kind,), {"forward": _with_ours(forward), "__module__": kind.__module__})


def _with_timms_colors(op: Any) -> Any:
    is_known = _kind(op) == ("timm.data.auto_augment", "AugmentOp") and isinstance(op.aug_fn, FunctionType)
    return _like(op, aug_fn=_with_ours(op.aug_fn)) if is_known else op


@functools.lru_cache(maxsize=256)
def _with_ours(function: FunctionType) -> FunctionType:
    """Return a copy that calls our functions for torchvision.transforms.functional's and PIL.ImageEnhance's."""
    names = dict(function.__globals__)
    if names.get("ImageEnhance") is ImageEnhance:
        names["ImageEnhance"] = SimpleNamespace(**{name: functools.partial(_Enhancer, name) for name in _ENHANCERS})
    if "F" in names:
        theirs = vars(names["F"])
        ours = {name: functools.partial(_ours_or_theirs, _OURS[name], theirs[name]) for name in _OURS if name in theirs}
        names["F"] = SimpleNamespace(**{**theirs, **ours})
    if isinstance(used := names.get("_apply_op"), FunctionType) and used is not function:
        names["_apply_op"] = _with_ours(used)
    other = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    other.__kwdefaults__ = function.__kwdefaults__
    return other


class _Enhancer:
    def __init__(self, name: str, image: Any) -> None:
        self._theirs, self._ours, self._image = getattr(ImageEnhance, name), _ENHANCERS[name], image

    def enhance(self, factor: float) -> Any:
        return _ours_or_theirs(self._ours, lambda image, value: self._theirs(image).enhance(value), self._image, factor)


def _ours_or_theirs(ours: Callable[..., Any], theirs: Callable[..., Any], img: Any, *args: Any, **options: Any) -> Any:
    made = None
    if type(img) is StoredImage and img.mode in ("RGB", "L"):
        made = ours(img, *args, **options)
    return theirs(img, *args, **options) if made is None else made


def _brightness(img: StoredImage, brightness_factor: float) -> StoredImage | None:
    return _blended_with(img, 0, brightness_factor)


def _contrast(img: StoredImage, contrast_factor: float) -> StoredImage | None:
    gray = img if img.mode == "L" else img.made("gray")
    pixels = None if gray is None else gray.pixels()
    if pixels is None:
        return None
    mean = int(cv2.sumElems(pixels)[0] / pixels.size + 0.5)
    return _blended_with(img, mean, contrast_factor)


def _blended_with(img: StoredImage, value: int, factor: float) -> StoredImage | None:
    made = img.made("blend", value, factor)
    return None if made is None else _without_info(made)


def _saturation(img: StoredImage, saturation_factor: float) -> StoredImage | None:
    return img.made("saturate", saturation_factor)


def _sharpness(img: StoredImage, sharpness_factor: float) -> StoredImage | None:
    return img.made("sharpen", sharpness_factor)


def _hue(img: StoredImage, hue_factor: float) -> StoredImage | None:
    if img.mode == "L" or not -0.5 <= hue_factor <= 0.5:
        return None
    made = img.made("hue", math.trunc(hue_factor * 255) % 256)
    return None if made is None else _without_info(made)


def _grayscale(img: StoredImage, num_output_channels: int = 1) -> StoredImage | None:
    gray = img.made("gray") if num_output_channels == 3 else None
    return None if gray is None else _without_info(gray.convert("RGB"))


def _without_info(image: Any) -> StoredImage:
    """Drop `info`, as torchvision does."""
    return StoredImage(image.pixels())


_OURS: dict[str, Callable[..., StoredImage | None]] = {
    "adjust_brightness": _brightness,
    "adjust_contrast": _contrast,
    "adjust_saturation": _saturation,
    "adjust_sharpness": _sharpness,
    "adjust_hue": _hue,
    "rgb_to_grayscale": _grayscale,
}
_ENHANCERS = {"Brightness": _brightness, "Color": _saturation, "Contrast": _contrast, "Sharpness": _sharpness}


class EachView:
    """A transform that calls one of `transforms` with each view (None keeps it). Returns a `kind`: list or tuple."""

    def __init__(self, transforms: tuple[Transform | None, ...], kind: type) -> None:
        self.transforms = transforms
        self.kind = kind

    def __call__(self, views: Any, rows: LentRows | None = None) -> Any:
        each = zip(self.transforms, views, strict=True)
        return self.kind(view if transform is None else apply(transform, view, rows) for transform, view in each)


# ---- the transforms that a user's object calls ----

_BUILTINS = frozenset(("append", "extend", "enumerate", "len", "list", "range", "tuple"))
"""Names that a method may use besides attributes of its object."""


class Traced(NamedTuple):
    """The `parts` that an object calls with an image. `kind`: list or tuple of their results, None for one result."""

    parts: tuple[Any, ...]
    kind: type | None


@dataclass(frozen=True, eq=False)
class _Call:
    part: Any


class _StandIn:
    """Takes the place of `part`. Calling it only adds to `calls`."""

    def __init__(self, part: Any, image: object, calls: list[_Call]) -> None:
        self.part, self.image, self.calls = part, image, calls

    def __call__(self, image: object) -> _Call:
        if image is not self.image:
            raise TypeError("called with something other than the image")
        self.calls.append(_Call(self.part))
        return self.calls[-1]


def traced(transform: Any) -> Traced | None:
    """Return the parts that `transform` calls with the image. None if it does anything but return their results, or
    depends on more than its attributes."""
    kind = type(transform)
    is_module = isinstance(transform, torch.nn.Module)
    if is_module and (_has_hooks(transform) or kind.__call__ is not torch.nn.Module.__call__):
        return None
    method = getattr(kind, "forward" if is_module else "__call__", None)
    if not isinstance(method, FunctionType):
        return None
    attributes = getattr(transform, "__dict__", {})  # none with __slots__
    own = {**attributes, **attributes.get("_modules", {})}
    names = _names(method.__code__)
    if names is None or not names <= own.keys() | _BUILTINS or names & own.keys() & _BUILTINS:
        return None
    image, calls = object(), list[_Call]()
    stand_ins = {name: _stood_in(own[name], image, calls) for name in names & own.keys()}
    try:
        result = method(SimpleNamespace(**stand_ins), image)
    except Exception:  # the method does more than call its parts
        return None
    several = type(result) if type(result) in (list, tuple) else None
    results = [result] if several is None else result
    # Each result once, in the order of the calls: that is also the order in which the parts draw random numbers.
    if not calls or [*map(id, results)] != [*map(id, calls)]:
        return None
    return Traced(tuple(call.part for call in calls), several)


def _stood_in(value: Any, image: object, calls: list[_Call]) -> Any:
    """Return what a method gets for an attribute: nothing that it could change without an error."""
    if isinstance(value, (list, tuple)):
        return tuple(_stood_in(each, image, calls) for each in value)
    if callable(value):
        return _StandIn(value, image, calls)
    return value if value is None or isinstance(value, (int, float, str, bytes, np.generic)) else object()


@functools.lru_cache(maxsize=256)
def _names(code: CodeType) -> frozenset[str] | None:
    """Return the names that a method (self, image) uses; None if it branches, or changes more than local names."""
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
"""Code flags of *args, **kwargs and generators."""

_DECIDES_OR_KEEPS = (
    *("POP_JUMP", "JUMP_IF", "COMPARE", "PUSH_EXC_INFO"),
    *("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "DELETE", "IMPORT"),
)


def _steps(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):  # a comprehension
            yield from _steps(constant)
