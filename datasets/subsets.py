"""torch's Subset and ConcatDataset: checks, conversion to one LMDBDataset, and detection of changes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch.utils.data
from zlib_ng import zlib_ng

from presize.datasets.dataset import LMDBDataset
from presize.datasets.folder import FolderDataset
from presize.datasets.joined import JoinedData
from presize.datasets.reading.order import Last, Order, ShardShuffled, sample_numbers
from presize.datasets.sampler import EpochSampler
from presize.datasets.targets import declared, target_columns
from presize.errors import OptionError

_ALIKE = (
    "companions",
    "flip_pairs",
    "tv_tensors",
    "classes",
    "target",
    "vocabulary",
    "multi_hot",
    "decode",
    "crop",
    "flip",
    "normalize",
    "transform",
    "target_transform",
)
"""Attributes that the parts of a ConcatDataset must have in common."""

_LISTED = 100
"""Elements of longer lists, most often samples, are compared by identity, and their attributes are not searched."""

_MOST = 10_000
"""Number of objects after which state_of() stops."""

_MOST_BYTES = 1 << 26
"""Larger arrays are compared by identity, not by their numbers."""


def state_of(dataset: object) -> list[Any]:
    """Return the state that a loader's workers depend on, for differ(): a dataset and, recursively, what it holds."""
    found: list[Any] = []
    seen: set[int] = set()
    ahead = [dataset]
    while ahead and len(found) < _MOST:
        value = ahead.pop()
        found.append(value)
        if id(value) in seen:  # an object may hold itself
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray) and value.nbytes <= _MOST_BYTES and not value.dtype.hasobject:
            found.append(zlib_ng.crc32(np.ascontiguousarray(value)))
        elif isinstance(value, torch.Tensor):
            found.append(0 if value.is_inference() else value._version)
        elif isinstance(value, (list, tuple, dict, set)):
            inner = [*value, *value.values()] if isinstance(value, dict) else [*value]
            found.append(hash(tuple(map(id, inner))))
            ahead += inner if len(inner) <= _LISTED else []
        else:
            ahead += _held(value)
    return found


def _held(value: Any) -> Iterable[Any]:
    if isinstance(value, LMDBDataset):
        return [value._reading, *LMDBDataset.__getstate__(value).values()]
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, FunctionType):
        cells = [cell for cell in value.__closure__ or () if cell != CellType()]  # one may be empty
        return value.__defaults__, value.__kwdefaults__, *(cell.cell_contents for cell in cells)
    is_ours = type(value).__module__.startswith("presize.") and not isinstance(value, FolderDataset)
    if isinstance(value, (type, ModuleType)) or is_ours:
        return ()
    state: Any = object.__getstate__(value)
    parts = state if isinstance(state, tuple) else (state,)  # attributes, and slots
    return [each for part in parts if part is not None for each in part.values()]


def differ(now: Sequence[Any], then: Sequence[Any]) -> bool:
    """Return whether two states differ in an object, a number or a text."""
    return len(now) != len(then) or any(
        a is not b and not (type(a) is type(b) and isinstance(a, (int, float, str)) and a == b)
        for a, b in zip(now, then, strict=True)
    )


def transforms_of(dataset: Any) -> dict[str, Any]:
    """Return the attributes of an LMDBDataset that can be assigned."""
    return {"transform": dataset.transform, "target_transform": dataset.target_transform}


def keep_assigned(dataset: LMDBDataset, before: Any, derived: Mapping[str, Any]) -> None:
    """Assign to `dataset` the transforms that a user assigned to `before`, whose own were `derived`."""
    for name, value in transforms_of(before).items():
        if value is not derived[name] and dataset is not before:
            setattr(dataset, name, value)


def check_length(dataset: LMDBDataset, expected: int) -> None:
    if len(dataset) != expected:
        raise OptionError(
            f"dataset: has {len(dataset)} samples now, but had {expected} when this loader was made; make another"
        )


