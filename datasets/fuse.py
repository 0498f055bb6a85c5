"""fuse: takes over the crop, flip and normalization at the beginning of a torchvision or timm transform. Transforms are
recognized by class and attributes; the libraries are not imported."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from presize.codecs.pillow_resize import Filter
from presize.datasets.applied import EachView, Traced, traced
from presize.datasets.crops import (
    RANDOM_FILTERS,
    CenterCrop,
    Crop,
    Interpolation,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    as_size,
)
from presize.datasets.reading.stored_image import Decode
from presize.datasets.reading.transfer import Normalize
from presize.errors import OptionError
from presize.options import Size
from presize.store.dataset import Dataset

Transform = Callable[[Any], Any]

AS_NUMPY: Transform = torch.Tensor.numpy
"""timm's ToNumpy for the uint8 tensors that are read instead of PIL images: the same bytes in the same order."""


class _Seen(NamedTuple):
    """A transform that was taken over and the values of its attributes `names`, or a composition and its transforms."""

    part: Any
    names: tuple[str, ...] | None
    values: tuple[Any, ...]

    def is_current(self) -> bool:
        if self.names is not None:
            return _values(self.part, self.names) == self.values
        found = _called(self.part)
        return (
            found is not None
            and len(found.parts) == len(self.values)
            and all(map(operator.is_, found.parts, self.values))
        )


@dataclass(frozen=True, repr=False)
class Fused:
    """A transform split into the part that presize does, and the rest that is called afterwards.

    Attributes:
        crop: the crop of each image; a tuple of crops for several views. None if nothing was taken over.
        flip: the probability of a horizontal flip.
        normalize: (mean, std) of each channel, in units of 0 to 1; None leaves uint8.
        rest: the transform to call with each image afterwards; None if nothing is left.
        decode: type of the image that `rest` gets, or of the result if nothing is left: "pil" or "tensor".
        taken: the transforms that were taken over.
        stays: the transforms that were not.
        reason: why the first of `stays` was not taken over; empty if all were.
    """

    crop: Crop | tuple[Crop, ...] | None
    flip: float
    normalize: Normalize | None
    rest: Transform | None
    decode: Decode
    taken: tuple[str, ...]
    stays: tuple[str, ...]
    reason: str
    _seen: tuple[_Seen, ...] = field(default=(), compare=False)
    _dtype: torch.dtype = field(default_factory=torch.get_default_dtype, compare=False)

    def is_current(self) -> bool:
        """Return True unless the transform has been changed in place since it was split. Takes a few microseconds."""
        if self.crop is None:  # the transform itself is called
            return True
        return torch.get_default_dtype() is self._dtype and all(seen.is_current() for seen in self._seen)

    def __repr__(self) -> str:
        lines = ["Fused(", f"  fused: {', '.join(self.taken) or 'nothing'}"]
        if self.stays:
            lines += [f"  stays: {', '.join(self.stays)}", f"  because: {self.reason}"]
        return "\n".join([*lines, ")"])


def fuse(transform: Transform | None, *, decode: Decode = "pil", data: Dataset | None = None) -> Fused:
    """Split `transform` into the part that presize can do as torchvision does, and the rest.

    Boxes and flips have torchvision's distributions, pixels equal torchvision's for PIL images, and normalized
    values of equal pixels differ by at most 1e-6. presize takes over the beginning of a transform: RandomResizedCrop
    (also timm's), Resize((height, width)), CenterCrop or RandomCrop, also after Resize(N); then RandomHorizontalFlip,
    conversions to a tensor, an array and float32, and Normalize; and torchvision's ``weights.transforms()``. The filter
    may be any but nearest for PIL images. For uint8 tensors it must be bilinear, and nearly all values are within one
    grey level of torchvision's. Resulting tensors are plain tensors in channels-last memory.

    Args:
        transform: torchvision's Compose (v1 or v2), a transform of torchvision or timm, or an object that only calls
            the transforms that it holds: one, or several whose results it returns in a list or tuple.
        decode: type of the image that the transform gets: "pil", or "tensor" for uint8 (channels, height, width).
            OptionError for others.
        data: the dataset. Without it, three channels are assumed, and sizes are not checked.
    """
    if transform is None:
        raise OptionError("fuse: needs a transform; without one use crop= and flip=")
    if decode not in ("pil", "tensor"):
        raise OptionError(f"fuse: expected decode='pil' or 'tensor' for torchvision's transforms, got {decode!r}")
    found = traced(transform)
    if found is not None and found.kind is not None:
        return _fused_views(transform, found, decode, data)
    return _fused(transform, decode, data)


