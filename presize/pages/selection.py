"""Filters of a page, parsed from the query string of its address, and the rows that match them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal
from urllib.parse import parse_qsl, urlencode

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import OptionError
from presize.options import check_choice, check_text
from presize.pages.samples import ViewedDataset
from presize.store.rejects_file import Rejects

Rows = npt.NDArray[np.int64]
Show = Literal["stored", "rejects"]

_MOST_FIELDS = 32
_MOST_DIGITS = 12


@dataclass(frozen=True)
class Filters:
    """The state of a page; fields have the names used in the query string.

    Attributes:
        show: stored images, or files that were not stored.
        text: part of the path, of another text column, or of the reason; case-insensitive.
        label, split, reason: a class, a value of the column ``split``, a reason for not storing files; empty for all.
        min_side, max_side: limits on the shorter side of the source in pixels, inclusive; 0 for no limit.
        page: number of the page, from 1.
        sample: the only sample to show, enlarged; -1 for a page of many.
    """

    show: Show = "stored"
    text: str = ""
    label: str = ""
    split: str = ""
    min_side: int = 0
    max_side: int = 0
    reason: str = ""
    page: int = 1
    sample: int = -1

    def __post_init__(self) -> None:
        check_choice("show", self.show, Show)
        for text in ("text", "label", "split", "reason"):
            check_text(text, getattr(self, text))
        for name, least in (("min_side", 0), ("max_side", 0), ("page", 1), ("sample", -1)):
            if getattr(self, name) < least:
                raise OptionError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        if 0 < self.max_side < self.min_side:
            raise OptionError(f"min_side: expected at most the maximum of {self.max_side}, got {self.min_side}")
        if self.show == "rejects" and self.sample >= 0:
            raise OptionError(f"sample: cannot be combined with show=rejects, got {self.sample}")

    @classmethod
    def parse(cls, query: str) -> Filters:
        """Parse a query string, such as ``label=cat&page=2``; empty values, which forms send, mean defaults. Raises
        OptionError if a name is unknown or occurs twice, or a value is invalid."""
        try:
            pairs = parse_qsl(query, max_num_fields=_MOST_FIELDS, errors="strict")
        except ValueError:
            raise OptionError("query: expected NAME=VALUE&..., in UTF-8") from None
        defaults = {field.name: field.default for field in fields(cls)}
        values: dict[str, object] = {}
        for name, text in pairs:
            if name not in defaults or name in values:
                raise OptionError(f"query: expected each of {', '.join(defaults)} at most once, got {name!r}")
            values[name] = text
            if isinstance(defaults[name], int):
                if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
                    raise OptionError(f"{name}: expected a whole number, got {text!r}")
                values[name] = int(text)
        return cls(**values)  # type: ignore[arg-type]

    def query(self, **changes: str | int) -> str:
        """Return the query string of this state with `changes`: ``?`` and the fields that are not at their defaults."""
        state = replace(self, **changes)  # type: ignore[arg-type]
        pairs = ((field.name, getattr(state, field.name), field.default) for field in fields(state))
        return "?" + urlencode([(name, value) for name, value, default in pairs if value != default])

    @property
    def is_filtered(self) -> bool:
        """Return whether some samples may be left out."""
        return self != Filters(show=self.show, page=self.page)


def matching(viewed: ViewedDataset, filters: Filters) -> Rows:
    """Return the numbers of the stored samples that match all filters, in dataset order, or the rows of rejects. Raises
    OptionError for an unknown class, split or sample, and for filters that rejects do not have, and DatasetError if a
    column is damaged."""
    for name in ("label", "split", "min_side", "max_side") if filters.show == "rejects" else ():
        if value := getattr(filters, name):
            what = f"{name}: files that were not stored have none, got {value!r}"
            raise OptionError(f"{what}; leave it out, or show stored images")
    classes = viewed.manifest.classes or ()
    if filters.label:
        _check_known("label", "classes", filters.label, classes)
    if filters.split:
        _check_known("split", "splits", filters.split, [split for split, _ in split_counts(viewed)])
    if filters.show == "rejects":
        return matching_rejects(viewed.rejects, filters)
    count = viewed.manifest.samples
    if filters.sample >= 0:
        if filters.sample >= count:
            raise OptionError(f"sample: expected a number below {count}, got {filters.sample}")
        return np.array([filters.sample])
    keep = np.ones(count, bool)
    if filters.label:
        keep &= _numbers(viewed, "label") == classes.index(filters.label)
    if filters.split:
        keep &= _mask(pc.equal(viewed.column("split"), filters.split))
    if filters.min_side or filters.max_side:
        side = np.minimum(_numbers(viewed, "source_width"), _numbers(viewed, "source_height"))
        keep &= (side >= filters.min_side) & (side <= (filters.max_side or np.iinfo(np.int32).max))
    if filters.text:
        keep &= np.logical_or.reduce([_contains(viewed.column(name), filters.text) for name in viewed.text_columns])
    return np.flatnonzero(keep)


def matching_rejects(rejects: Rejects, filters: Filters) -> Rows:
    """Return the rows of rejects that match the filters by text and reason."""
    keep = np.ones(len(rejects), bool)
    reason = rejects.columns.column("reason")
    if filters.reason:
        keep &= _mask(pc.equal(reason.dictionary, filters.reason).take(reason.indices))
    if filters.text:
        in_reason = pc.match_substring(reason.dictionary, filters.text, ignore_case=True).take(reason.indices)
        keep &= _contains(rejects.columns.column("path"), filters.text) | _mask(in_reason)
    return np.flatnonzero(keep)


def class_counts(viewed: ViewedDataset) -> list[tuple[str, int]]:
    """Return (class, number of samples) for each class; empty without classes."""
    classes = viewed.manifest.classes
    if not classes:
        return []
    labels = _numbers(viewed, "label")
    counts = np.bincount(labels[(labels >= 0) & (labels < len(classes))], minlength=len(classes))
    return list(zip(classes, counts.tolist(), strict=True))


def split_counts(viewed: ViewedDataset) -> list[tuple[str, int]]:
    """Return (split, number of samples), sorted by name; empty without a text column ``split``."""
    if "split" not in viewed.text_columns:
        return []
    counts = viewed.column("split").value_counts().to_pylist()
    return sorted((each["values"], each["counts"]) for each in counts if each["values"] is not None)


def reason_counts(rejects: Rejects, most: int) -> list[tuple[str, int]]:
    """Return (reason, number of files) for the `most` most frequent reasons."""
    reason = rejects.columns.column("reason")
    counts = np.bincount(reason.indices.to_numpy(), minlength=len(reason.dictionary))
    order = np.argsort(-counts, kind="stable")[:most].tolist()
    return [(reason.dictionary[number].as_py(), int(counts[number])) for number in order]


def _numbers(viewed: ViewedDataset, name: str) -> npt.NDArray[np.int32]:
    return np.asarray(viewed.column(name).to_numpy(zero_copy_only=True))


def _check_known(option: str, names: str, name: str, known: Sequence[str]) -> None:
    if not known:
        raise OptionError(f"{option}: the dataset has no {names}, got {name!r}")
    if name not in known:
        some = ", ".join(known[:5]) + (", ..." if len(known) > 5 else "")
        raise OptionError(f"{option}: expected one of {some}, got {name!r}")


def _contains(texts: pa.Array, part: str) -> npt.NDArray[np.bool_]:
    return _mask(pc.match_substring(texts, part, ignore_case=True))


def _mask(found: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False))