def sampler_of(
    dataset: Any, order: Order, batch_size: int, rank: int | None, ranks: int | None, drop_last: bool, last: Last | None
) -> EpochSampler:
    if isinstance(dataset, LMDBDataset):
        dataset.data.check_order(isinstance(order, ShardShuffled))
    sharing: dict[str, Any] = {"rank": rank, "ranks": ranks, "drop_last": drop_last, "last": last}
    return EpochSampler(order, batch_size=batch_size, fingerprint=fingerprint_of(dataset), **sharing)


def fingerprint_of(dataset: object) -> Callable[[], int | None]:
    """Return the fingerprint of an EpochSampler: a function that returns samples_crc32(dataset)."""
    return functools.partial(samples_crc32, dataset)


def check_labels(dataset: object) -> None:
    """Raise OptionError if one number means several classes, values or brightnesses in a ConcatDataset."""
    firsts: dict[tuple[int, Any], tuple[Any, tuple[str, Any]]] = {}  # by target_transform and place in the target
    transforms: list[Any] = []
    deep: Any = None
    for part in _parts(dataset):
        if part.target_transform not in transforms:
            transforms.append(part.target_transform)
        for place, label in _labels(part).items():
            key = transforms.index(part.target_transform), place
            first, ours = firsts.setdefault(key, (part, label))
            if ours != label:
                raise _unequal(label[0] if ours[0] == label[0] else "target", first, part)
        if isinstance(part, LMDBDataset) and part.transform is None and part.normalize is None:  # the pixels as stored
            deep = part if deep is None else deep
            if deep.data.manifest.depth != part.data.manifest.depth:
                raise _unequal("depth", deep, part)


def _kind(dataset: object) -> Any:
    kinds = (LMDBDataset, FolderDataset, torch.utils.data.Subset, torch.utils.data.ConcatDataset)
    return next((kind for kind in kinds if isinstance(dataset, kind)), None)


def _own_method(dataset: object) -> str | None:
    """Return the name of the reading method that a subclass overrides, or None."""
    names = ("__getitem__", "__getitems__")
    kind = _kind(dataset)
    return next((name for name in names if getattr(type(dataset), name, None) is not getattr(kind, name, None)), None)


def _parts(dataset: Any) -> Iterator[Any]:
    """Yield the LMDBDatasets and FolderDatasets in Subsets and ConcatDatasets, unless a subclass overrides reading."""
    kind = _kind(dataset)
    if kind is None or _own_method(dataset):
        return
    if kind is torch.utils.data.Subset:
        yield from _parts(dataset.dataset)
    elif kind is torch.utils.data.ConcatDataset:
        for part in dataset.datasets:
            yield from _parts(part)
    else:
        yield dataset


def _labels(part: Any) -> dict[Any, tuple[str, Any]]:
    """Return, by place or key in a target, the option that gives the column its meaning, and the option's value."""
    if isinstance(part, FolderDataset):
        return {} if part.classes is None else {0: ("classes", part.classes)}
    columns = target_columns(part.target)
    found: dict[Any, tuple[str, Any]] = {}
    for place, name in zip(
        part.target if isinstance(part.target, Mapping) else range(len(columns)), columns, strict=True
    ):
        if name in part.vocabulary:
            found[place] = "vocabulary", part.vocabulary[name]
        elif name == "label":
            found[place] = "classes", part.classes
        else:
            kinds = [kind for kind in ("boxes", "keypoints") if name in declared(part.data, kind)]
            found[place] = (kinds[0] if kinds else "target"), None
    return found


def _unequal(name: str, first: Any, part: Any, both: str = "") -> OptionError:
    return OptionError(
        f"dataset: the parts of a ConcatDataset must have the same {name}, but those of {first.root} and {part.root} "
        f"differ{both}"
    )


