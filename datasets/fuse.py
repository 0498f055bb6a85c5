"""fuse: what a torchvision transform begins with, crop, flip and normalization, for presize to do in its place.

Recognised by class and attributes, so that torchvision is neither imported nor required. What would not come out as
torchvision does it stays as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from presize.datasets.crops import CenterCrop, Crop, RandomCrop, RandomResizedCrop, Resize, as_size
from presize.datasets.reading.outputs import Decode
from presize.datasets.reading.transfer import Normalize
from presize.errors import OptionError
from presize.formatting import plural
from presize.options import Size
from presize.store.dataset import Dataset

Transform = Callable[[Any], Any]


class _Seen(NamedTuple):
    """A composition, or a transform that was taken over, as it was then.

    Attributes:
        part: the transform.
        names: attributes that decide what was taken over; None for a composition.
        values: these attributes; of a composition its transforms.
    """

    part: Any
    names: tuple[str, ...] | None
    values: tuple[Any, ...]

    def is_current(self) -> bool:
        if self.names is not None:
            return _values(self.part, self.names) == self.values
        parts = _parts(self.part)
        return len(parts) == len(self.values) and all(map(operator.is_, parts, self.values))


@dataclass(frozen=True, repr=False)
class Fused:
    """A transform in two parts: what presize does, and what is called afterwards.

    Attributes:
        crop: which part of each image to decode, and to what size to bring it. None if nothing was taken over.
        flip: the probability of mirroring an image.
        normalize: (mean, std) of each channel, in units of 0 to 1; None leaves uint8.
        rest: what is called with each image afterwards; None if nothing is left.
        decode: what `rest` expects, or what comes of the whole transform: a "pil" image or a "tensor".
        taken: the transforms that were taken over.
        stays: those that were not.
        reason: why the first of `stays` was not taken over; empty if all were.
    """

    crop: Crop | None
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
        """Return False if the transform was changed in place since: a parameter that was taken over, or a list of
        transforms. Takes a few microseconds."""
        if self.crop is None:  # the transform itself is called
            return True
        return torch.get_default_dtype() is self._dtype and all(seen.is_current() for seen in self._seen)

    def __repr__(self) -> str:
        lines = ["Fused(", f"  taken over: {', '.join(self.taken) or 'nothing'}"]
        if self.stays:
            lines += [f"  stays: {', '.join(self.stays)}", f"  because: {self.reason}"]
        return "\n".join([*lines, ")"])


def fuse(transform: Transform | None, *, decode: Decode = "pil", data: Dataset | None = None) -> Fused:
    """Split `transform` into what presize can do as torchvision does it, and the rest.

    Boxes and flips are drawn from torchvision's distributions, pixels are those that torchvision gives of PIL images,
    and normalized values of equal pixels are within 1e-6. Taken over are, from the beginning on, a RandomResizedCrop,
    Resize((height, width)), CenterCrop or RandomCrop, also after a Resize(N) that changes nothing because all images
    are stored at N; and a RandomHorizontalFlip, conversions to a tensor and to float32, and a Normalize.

    Tensors are in channels-last memory, and plain, where torchvision's ToImage makes a tv_tensors.Image of a sample.

    Args:
        transform: torchvision's Compose, of either version, or one of its transforms.
        decode: what the transform gets: "pil", or "tensor" for uint8 (channels, height, width).
        data: the stored images. Without them, three channels are assumed, sizes are not checked, and no Resize(N) is
            taken over.

    Raises:
        OptionError: there is no transform, or `decode` is neither of these.
    """
    if transform is None:
        raise OptionError("fuse: needs a transform to take over; without one use crop= and flip=")
    if decode not in ("pil", "tensor"):
        raise OptionError(f"fuse: torchvision's transforms get decode='pil' or 'tensor', got {decode!r}")
    steps = _flat(transform)
    taking = _Taking(decode, data)
    count, reason = 0, ""
    while count < len(steps) and not (reason := taking.take(steps[count])):
        count += 1
    names = tuple(map(repr, steps))
    if taking.crop is None:
        return Fused(None, 0.0, None, transform, decode, (), names, reason or "there is no crop in it")
    return Fused(
        taking.crop,
        taking.flip,
        taking.normalize,
        _composed(transform, [*taking.to_image, *steps[count:]]) if count < len(steps) else None,
        "pil" if taking.form == "pil" else "tensor",
        names[:count],
        names[count:],
        reason,
        tuple(_compositions(transform)) + tuple(map(_taken, steps[:count])),
    )


class _Taking:
    """What has been taken over so far.

    Attributes:
        form: what an image is by then: "pil", or a tensor of "uint8" or "float".
        to_image: the ToImage that was taken over last: what follows gets a tv_tensors.Image. Empty if there is none.
    """

    def __init__(self, decode: Decode, data: Dataset | None) -> None:
        self.data = data
        self.channels = 3 if data is None else data.manifest.channels
        self.form: Literal["pil", "uint8", "float"] = "pil" if decode == "pil" else "uint8"
        self.to_image: list[Any] = []
        self.crop: Crop | None = None
        self.flip = 0.0
        self.normalize: Normalize | None = None
        self._seen: set[str] = set()

    def take(self, step: Any) -> str:
        """Take over one more transform, or say why not."""
        name = type(step).__name__
        if not _is_torchvisions(type(step)):
            bases = [base.__name__ for base in type(step).__mro__ if _is_torchvisions(base)]
            known = [base for base in bases if base in _KNOWN or base == "Compose"]
            return f"{name} is a subclass of {known[0]}" if known else f"{name} is not one of torchvision's transforms"
        if name not in _KNOWN:
            return f"presize does not take over {name}"
        take, attributes = _KNOWN[name]
        if unknown := _unknown(step, attributes):
            return f"{name} has {', '.join(unknown)}, which presize does not know"
        if self.data is not None and self.data.manifest.color == "keep":
            return "the dataset was built with --color keep, and presize's crops would make grey images RGB"
        if self.data is not None and (self.channels == 4 or self.data.manifest.depth == 16):
            return "the dataset was built with --color rgba or --depth 16, which torchvision resizes in another way"
        try:
            return take(self, step)
        except (TypeError, ValueError, OptionError) as error:  # of values that torchvision accepts, but not presize
            return f"{name}: {error}"

    def resized_crop(self, step: Any) -> str:
        scale, ratio = tuple(step.scale), tuple(step.ratio)
        return (
            _one_side(step)
            or self._not_resampled(step)
            or self._cut(RandomResizedCrop(_size(step), scale, ratio, exact=True))
        )

    def resize(self, step: Any) -> str:
        if step.max_size is not None:
            return f"Resize has max_size={step.max_size}"
        if not isinstance(step.size, int) and len(step.size) == 2:
            return self._not_resampled(step) or self._cut(Resize(_size(step)))
        shorter = step.size if isinstance(step.size, int) else step.size[0]
        if self.crop is not None:
            return f"Resize({shorter}) comes after the crop"
        if self.data is None:
            return f"whether Resize({shorter}) changes anything depends on the stored images: pass data="
        others = int((np.minimum(*_sides(self.data)) != shorter).sum())
        if not others:
            return ""  # it would return each image as it is
        return (
            f"Resize({shorter}) would resize {plural(others, 'stored image')} of {len(self.data)}; build with "
            f"--size {shorter} --upscale"
        )

    def _not_resampled(self, step: Any) -> str:
        """Why presize cannot resize as this does; empty if it can."""
        name = type(step).__name__
        how = getattr(step.interpolation, "value", step.interpolation)
        if how not in ("bilinear", _PIL_BILINEAR):
            return f"{name} has interpolation={how}, and presize's is bilinear"
        if self.form == "float":
            return f"{name} comes after the conversion to float"
        if self.form == "uint8" and step.antialias is not True:  # of PIL images, it always antialiases
            return f"{name} has antialias={step.antialias}, and presize always antialiases"
        return ""

    def center_crop(self, step: Any) -> str:
        return self._too_small(_size(step)) or self._cut(CenterCrop(_size(step)))

    def random_crop(self, step: Any) -> str:
        if step.padding is not None or step.pad_if_needed:
            return f"RandomCrop has padding={step.padding}, pad_if_needed={step.pad_if_needed}"
        return _one_side(step) or self._too_small(_size(step)) or self._cut(RandomCrop(_size(step)))

    def _too_small(self, size: Size) -> str:
        if self.data is None:
            return ""
        heights, widths = _sides(self.data)
        small = int(((heights < size.height) | (widths < size.width)).sum())
        if not small:
            return ""
        return f"{plural(small, 'stored image')} of {len(self.data)} are smaller than {size.height} x {size.width}"

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
        if self.form != "pil":
            return f"{type(step).__name__} is for PIL images, and here it gets a tensor"
        if torch.get_default_dtype() != torch.float32:
            return f"ToTensor makes {torch.get_default_dtype()}, torch's default dtype, and presize float32"
        return self._to_float()

    def pil_to_tensor(self, step: Any) -> str:
        if self.form != "pil":
            return f"{type(step).__name__} is for PIL images, and here it gets a tensor"
        self.form = "uint8"
        return ""

    def take_to_image(self, step: Any) -> str:
        if self.form == "pil":
            self.form = "uint8"
        self.to_image = [step]
        return ""

    def to_pure_tensor(self, step: Any) -> str:  # noqa: ARG002
        self.to_image = []
        return ""

    def convert(self, step: Any) -> str:
        scale = getattr(step, "scale", True)
        if step.dtype != torch.float32 or not scale:
            return f"{type(step).__name__} has dtype={step.dtype}, scale={scale}, and presize scales to float32"
        if self.form == "pil":
            return f"{type(step).__name__} is for tensors, and here it gets a PIL image"
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


_PIL_BILINEAR = 2

_KNOWN: dict[str, tuple[Callable[[_Taking, Any], str], set[str]]] = {
    "CenterCrop": (_Taking.center_crop, {"size"}),
    "ConvertImageDtype": (_Taking.convert, {"dtype"}),
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
"""The classes of torchvision.transforms, of both versions, that can be taken over, with all attributes they have."""

_EVERY_MODULE_HAS = frozenset(vars(torch.nn.Module()))


def _is_torchvisions(kind: type) -> bool:
    return kind.__module__.startswith("torchvision.transforms.")


def _unknown(step: Any, attributes: set[str]) -> list[str]:
    """Attributes of this one transform that others of its class do not have, and hooks on it."""
    own = vars(step)
    unknown = {name for name in own if not name.startswith("_")} - attributes - _EVERY_MODULE_HAS
    return sorted(unknown | {name for name in own if name.endswith("_hooks") and own[name]})


def _taken(step: Any) -> _Seen:
    own = _KNOWN[type(step).__name__][1] if type(step).__name__ in _KNOWN else set()  # none of a composition
    known = own | {"_forward_hooks", "_forward_pre_hooks"}
    names = tuple(name for name in vars(step) if name in known)
    return _Seen(step, names, _values(step, names))


def _values(step: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """The number of attributes of a transform, and the values of some, which later changes in place do not reach."""
    own = vars(step)
    values: list[Any] = [len(own)]
    for value in map(own.get, names):
        if isinstance(value, (list, dict)):
            value = tuple(value)
        elif hasattr(value, "tolist"):
            value = value.tolist()
        values.append(value)
    return tuple(values)


def _is_composition(transform: Any) -> bool:
    kind = type(transform)
    is_compose = kind is torch.nn.Sequential or (_is_torchvisions(kind) and kind.__name__ == "Compose")
    return is_compose and not _unknown(transform, {"transforms"})


def _parts(composition: Any) -> Sequence[Any]:
    if isinstance(composition, torch.nn.Sequential):
        return tuple(composition)
    parts: Sequence[Any] = composition.transforms
    return parts


def _compositions(transform: Any) -> list[_Seen]:
    """A composition, and those in it, as they are."""
    if not _is_composition(transform):
        return []
    parts = tuple(_parts(transform))
    hooks = [_taken(transform)] if isinstance(transform, torch.nn.Module) else []
    return [_Seen(transform, None, parts), *hooks, *(seen for part in parts for seen in _compositions(part))]


def _flat(transform: Any) -> list[Any]:
    """The transforms that are called one after the other."""
    if not _is_composition(transform):
        return [transform]
    return [step for part in _parts(transform) for step in _flat(part)]


def _composed(transform: Any, steps: Sequence[Any]) -> Transform:
    rest: Transform = type(transform)(*steps) if isinstance(transform, torch.nn.Sequential) else type(transform)(steps)
    return rest


def _one_side(step: Any) -> str:
    """Why a size is no (height, width), as it is when it was assigned later; empty if it is one."""
    if not isinstance(step.size, int) and len(step.size) == 2:
        return ""
    return f"{type(step).__name__} has size={step.size}, which torchvision does not take for a square here"


def _size(step: Any) -> Size:
    size = step.size
    return as_size(size) if isinstance(size, int) else Size(*(size if len(size) == 2 else [*size, *size]))


def _sides(data: Dataset) -> tuple[Any, Any]:
    return data.numbers("height"), data.numbers("width")
