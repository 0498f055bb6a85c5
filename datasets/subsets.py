"""as_lmdb_dataset: what torch makes of LMDBDatasets, parts and sums of them, as one LMDBDataset again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.utils.data

from presize.datasets.joined import JoinedData
from presize.datasets.lmdb import LMDBDataset
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
"""What the parts of a ConcatDataset must have in common."""


def transforms_of(dataset: object) -> list[Any]:
    """How each LMDBDataset in a dataset is read, what is called with its targets, and a hash of the indices of each
    Subset, for is_changed()."""
    given: Any = dataset
    if isinstance(dataset, torch.utils.data.ConcatDataset):
        return [found for part in given.datasets for found in transforms_of(part)]
    if isinstance(dataset, torch.utils.data.Subset):
        found = transforms_of(given.dataset)
        return [*found, hash(np.asarray(given.indices).tobytes())] if found else []
    return [given._reading, given.target_transform] if isinstance(dataset, LMDBDataset) else []


def is_changed(dataset: object, then: Sequence[Any]) -> bool:
    """Whether a transform of `dataset`, or the indices of a Subset in it, were assigned, or changed in place, since
    transforms_of() gave `then`."""
    now = transforms_of(dataset)
    return len(now) != len(then) or any(
        a is not b and not (type(a) is type(b) is int and a == b) for a, b in zip(now, then, strict=True)
    )


def as_lmdb_dataset(dataset: object) -> LMDBDataset:
    """`dataset` itself; or what has the samples of a Subset or a ConcatDataset of LMDBDatasets, however nested.

    Raises:
        OptionError: it holds something else, a class with a ``__getitem__`` of its own, indices that are out of range,
            or parts that differ in classes, crop or another option.
    """
    return _converted(dataset, dataset)


def _converted(dataset: object, whole: object) -> LMDBDataset:
    base: Any = next(
        (
            kind
            for kind in (LMDBDataset, torch.utils.data.Subset, torch.utils.data.ConcatDataset)
            if isinstance(dataset, kind)
        ),
        None,
    )
    if base is None:
        raise OptionError(
            f"dataset: expected an LMDBDataset, or a Subset or ConcatDataset of such, got {_name(whole)}; "
            "make_loader takes any dataset"
        )
    for method in ("__getitem__", "__getitems__"):
        if getattr(type(dataset), method, None) is not getattr(base, method, None):
            raise OptionError(
                f"dataset: a Loader does not call the {method} of {type(dataset).__name__}; use make_loader"
            )
    given: Any = dataset
    if base is torch.utils.data.Subset:
        return _converted(given.dataset, whole).subset(given.indices)
    if base is torch.utils.data.ConcatDataset:
        return _sum([_converted(part, whole) for part in given.datasets])
    result: LMDBDataset = given
    return result


def _sum(parts: list[LMDBDataset]) -> LMDBDataset:
    first = parts[0]
    for part in parts[1:]:
        for name in _ALIKE:
            ours, theirs = (one._reading.rest if name == "transform" else getattr(one, name) for one in (first, part))
            if ours != theirs:
                both = "" if name == "classes" else f": {ours!r} and {theirs!r}"
                raise OptionError(
                    f"dataset: the parts of a ConcatDataset must have the same {name}, and those of {first.root} and "
                    f"{part.root} differ{both}"
                )
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