def samples_crc32(dataset: object) -> int | None:
    """Return the CRC-32 of the paths of all samples, in their order; None for other kinds of datasets."""
    paths = _paths(dataset)
    if paths is None:
        return None
    crc = zlib_ng.crc32(np.ascontiguousarray(pc.binary_length(paths)))
    for chunk in paths.chunks:
        _, ends, text = chunk.buffers()
        if len(chunk) and text is not None:
            first, last = np.frombuffer(ends, np.int64)[[chunk.offset, chunk.offset + len(chunk)]].tolist()
            crc = zlib_ng.crc32(memoryview(text)[first:last], crc)
    return crc


def _paths(dataset: Any) -> pa.ChunkedArray | None:
    numbers: Any = None
    if isinstance(dataset, torch.utils.data.ConcatDataset):
        parts = [part for part in map(_paths, dataset.datasets) if part is not None]
        whole = len(parts) == len(dataset.datasets)
        return pa.chunked_array([chunk for part in parts for chunk in part.chunks]) if whole else None
    if isinstance(dataset, torch.utils.data.Subset):
        paths, numbers = _paths(dataset.dataset), dataset.indices
    elif isinstance(dataset, LMDBDataset):
        dataset.data.check_column("path")
        paths, numbers = dataset.data.column("path"), dataset._rows
    elif isinstance(dataset, FolderDataset):
        paths = dataset._paths
    else:
        return None
    if paths is not None and numbers is not None:
        paths = paths.take(pa.array(sample_numbers(numbers, len(paths))))
    return pa.chunked_array([paths]) if isinstance(paths, pa.Array) else paths


def as_lmdb_dataset(dataset: Any, whole: object = None) -> LMDBDataset:
    """Return an LMDBDataset as it is, and a Subset or ConcatDataset of them as one. Messages name `whole`."""
    whole, kind = dataset if whole is None else whole, _kind(dataset)
    if kind in (None, FolderDataset):
        raise OptionError(
            f"dataset: expected an LMDBDataset, or a Subset or ConcatDataset of them, got {_name(whole)}; "
            "make_loader takes any dataset"
        )
    if (method := _own_method(dataset)) is not None:
        raise OptionError(f"dataset: a Loader does not call the {method} of {type(dataset).__name__}; use make_loader")
    if kind is torch.utils.data.Subset:
        return as_lmdb_dataset(dataset.dataset, whole).subset(dataset.indices)
    if kind is torch.utils.data.ConcatDataset:
        return _sum([as_lmdb_dataset(part, whole) for part in dataset.datasets])
    result: LMDBDataset = dataset
    return result


def _sum(parts: list[LMDBDataset]) -> LMDBDataset:
    first = parts[0]
    for part in parts[1:]:
        for name in _ALIKE:
            ours, theirs = (one._reading.rest if name == "transform" else getattr(one, name) for one in (first, part))
            if ours != theirs:
                raise _unequal(name, first, part, "" if name == "classes" else f": {ours!r} and {theirs!r}")
    sources = list({id(part.data): part.data for part in parts}.values())
    starts = dict(zip(map(id, sources), np.cumsum([0, *map(len, sources)]).tolist(), strict=False))
    rows = None
    if len(sources) < len(parts) or any(part._rows is not None for part in parts):
        rows = np.concatenate([part.records(np.arange(len(part))) + starts[id(part.data)] for part in parts])
    joined = first._over(sources[0] if len(sources) == 1 else JoinedData(sources), rows)
    joined._held = [file for part in parts for file in part._held]
    return joined


def _name(dataset: Any) -> str:
    if isinstance(dataset, torch.utils.data.Subset):
        return f"a Subset of {_name(dataset.dataset)}"
    if isinstance(dataset, torch.utils.data.ConcatDataset):
        return f"a ConcatDataset of {' and '.join(dict.fromkeys(map(_name, dataset.datasets)))}"
    return type(dataset).__name__
