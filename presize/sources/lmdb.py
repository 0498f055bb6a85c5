"""Lists the samples of an LMDB of another program: which of its keys are images, and which their labels."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.codecs.sniff import sniff
from presize.errors import OptionError, PresizeWarning, SourceError
from presize.formatting import plural, printable
from presize.options import KeyPreset
from presize.sources.contents import Contents, field_name, reject
from presize.sources.lmdb_values import LmdbValues, Numbers, read_lmdb
from presize.sources.text_columns import looks_like, whole_numbers
from presize.sources.walk import as_utf8
from presize.store.rejects import Reject
from presize.system.files import open_at_once

_FIELD = re.compile(r"([^{}%]*)(?:\{(?::0?(\d{0,2})d?)?\}|%0?(\d{0,2})d)([^{}%]*)")
_MOST_DIGITS = 17
"""One more is still a 64-bit number."""
_KEYS_SHOWN = 5
_TRIED = 16
_LABEL_BYTES = 1 << 16
_ROWS_AT_ONCE = 65536
_COUNTS = ("num-samples", "num_samples")
"""Keys of the number of samples, in CRNN's layout and its kin."""
_COUNT_BYTES = 20
_WHOLE = re.compile(rb"\s*[0-9]{1,18}\s*")
_META_INFO = "meta_info.txt"
_BEGIN_BYTES = 4096
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
"""How pickles of protocol 2 and later begin, and no image does."""


@dataclass(frozen=True)
class KeyPattern:
    """Keys that differ in a number: ``image-{:09d}``, or as C writes it, ``image-%09d``.

    Attributes:
        before: the text before the number.
        width: the least digits of the number, filled with zeros.
        behind: the text behind it.
    """

    before: str
    width: int
    behind: str

    @classmethod
    def parse(cls, option: str, text: str) -> KeyPattern:
        match = _FIELD.fullmatch(text)
        width = max(1, int(match[2] or match[3] or 0)) if match else 0
        if match is None or width > _MOST_DIGITS:
            presets = f", or {', '.join(get_args(KeyPreset))}" if option == "keys" else ""
            example = "image-{:09d}"
            raise OptionError(f"{option}: expected a pattern with one number, such as {example}{presets}, got {text!r}")
        return cls(match[1], width, match[4])

    def __str__(self) -> str:
        return f"{self.before}{{:0{self.width}d}}{self.behind}"

    def numbers(self, keys: pa.LargeBinaryArray) -> tuple[Numbers, Numbers]:
        """The rows of the keys that fit, and their numbers, ascending."""
        digits = rf"[0-9]{{{self.width}}}|[1-9][0-9]{{{self.width},{_MOST_DIGITS}}}"
        fits = rf"^{re.escape(self.before)}(?P<number>{digits}){re.escape(self.behind)}$"
        found = pc.extract_regex(keys, fits)
        rows = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
        numbers = found.field("number").take(pa.array(rows)).cast(pa.large_string()).cast(pa.int64()).to_numpy()
        order = np.argsort(numbers, kind="stable")
        return rows[order], numbers[order]


@dataclass(frozen=True)
class _Chosen:
    """The images of an LMDB: their rows and paths, in the order of samples, their fields, and what is no sample."""

    rows: Numbers
    paths: pa.Array
    fields: dict[str, pa.Array]
    rejects: list[Reject]


_Choose = Callable[[LmdbValues, str, str], _Chosen]
"""Chooses the images among the values of the LMDB at a path, with a name for what is rejected."""


def list_lmdb(path: str, name: str, keys: str | None, label_keys: str | None) -> Contents:
    """The samples of an LMDB.

    Args:
        path: its data file.
        name: its path from the source, to name what is rejected.
        keys, label_keys: see SourceOptions.

    Raises:
        SourceError: it cannot be read, no key fits, or its values are not images.
        OptionError: `keys` or `label_keys` is no pattern.
    """
    choose = _chooser(keys, label_keys)
    found = read_lmdb(path)
    if choose is None:
        raise SourceError(f"an LMDB needs --keys; {_expected(found)}")
    chosen = choose(found, path, name)
    rows = chosen.rows
    if not len(rows) and not chosen.rejects:
        raise SourceError(f"no key fits --keys {keys}; {_expected(found)}")
    _check_values(found, rows)
    places = {
        "path": chosen.paths,
        "source_nbytes": pa.array(found.nbytes[rows]),
        "offset": pa.array(found.offset[rows]),
    }
    return Contents(found.version, pa.table(places | chosen.fields), rejects=chosen.rejects)


