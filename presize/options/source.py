"""SourceOptions: which samples a source has."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

from presize.errors import OptionError
from presize.options.checks import KeyPreset, Repeated, check_choice, check_range, check_text, check_type


@dataclass(frozen=True)
class SourceOptions:
    """Which samples a source has. It decides the bytes of a dataset; the samples are recorded, and nothing here is.

    Attributes:
        labels: a table (CSV, JSON lines, Parquet or a list of paths) that lists the samples, in their order; "none" for
            all files of the source, without labels; None for class folders, or a flat folder.
        classes: the class list; None for the sorted names of folders or labels.
        repeated: "refuse" a path that several rows of the table have, or make of them one sample whose columns are
            lists.
        split: how the column ``split`` comes about: "folders", by the folder of the source that a sample lies in; or
            shares that add up to 1, as in "train=0.9,val=0.1", drawn by the sample's path; None for no such column.
        split_seed: random seed of the shares, from 0.
        keys: which images to take from files that hold many. Of an LMDB a pattern for keys, such as
            ``image-{:09d}``, or a KeyPreset; of tar shards an extension, such as ``jpg``; of Parquet a column. Tar
            shards and Parquet need it where a sample has several images.
        label_keys: the pattern for the keys of an LMDB's labels, such as ``label-{:09d}``. ``text=label-{:09d}`` calls
            their column ``text``.
    """

    labels: str | os.PathLike[str] | None = None
    classes: Sequence[str] | None = None
    repeated: Repeated = "refuse"
    split: str | None = None
    split_seed: int = 0
    keys: str | None = None
    label_keys: str | None = None

    def __post_init__(self) -> None:
        check_choice("repeated", self.repeated, Repeated)
        check_range("split_seed", self.split_seed, 0, 2**63 - 1)
        if self.split is not None and self.split != "folders":
            parse_shares(self.split)
        if self.repeated == "list" and self.table is None:
            raise OptionError("repeated: list is about rows of a table; name one with --labels")
        if self.classes is not None and self.labels == "none":
            raise OptionError("classes: samples have no class with --labels none; leave one of them out")
        for name in ("keys", "label_keys"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise OptionError(f"{name}: expected a text such as image-{{:09d}}, got {value!r}")
        if self.label_keys is not None and self.keys is None:
            raise OptionError("label_keys: it needs --keys, the pattern for the keys of the images")
        if self.label_keys is not None and self.keys in get_args(KeyPreset):
            raise OptionError(f"label_keys: --keys {self.keys} has its own; give patterns for both, or leave it out")

    @property
    def table(self) -> str | os.PathLike[str] | None:
        """The label table, if there is one."""
        return None if self.labels == "none" else self.labels


def parse_shares(text: str) -> dict[str, Fraction]:
    """The share of each split: names and decimals that add up to 1.

    >>> parse_shares("train=0.9,val=0.1")
    {'train': Fraction(9, 10), 'val': Fraction(1, 10)}
    """
    check_type("split", text, str)
    check_text("split", text)
    found = [re.fullmatch(r"\s*([^=\s][^=]*?)\s*=\s*(\d*\.?\d+)\s*", part, re.ASCII) for part in text.split(",")]
    shares = {match[1]: Fraction(match[2]) for match in found if match}
    if len(shares) < len(found) or not all(shares.values()):
        raise OptionError(f"split: expected folders, or names and shares, such as train=0.9,val=0.1, got {text!r}")
    if sum(shares.values()) != 1:
        raise OptionError(f"split: the shares in {text!r} add up to {float(sum(shares.values())):g}, expected 1")
    return shares
