"""Names of ImageFolder and DataLoader: those that presize lacks or makes read-only raise an error that says what to
do."""

from __future__ import annotations

import inspect
import operator
import os
import reprlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Never, NoReturn, SupportsIndex, TypedDict, TypeVar

import torch

from presize.errors import OptionError

T = TypeVar("T")
Sample = tuple[str, Any]

_MISSING = object()

_SET_ANEW = frozenset(("classes", "class_to_idx", "decode", "fused", "imgs", "samples", "targets", "transforms"))
"""Attributes that a subclass may set before ``__init__``, which overwrites them as ImageFolder's does."""


class ImageFolderOptions(TypedDict, total=False):
    """ImageFolder's options that presize refuses."""

    loader: None
    is_valid_file: None
    allow_empty: Never


class DataLoaderOptions(TypedDict, total=False):
    """DataLoader's options that are not parameters of Loader and make_loader."""

    batch_sampler: None
    collate_fn: Callable[[list[Any]], Any] | None
    worker_init_fn: Callable[[int], object] | None
    generator: torch.Generator | None
    in_order: bool
    persistent_workers: bool
    pin_memory: bool
    pin_memory_device: str


def read_only(default: str, *alike: type, **instead: str) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that forbids assigning to options and read-only properties, of the class and of the
    classes `alike`, once ``__init__`` has set ``_is_finished``.

    Before that, assignments to the properties in _SET_ANEW, which subclasses written for ImageFolder make, are ignored;
    to other properties they are errors. A subclass may override attributes and, if it has an ``__init__``, define
    others with the names of options. Afterwards, the error for a name ends with its text in `instead`, or with
    `default`; a name with an empty text can be assigned.
    """

    def decorate(kind: type[T]) -> type[T]:
        fixed: dict[str, str] = {}
        for one in (kind, *alike):
            own = [name for name, value in vars(one).items() if isinstance(value, property) and value.fset is None]
            names = [*inspect.signature(one).parameters, *own]
            fixed |= {name: default for name in names if not name.startswith("_")}
        fixed |= instead
        assign: Callable[[T, str, Any], None] = kind.__setattr__

        def set_attribute(self: T, name: str, value: Any) -> None:
            if not fixed.get(name) or not _is_fixed(self, kind, name, value, fixed[name]):
                assign(self, name, value)

        kind.__setattr__ = set_attribute  # type: ignore[assignment]
        return kind

    return decorate


def _is_fixed(owner: Any, base: type, name: str, value: Any, instead: str) -> bool:
    """Return whether to ignore an assignment. Raises OptionError if a fixed attribute would change."""
    ours = getattr(base, name, None)
    if getattr(type(owner), name, None) is not ours:
        return False
    if "_is_finished" not in vars(owner):
        if isinstance(ours, property) and name not in _SET_ANEW:
            raise OptionError(f"{name}: is set by {base.__name__}.__init__; choose another name for your attribute")
        return isinstance(ours, property)
    current = getattr(owner, name, _MISSING)
    if current is _MISSING and type(owner).__init__ is not base.__init__:  # type: ignore[misc]
        return False
    plain = os.fspath(value) if isinstance(value, os.PathLike) else value
    if value is current or (isinstance(plain, (str, int, float)) and type(plain) is type(current) and plain == current):
        return True
    raise OptionError(f"{name}: cannot be changed on an existing {base.__name__}; {instead}")


def names_instead(subset: str, labels: str) -> dict[str, str]:
    """Return ImageFolder's names and advice for read_only(): `subset` selects samples, `labels` changes labels."""
    return {
        **dict.fromkeys(("transform", "target_transform", "options"), ""),
        "transforms": "assign transform and target_transform",
        **dict.fromkeys(("imgs", "samples"), f"use {subset}"),
        **dict.fromkeys(("classes", "class_to_idx", "targets"), labels),
        **_hooks_instead(subset),
    }


def _hooks_instead(subset: str) -> dict[str, str]:
    choose = f"its samples are fixed, so select some with {subset}"
    return {
        "find_classes": "its classes are fixed, so renumber them with target_transform",
        "make_dataset": choose,
        "is_valid_file": choose,
        "loader": 'presize decodes images; to do it yourself, use decode="bytes" and a transform',
    }


def check_hooks(owner: ImageFolderNames, base: type, options: Mapping[str, Any]) -> None:
    """Raise OptionError if a subclass defines one of ImageFolder's hooks, or `options` set a hook or allow_empty."""
    instead = _hooks_instead(owner._subset)
    refused = {name: ((None,), f"{base.__name__} never calls it; {cure}") for name, cure in instead.items()}
    empty = (), "class folders without images are always classes; leave it out"
    check_options(base.__name__, options, {**refused, "allow_empty": empty})
    for name, cure in instead.items():
        if callable(getattr(type(owner), name, None)):
            raise OptionError(f"{type(owner).__name__}.{name}: {base.__name__} never calls it; {cure}")