def _fused(
    transform: Transform, decode: Decode, data: Dataset | None, after_crop: Sequence[str] | None = None
) -> Fused:
    """Split the transform of one view. `after_crop`: classes that may be taken over after the crop, None for all."""
    steps = _flat(transform)
    taking = _Taking(decode, data)
    count, reason = 0, ""
    while count < len(steps):
        if after_crop is not None and taking.crop is not None and type(steps[count]).__name__ not in after_crop:
            break
        if reason := taking.take(steps[count]):
            break
        count += 1
    names = tuple(map(repr, steps))
    if taking.crop is None:
        return Fused(None, 0.0, None, transform, decode, (), names, reason or "the transform has no crop")
    rest: Transform | None = AS_NUMPY if taking.form == "numpy" else None
    if count < len(steps):
        rest = _composed(transform, [*taking.before_rest, *steps[count:]])
    return Fused(
        taking.crop,
        taking.flip,
        taking.normalize,
        rest,
        "pil" if taking.form == "pil" else "tensor",
        names[:count],
        names[count:],
        reason,
        tuple(_compositions(transform)) + tuple(map(_taken, steps[:count])),
    )


def _fused_views(transform: Transform, found: Traced, decode: Decode, data: Dataset | None) -> Fused:
    """Split the transforms of several views: take over everything if alike, otherwise crops and equal flips."""
    views = [_fused(part, decode, data) for part in found.parts]
    whole = all(view.crop is not None and view.rest is None for view in views)
    reason = next((view.reason for view in views if view.reason), "")
    if not whole or len({(view.flip, view.normalize, view.decode) for view in views}) > 1:
        views = [_fused(part, decode, data, ("RandomHorizontalFlip",)) for part in found.parts]
        if len({view.flip for view in views}) > 1:
            views = [_fused(part, decode, data, ()) for part in found.parts]
    names = tuple(name for view in views for name in (*view.taken, *view.stays))
    # Conversions before the crops are taken over in any case.
    kinds = {(view.crop is None, view.flip, view.normalize, view.decode) for view in views}
    if len(kinds) > 1 or views[0].crop is None:
        return Fused(None, 0.0, None, transform, decode, (), names, reason or "the views are of different kinds")
    rests = tuple(view.rest for view in views)
    return Fused(
        tuple(view.crop for view in views),  # type: ignore[misc]  # checked above
        views[0].flip,
        views[0].normalize,
        None if rests == (None,) * len(rests) else EachView(rests, found.kind or list),
        views[0].decode,
        tuple(name for view in views for name in view.taken),
        tuple(name for view in views for name in view.stays),
        reason or "the views have different transforms after their crops",
        (_Seen(transform, None, found.parts), *(seen for view in views for seen in view._seen)),
    )


