"""Key patterns of other programs' LMDBs, for import and export. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import OptionError
from presize.options import KeyPreset

_FIELD = re.compile(r"([^{}%]*)(?:\{(?::0?(\d{0,2})d?)?\}|%0?(\d{0,2})d)([^{}%]*)")
_MOST_DIGITS = 17

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyPattern:
    """Pattern of keys with a number of at least `width` digits: ``image-{:09d}``, or in C's notation ``image-%09d``."""

    before: str
    width: int
    behind: str

    @classmethod
    def parse(cls, option: str, text: str) -> KeyPattern:
        match = _FIELD.fullmatch(text)
        width = max(1, int(match[2] or match[3] or 0)) if match else 0
        if match is None or width > _MOST_DIGITS:
            expected = "a pattern with one number, such as image-{:09d}"
            presets = f", or {', '.join(get_args(KeyPreset))}" if option == "keys" else ""
            raise OptionError(f"{option}: expected {expected}{presets}, got {text!r}")
        return cls(match[1], width, match[4])

    def __str__(self) -> str:
        return f"{self.before}{{:0{self.width}d}}{self.behind}"

    def key(self, number: int) -> str:
        return f"{self.before}{number:0{self.width}d}{self.behind}"

    def numbers(self, keys: pa.LargeBinaryArray) -> tuple[Numbers, Numbers]:
        """Return the rows of the matching keys, and their numbers, ordered by number."""
        digits = rf"[0-9]{{{self.width}}}|[1-9][0-9]{{{self.width},{_MOST_DIGITS}}}"
        fits = rf"^{re.escape(self.before)}(?P<number>{digits}){re.escape(self.behind)}$"
        matches = pc.extract_regex(keys, fits)
        rows = np.flatnonzero(matches.is_valid().to_numpy(zero_copy_only=False))
        numbers = matches.field("number").take(pa.array(rows)).cast(pa.large_string()).cast(pa.int64()).to_numpy()
        order = np.argsort(numbers, kind="stable")
        return rows[order], numbers[order]


def label_pattern(label_keys: str) -> tuple[str, KeyPattern]:
    """Parse ``text=label-{:09d}`` into column and pattern; the default column is ``label``."""
    column, equals, pattern = label_keys.rpartition("=")
    if equals and not column:
        raise OptionError(f"label_keys: expected a column before =, such as text=label-{{:09d}}, got {label_keys!r}")
    return column or "label", KeyPattern.parse("label_keys", pattern)


TEXT_RECOGNITION = (KeyPattern("image-", 9, ""), KeyPattern("label-", 9, ""), "text")
"""Image keys, label keys and label column in the layout of CRNN and similar programs."""