def check_options(
    owner: str, options: Mapping[str, Any], known: Mapping[str, tuple[Sequence[Any] | None, str]]
) -> None:
    """Raise OptionError for an option that would change something, TypeError for one that is not in `known`: for each
    option the values that change nothing (None: all), and the advice for other values."""
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}")
        harmless, instead = known[name]
        if harmless is not None and value not in harmless:
            raise OptionError(f"{name}: {instead}")


class Absent:
    """Attribute of ImageFolder that presize lacks: its AttributeError says what to use. Objects may set their own."""

    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__} has no {self._name}: {self._instead}")


@dataclass(frozen=True)
class StandardTransform:
    transform: Callable[[Any], Any] | None
    target_transform: Callable[[Any], Any] | None

    def __call__(self, image: Any, target: Any) -> tuple[Any, Any]:
        return (
            image if self.transform is None else self.transform(image),
            target if self.target_transform is None else self.target_transform(target),
        )


class ImageFolderNames:
    """Attributes of ImageFolder that scripts use. `_subset`: the expression that selects samples, for messages."""

    _subset: str
    _class_names: Sequence[str]

    loader = Absent("presize reads images by number, not by path; use dataset[i]")
    extensions = Absent("an image may have any name; dataset.samples has the paths")
    find_classes = Absent("use dataset.classes and dataset.class_to_idx")
    make_dataset = Absent("use dataset.samples")

    @property
    def transforms(self) -> StandardTransform | None:
        """`transform` and `target_transform` in one object; None if both are None."""
        owner: Any = self
        if owner.transform is None and owner.target_transform is None:
            return None
        return StandardTransform(owner.transform, owner.target_transform)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class, in a read-only dict; empty without classes."""
        return ClassNumbers({name: i for i, name in enumerate(self._class_names)})  # users may write to self.classes

    @property
    def samples(self) -> Samples:
        """A read-only list of the samples' (path, target), computed when accessed, so that it takes no memory."""
        return Samples(self)

    imgs = samples

    def get_labels(self) -> list[Any]:
        """Return `targets` as a list, for torchsampler's ImbalancedDatasetSampler."""
        owner: Any = self
        labels: list[Any] = owner.targets.tolist()
        return labels


def position(index: SupportsIndex, length: int, of: str = "") -> int:
    """Return the `index` into a list as a number from 0. Raises IndexError if it is out of range, TypeError if it is
    not a whole number."""
    try:
        i = operator.index(index)
    except TypeError:
        several = "; for several samples use torch.utils.data.Subset" if isinstance(index, slice | list | tuple) else ""
        raise TypeError(f"index: expected a whole number, got {index!r:.100}{several}") from None
    if not -length <= i < length:
        raise IndexError(f"sample {i}{of}: expected from {-length} to {length - 1}")
    return i % length


def _refuse(self: Any, *_: object, **__: object) -> NoReturn:
    raise OptionError(self._refusal)


class ClassNumbers(dict[str, int]):
    """Read-only dict for ``class_to_idx``. Pickled as an OrderedDict, which torch.load accepts."""

    _refusal = (
        "class_to_idx: cannot be changed, since labels would not follow; renumber classes with target_transform, or "
        "change a copy: dict(dataset.class_to_idx)"
    )
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> Any:
        return OrderedDict, (), None, None, iter(self.items())


class Samples(Sequence[Sample]):
    """Read-only list for ``samples``, computed on access; slices, copies and sums are lists. Pickles the dataset."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    @property
    def _refusal(self) -> str:
        subset = self._dataset._subset
        return f"samples: cannot be changed; to select some, use {subset}, or change a copy: list(dataset.samples)"

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if isinstance(index, slice):
            return [*map(self._dataset.path_and_target, range(*index.indices(len(self))))]
        return self._dataset.path_and_target(position(index, len(self)))

    def __iter__(self) -> Iterator[Sample]:
        return map(self._dataset.path_and_target, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Samples, list)):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __add__(self, other: Iterable[Sample]) -> list[Sample]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Sample]) -> list[Sample]:
        return [*other, *self]

    def __mul__(self, times: int) -> list[Sample]:
        return [*self] * times

    __rmul__ = __mul__

    def copy(self, _: Any = None) -> list[Sample]:
        return [*self]

    __copy__ = __deepcopy__ = copy

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __repr__(self) -> str:
        return f"Samples({len(self)}: {reprlib.repr(self[:3])[1:-1]}{', ...' if len(self) > 3 else ''})"