class _Taking:
    """The part taken over so far. `form`: its result's type; `resized`: N and filter of a Resize(N) before the crop."""

    def __init__(self, decode: Decode, data: Dataset | None) -> None:
        self.data = data
        self.channels = 3 if data is None else data.manifest.channels
        self.form: Literal["pil", "uint8", "float", "numpy"] = "pil" if decode == "pil" else "uint8"
        self.before_rest: list[Transform] = []
        self.crop: Crop | None = None
        self.resized: tuple[int, Any] | None = None
        self.flip = 0.0
        self.normalize: Normalize | None = None
        self._seen: set[str] = set()

    def take(self, step: Any) -> str:
        name = type(step).__name__
        known = _known(type(step))
        if known is None:
            bases = [base.__name__ for base in type(step).__mro__[1:] if _known(base) or _is_compose(base)]
            if bases:
                return f"{name} is a subclass of {bases[0]}"
            if _library(type(step)):
                return f"presize does not fuse {name}"
            return f"{name} is not one of torchvision's transforms"
        take, attributes = known
        if self.form == "numpy":
            return f"{name} comes after ToNumpy"
        if unknown := _unknown(step, attributes):
            return f"{name} has {', '.join(unknown)}, which presize does not know"
        if self.data is not None and self.data.manifest.color == "keep":
            return "the dataset was built with --color keep, and presize's crops would make grey images RGB"
        if self.data is not None and (self.channels == 4 or self.data.manifest.depth == 16):
            return "the dataset was built with --color rgba or --depth 16, which torchvision resizes differently"
        try:
            return take(self, step)
        except (TypeError, ValueError, OptionError) as error:  # of values that torchvision accepts, but not presize
            return f"{name}: {error}"

    def resized_crop(self, step: Any) -> str:
        filter, reason = self._filter(step)
        if reason := reason or _one_side(step) or self._after_resize(step):
            return reason
        how: dict[str, Any] = {"exact": True, "interpolation": filter}
        return self._cut(RandomResizedCrop(_size(step), tuple(step.scale), tuple(step.ratio), **how))

    def resize(self, step: Any) -> str:
        if step.max_size is not None:
            return f"Resize has max_size={step.max_size}, which presize does not support"
        return self._resize(step, step.size)

    def _resize(self, step: Any, size: Any) -> str:
        filter, reason = self._filter(step)
        if reason:
            return reason
        if not isinstance(size, int) and len(size) == 2:
            return self._after_resize(step) or self._cut(Resize(Size(*size), interpolation=filter))
        shorter = size if isinstance(size, int) else size[0]
        if self.crop is not None:
            return f"Resize({shorter}) comes after the crop"
        if self.resized is not None:
            return f"Resize({shorter}) is a second Resize"
        self.resized = shorter, filter
        return ""

    def _after_resize(self, step: Any) -> str:
        """Return why a resized crop cannot follow Resize(N); empty if it can."""
        if self.resized is None or self._is_stored_at(self.resized[0]):
            return ""
        return f"{type(step).__name__} comes after Resize({self.resized[0]}), which may resize images"

    def _is_stored_at(self, shorter: int) -> bool:
        return self.data is not None and not (np.minimum(*_sides(self.data)) != shorter).any()

    def _filter(self, step: Any) -> tuple[Any, str]:
        """Return the filter of a transform, and why presize cannot apply it; empty if it can."""
        name = type(step).__name__
        hows = step.interpolation if isinstance(step.interpolation, (tuple, list)) else (step.interpolation,)
        filters = tuple(_FILTERS.get(getattr(how, "value", how)) for how in hows)
        filter: Interpolation | None = "random" if filters == RANDOM_FILTERS else filters[0]
        if filter is None or (len(filters) > 1 and filter != "random"):
            how = " ".join(str(getattr(how, "value", how)) for how in hows)
            return None, f"{name} has interpolation={how}, which presize does not support"
        if self.form == "float":
            return None, f"{name} comes after the conversion to float"
        if self.form == "uint8":  # PIL images are always antialiased
            if getattr(step, "antialias", None) is not True:
                return None, f"{name} has antialias={getattr(step, 'antialias', None)}, but presize always antialiases"
            if filter != "bilinear":  # torch's bicubic differs by more than one grey level
                return None, f"{name} gets tensors, for which presize supports only bilinear, not {filter}"
        return filter, ""

    def center_crop(self, size: Size) -> str:
        if self.resized is None or self._is_stored_at(self.resized[0]):
            return self._too_small(size) or self._cut(CenterCrop(size))
        shorter, filter = self.resized
        if filter == "random" or max(size) > shorter:
            return f"CenterCrop({size.height}, {size.width}) is larger than the images that Resize({shorter}) makes"
        return self._cut(CenterCrop(size, resize=shorter, interpolation=filter))

    def random_crop(self, step: Any) -> str:
        if step.padding is not None or step.pad_if_needed:
            return f"RandomCrop has padding={step.padding}, pad_if_needed={step.pad_if_needed}; presize does not pad"
        size = _size(step)
        return _one_side(step) or self._after_resize(step) or self._too_small(size) or self._cut(RandomCrop(size))

    def classification(self, step: Any) -> str:
        if self.crop is not None or self._seen:
            return "ImageClassification comes after other transforms"
        reason = self._resize(step, step.resize_size) or self.center_crop(_size(SimpleNamespace(size=step.crop_size)))
        if reason:
            self.resized = None
            return reason
        self._to_float()
        return self.take_normalize(step)

    def _too_small(self, size: Size) -> str:
        if self.data is None:
            return ""
        heights, widths = _sides(self.data)
        small = int(((heights < size.height) | (widths < size.width)).sum())
        if not small:
            return ""
        are = "is" if small == 1 else "are"
        return f"{small:,} of {len(self.data):,} stored images {are} smaller than {size.height} x {size.width}"

    def _cut(self, crop: Crop) -> str:
        if self.crop is not None:
            return "it is a second crop"
        self.crop = crop
        return ""

    def horizontal_flip(self, step: Any) -> str:
        if self.crop is None:
            return "RandomHorizontalFlip comes before the crop"
        if reason := self._once(step):
            return reason
        self.flip = float(step.p)
        return ""

    def _once(self, step: Any) -> str:
        name = type(step).__name__
        if name in self._seen:
            return f"it is a second {name}"
        self._seen.add(name)
        return ""

    def to_tensor(self, step: Any) -> str:
        if torch.get_default_dtype() != torch.float32:
            return f"ToTensor makes {torch.get_default_dtype()}, torch's default dtype, but presize makes float32"
        return self.pil_to_tensor(step) or self._to_float()

    def pil_to_tensor(self, step: Any) -> str:
        if self.form != "pil":
            return f"{type(step).__name__} is for PIL images, but gets a tensor"
        self.form = "uint8"
        return ""

    def to_numpy(self, step: Any) -> str:
        if reason := self.pil_to_tensor(step):
            return reason
        self.form, self.before_rest = "numpy", [AS_NUMPY]
        return ""

    def take_to_image(self, step: Any) -> str:
        if self.form == "pil":
            self.form = "uint8"
        self.before_rest = [step]
        return ""

    def to_pure_tensor(self, _: Any) -> str:
        self.before_rest = []
        return ""

    def convert(self, step: Any) -> str:
        scale = getattr(step, "scale", True)
        if step.dtype != torch.float32 or not scale:
            return f"{type(step).__name__} has dtype={step.dtype}, scale={scale}, but presize scales to float32"
        if self.form == "pil":
            return f"{type(step).__name__} is for tensors, but gets a PIL image"
        return self._to_float()

    def _to_float(self) -> str:
        if self.form != "float":
            self.form, self.normalize = "float", ((0.0,) * self.channels, (1.0,) * self.channels)
        return ""

    def take_normalize(self, step: Any) -> str:
        if self.form != "float":
            return "Normalize comes before the conversion to float"
        mean, std = tuple(map(float, step.mean)), tuple(map(float, step.std))
        if {len(mean), len(std)} - {1, self.channels} or not all(value > 0 for value in std):
            return f"Normalize has mean={mean}, std={std}: expected {self.channels} of each, std above 0"
        if reason := self._once(step):
            return reason
        self.normalize = mean * (self.channels // len(mean)), std * (self.channels // len(std))
        return ""


_FILTERS: dict[Any, Filter] = {
    **{name: name for name in ("bilinear", "bicubic", "lanczos", "hamming", "box")},
    **{1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"},
}
"""Filters by torchvision's names and by Pillow's numbers."""

_Take = tuple[Callable[[_Taking, Any], str], set[str]]

_TORCHVISIONS: dict[str, _Take] = {
    "CenterCrop": (lambda taking, step: taking.center_crop(_size(step)), {"size"}),
    "ConvertImageDtype": (_Taking.convert, {"dtype"}),
    "ImageClassification": (
        _Taking.classification,
        {"crop_size", "resize_size", "mean", "std", "interpolation", "antialias"},
    ),
    "Normalize": (_Taking.take_normalize, {"mean", "std", "inplace"}),
    "PILToTensor": (_Taking.pil_to_tensor, set()),
    "RandomCrop": (_Taking.random_crop, {"size", "padding", "pad_if_needed", "fill", "padding_mode"}),
    "RandomHorizontalFlip": (_Taking.horizontal_flip, {"p"}),
    "RandomResizedCrop": (_Taking.resized_crop, {"size", "scale", "ratio", "interpolation", "antialias"}),
    "Resize": (_Taking.resize, {"size", "interpolation", "max_size", "antialias"}),
    "ToDtype": (_Taking.convert, {"dtype", "scale"}),
    "ToImage": (_Taking.take_to_image, set()),
    "ToPureTensor": (_Taking.to_pure_tensor, set()),
    "ToTensor": (_Taking.to_tensor, set()),
}
"""Classes of torchvision.transforms (v1 and v2) that can be taken over, with all of their attributes."""

_TIMMS: dict[str, _Take] = {
    "MaybePILToTensor": (lambda taking, step: taking.pil_to_tensor(step) if taking.form == "pil" else "", set()),
    "MaybeToTensor": (lambda taking, step: taking.to_tensor(step) if taking.form == "pil" else "", set()),
    "ToNumpy": (_Taking.to_numpy, set()),
    "RandomResizedCropAndInterpolation": (_Taking.resized_crop, {"size", "scale", "ratio", "interpolation"}),
}
"""Classes of timm.data.transforms that can be taken over, with all of their attributes."""

_EVERY_MODULE_HAS = frozenset(vars(torch.nn.Module()))


def _library(kind: type) -> dict[str, _Take]:
    if kind.__module__.startswith("torchvision.transforms."):
        return _TORCHVISIONS
    return _TIMMS if kind.__module__ == "timm.data.transforms" else {}


def _known(kind: type) -> _Take | None:
    return _library(kind).get(kind.__name__)


def _is_compose(kind: type) -> bool:
    return kind.__name__ == "Compose" and _library(kind) is _TORCHVISIONS


def _unknown(step: Any, attributes: set[str]) -> list[str]:
    """Return the public attributes of a transform that `attributes` does not list, and its hooks."""
    own = vars(step)
    unknown = {name for name in own if not name.startswith("_")} - attributes - _EVERY_MODULE_HAS
    return sorted(unknown | {name for name in own if name.endswith("_hooks") and own[name]})


def _taken(step: Any) -> _Seen:
    _, own = _known(type(step)) or (None, set())
    names = tuple(name for name in vars(step) if name in own | {"_forward_hooks", "_forward_pre_hooks"})
    return _Seen(step, names, _values(step, names))


def _values(step: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """Return the number of attributes, and copies of the values of `names`, safe from changes in place."""
    own = vars(step)
    values: list[Any] = [len(own)]
    for value in map(own.get, names):
        if isinstance(value, (list, dict)):
            value = tuple(value)
        elif hasattr(value, "tolist"):
            value = value.tolist()
        values.append(value)
    return tuple(values)


def _called(transform: Any) -> Traced | None:
    """Return the parts that a transform calls with an image; None if it does anything else."""
    kind = type(transform)
    if kind is not torch.nn.Sequential and not _is_compose(kind):
        return None if _library(kind) else traced(transform)
    if _unknown(transform, {"transforms"}):
        return None
    return Traced(tuple(transform if kind is torch.nn.Sequential else transform.transforms), None)


def _parts(transform: Any) -> tuple[Any, ...] | None:
    """Return the transforms that a composition calls in sequence; None for other transforms."""
    found = _called(transform)
    return None if found is None or found.kind is not None else found.parts


def _compositions(transform: Any) -> list[_Seen]:
    parts = _parts(transform)
    if parts is None:
        return []
    return [_Seen(transform, None, parts), *(seen for part in parts for seen in _compositions(part))]


def _flat(transform: Any) -> list[Any]:
    parts = _parts(transform)
    return [transform] if parts is None else [step for part in parts for step in _flat(part)]


def _composed(transform: Any, steps: Sequence[Any]) -> Transform:
    while not _is_compose(type(transform)) and type(transform) is not torch.nn.Sequential:
        (transform,) = _parts(transform) or ()
    rest: Transform = type(transform)(*steps) if isinstance(transform, torch.nn.Sequential) else type(transform)(steps)
    return rest


def _one_side(step: Any) -> str:
    """Return why a size is not (height, width); empty if it is."""
    if not isinstance(step.size, int) and len(step.size) == 2:
        return ""
    return f"{type(step).__name__} has size={step.size}, expected (height, width)"


def _size(step: Any) -> Size:
    size = step.size
    return as_size(size) if isinstance(size, int) else Size(*(size if len(size) == 2 else [*size, *size]))


def _sides(data: Dataset) -> tuple[Any, Any]:
    return data.numbers("height"), data.numbers("width")