def _chooser(keys: str | None, label_keys: str | None) -> _Choose | None:
    if keys is None:
        return None
    if keys in _PRESETS:
        return _PRESETS[keys]
    images = KeyPattern.parse("keys", keys)
    if label_keys is None:
        return _numbered(images)
    column, equals, pattern = label_keys.rpartition("=")
    if equals and not column:
        raise OptionError(f"label_keys: expected a column before =, such as text=label-{{:09d}}, got {label_keys!r}")
    return _labelled(images, KeyPattern.parse("label_keys", pattern), column or "label")


def _numbered(images: KeyPattern) -> _Choose:
    def choose(found: LmdbValues, _: str, name: str) -> _Chosen:
        rows = images.numbers(found.keys)[0]
        _tell_count(found, len(rows), name)
        return _plain_keys(found, rows)

    return choose


def _plain_keys(found: LmdbValues, rows: Numbers) -> _Chosen:
    return _Chosen(rows, _texts(found.keys.take(pa.array(rows))), {}, [])


def _texts(keys: pa.LargeBinaryArray) -> pa.Array:
    """Keys as paths; one that is not UTF-8 gets an empty path, which is rejected."""
    try:
        return keys.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.array([_text(key) for key in keys.to_pylist()], pa.large_string())


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return ""


def _labelled(images: KeyPattern, labels: KeyPattern, column: str) -> _Choose:
    def choose(found: LmdbValues, _: str, name: str) -> _Chosen:
        rows, numbers = images.numbers(found.keys)
        label_rows, label_numbers = labels.numbers(found.keys)
        if len(rows) and not len(label_rows):
            raise SourceError(f"no key fits --label-keys {labels}; {_expected(found)}")
        place = np.searchsorted(label_numbers, numbers)
        has_label = np.append(label_numbers, -1)[place] == numbers
        _tell_count(found, len(rows), name)
        texts = np.full(len(rows), None, object)
        texts[has_label] = _label_texts(found, label_rows[place[has_label]], column)
        is_good = np.array([isinstance(text, str) for text in texts], np.bool_)
        keys = [as_utf8(os.fsdecode(key)) for key in found.keys.take(pa.array(rows[~is_good])).to_pylist()]
        reasons = map(_reason, texts[~is_good])
        rejects = [reject(f"{name}/{key}", reason) for key, reason in zip(keys, reasons, strict=True)]
        values = pa.array(texts[is_good], pa.large_string())
        fields = {field_name(column): _numbers(values) if column == "label" else values}
        return _Chosen(rows[is_good], _texts(found.keys.take(pa.array(rows[is_good]))), fields, rejects)

    return choose


def _label_texts(found: LmdbValues, rows: Numbers, column: str) -> list[str | bytes]:
    """Labels: text, or bytes for one that is not UTF-8, or far too long. What no text has costs one sample in columns
    of text; in ``label`` it refuses the source, since other labels are no text then, either (see class_labels)."""
    texts: list[str | bytes] = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        for value in found.values(rows[start : start + _ROWS_AT_ONCE], _LABEL_BYTES).to_pylist():
            is_text = len(value) < _LABEL_BYTES and (column == "label" or b"\0" not in value)
            try:
                texts.append(value.decode() if is_text else value)
            except UnicodeDecodeError:
                texts.append(value)
    return texts


def _reason(label: bytes | None) -> str:
    if label is None:
        return "it has no label"
    like = looks_like(label)
    return f"its label is not UTF-8 text{f'; it looks like {like}' if like else ''}"


def _numbers(texts: pa.Array) -> pa.Array:
    """Labels as numbers, if all are whole ones; otherwise they are names of classes."""
    numbers = whole_numbers(pc.utf8_trim_whitespace(texts))
    return numbers if pa.types.is_integer(numbers.type) else texts


def _tell_count(found: LmdbValues, images: int, name: str) -> None:
    """Warn if the LMDB says that it has another number of samples than there are images."""
    rows = pc.index_in(pa.array(_COUNTS, pa.large_binary()), found.keys).drop_null().to_numpy()
    for row, value in zip(rows, found.values(rows.astype(np.int64), _COUNT_BYTES).to_pylist(), strict=True):
        if images and _WHOLE.fullmatch(value) and int(value) != images:
            warnings.warn(
                f"{name!r}: {_shown(found.keys[int(row)].as_py())} says {int(value):,} samples, and it holds "
                f"{plural(images, 'image')}; all are taken",
                PresizeWarning,
                stacklevel=9,
            )


def _basicsr(found: LmdbValues, path: str, name: str) -> _Chosen:
    """The images that BasicSR's meta_info.txt lists, in its order: ``0001.png (480,480,3) 1`` has the key ``0001``."""
    try:
        with open(os.path.join(os.path.dirname(path), _META_INFO), encoding="utf-8", opener=open_at_once) as file:
            names = [line.strip().rsplit(" (", 1)[0] for line in file if not line.isspace()]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise SourceError(f"--keys basicsr needs {_META_INFO} beside the LMDB: {reason}; {_expected(found)}") from None
    keys = pa.array([os.path.splitext(one)[0].encode() for one in names], pa.large_binary())
    row = pc.fill_null(pc.index_in(keys, found.keys), -1).to_numpy()
    rejects = [reject(f"{name}/{names[k]}", "the LMDB has no such key") for k in np.flatnonzero(row < 0).tolist()]
    listed = np.flatnonzero(row >= 0)
    return _Chosen(row[listed].astype(np.int64), pa.array(names, pa.large_string()).take(pa.array(listed)), {}, rejects)


def _lsun(found: LmdbValues, _path: str, _name: str) -> _Chosen:
    """All values, in the order in which they lie in the file: their keys are hashes."""
    return _plain_keys(found, np.argsort(found.offset, kind="stable"))


_PRESETS: dict[str, _Choose] = {
    "text-recognition": _labelled(KeyPattern("image-", 9, ""), KeyPattern("label-", 9, ""), "text"),
    "basicsr": _basicsr,
    "lsun": _lsun,
}


def _expected(found: LmdbValues) -> str:
    """What the keys are, and what would be understood."""
    shown = [_shown(key) for key in found.keys.slice(0, _KEYS_SHOWN).to_pylist()]
    more = ", …" if len(found.keys) > len(shown) else ""
    return (
        (
            f"its first keys are {', '.join(shown)}{more}; expected a pattern, such as --keys image-{{:09d}} "
            f"for image-000000001, or one of {', '.join(_PRESETS)}"
        )
        if shown
        else "it is empty"
    )


def _check_values(found: LmdbValues, rows: Numbers) -> None:
    """Raise SourceError unless some of the values are encoded images; and if one of those tried is a pickle."""
    tried = rows[np.unique(np.linspace(0, len(rows) - 1, min(_TRIED, len(rows))).astype(np.int64))]
    begins = [bytes(value) for value in found.values(tried, _BEGIN_BYTES).to_pylist()]
    keys = found.keys.take(pa.array(tried)).to_pylist()
    for key, begin in zip(keys, begins, strict=True):
        if _PICKLE.match(begin):
            raise SourceError(
                f"the value of {_shown(key)} is a Python pickle, and reading one runs whatever code it names; write an "
                "LMDB of encoded images with the program that made it, which trusts them"
            )
    if begins and not any(map(sniff, begins)):
        raise SourceError(
            f"{len(begins)} values were tried, and none is an encoded image: that of {_shown(keys[0])} begins with "
            f"{begins[0][:12]!r}; expected JPEG, PNG, WebP or another image file in each"
        )


def _shown(key: bytes) -> str:
    return repr(printable(as_utf8(os.fsdecode(key))[:40]))
