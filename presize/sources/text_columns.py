"""Decides what a column of texts holds: whole numbers, decimals, booleans, or text, which every doubtful column stays.

A column holds numbers if a program would print all of them as it is written: 7 and 1e-05, not 007, 12E5 or 0x1F.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from presize.errors import SourceError
from presize.options import ValueType

_NULLS = pa.array([*filter(None, pa.csv.ConvertOptions().null_values), "NAN", "-NAN", "+NAN", "+nan"], pa.string())
"""How missing numbers are written, if not by an empty cell: NA, NaN and their kin."""
_WHOLE = r"^(?:0|-?[1-9][0-9]*)$"
_FEW_DIGITS = r"(?:0|[1-9][0-9]{0,16})"
"""Without a point: more digits than programs print of a float are a code."""
_NUMBER = (
    rf"^(?:-?{_FEW_DIGITS}|[+-]?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)"
    r"|[+-]?[0-9](?:\.[0-9]*)?[eE][+-][0-9]+"  # most languages
    r"|-?[0-9]e(?:1[5-9]|[2-9][0-9]|[1-3][0-9]{2})"  # Polars, Rust and MySQL, of large numbers
    r"|-?[0-9]\.[0-9]+[eE][0-9]+"  # Java and Julia
    r"|[+-]?(?i:inf(?:inity)?))$"
)
_SURE = r"\.|[eE][+-]|[iI]"
"""What makes a column decimals: 1e20 alone is a code."""
_BOOLEAN = r"^(?:true|True|TRUE|false|False|FALSE)$"
_SPELLING_LOST = (
    r"^(?:\+.*|-?(?:[0-9]*\.[0-9]*[1-9]0+|[0-9]*\.00+|\.[0-9]+|[0-9]+\."
    r"|[1-9][0-9]{15,}|0*\.?0*[1-9](?:\.?[0-9]){17,}))$"
)
"""Decimals whose number is printed otherwise: 3.10, 12.00, +0.5, .5, 5., and those of more digits than a float has."""
_GIVEN: dict[ValueType, str] = {
    "int": r"^[+-]?[0-9]+(?:\.0*)?$",
    "float": r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf(?:inity)?))$",
}
_DOUBLED = r'(?s)^(?:[^"]|"")*$'
_ESCAPED = r'(?s)^(?:[^"\\]|\\.)*$'
_KINDS: Mapping[str, pa.DataType] = {"int": pa.int64(), "float": pa.float64(), "text": pa.large_string()}
_NO_TEXT = r"(?s)[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|^[ILFSV].*\n\.$"
"""Control characters but tabs and line breaks, or a pickle of protocol 0."""
_PICKLE = re.compile(rb"(?s)(\x80[\x02-\x05]|[ILFSV].*\n).*\.$")


def read_texts(texts: pa.ChunkedArray, is_label: bool = False) -> pa.ChunkedArray:
    """Return a column of texts as what it holds. Booleans of labels stay text, since they are two classes."""
    if _all_match(texts, _WHOLE):
        numbers = whole_numbers(_known(texts))
        if numbers.null_count == len(numbers):
            return pa.chunked_array([pa.nulls(len(texts))])
        return numbers if pa.types.is_integer(numbers.type) else texts
    if _all_match(texts, _NUMBER) and _any_matches(texts, _SURE) and _any_matches(texts, "[0-9]"):
        return _known(texts).cast(pa.float64())
    if not _all_match(texts, _BOOLEAN):
        return texts
    words = _known(texts)
    if not is_label:
        return pc.equal(pc.utf8_lower(words), "true")
    return words if len(words.unique().drop_null()) <= 2 else pc.utf8_lower(words)


def whole_numbers(texts: Any) -> Any:
    """Texts as int64 if all of them are whole numbers, written as a program prints them; otherwise unchanged."""
    if not pc.all(pc.match_substring_regex(texts, _WHOLE), min_count=0).as_py():
        return texts
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:  # more than 64 bits
        return texts


def unquoted(texts: Any, separators: str) -> Any:
    r"""Texts without the quotes around them, if all of them have some: ``"Yes, we can"``, with ``""`` or ``\\"`` for
    quotes within.

    Args:
        texts: the texts, without nulls.
        separators: if some have none, take those from the others that need them, for one of these or a quote within.
    """
    inside = pc.utf8_slice_codeunits(texts, 1, -1)
    in_quotes = pc.match_substring_regex(texts, r'(?s)^".*"$')
    doubled, escaped = (pc.match_substring_regex(inside, pattern) for pattern in (_DOUBLED, _ESCAPED))
    if pc.all(in_quotes, min_count=0).as_py():
        if pc.all(doubled).as_py():
            return pc.replace_substring(inside, '""', '"')
        if pc.all(escaped).as_py():
            return pc.replace_substring_regex(inside, r'\\(["\\])', r"\1")
        return inside if pc.any(pc.or_(doubled, escaped)).as_py() else texts
    needed = pc.and_(pc.and_(in_quotes, doubled), pc.match_substring_regex(inside, f'[{separators}"]'))
    return pc.if_else(needed, pc.replace_substring(inside, '""', '"'), texts)


def lost_spelling(texts: pa.ChunkedArray) -> str | None:
    """The first of the decimals in a column whose number is printed otherwise."""
    for chunk in texts.chunks:
        known = _known(chunk)
        lost = known.filter(pc.match_substring_regex(known, _SPELLING_LOST))
        if len(lost):
            return str(lost[0])
    return None


def as_type(name: str, column: pa.ChunkedArray, kind: ValueType) -> pa.ChunkedArray:
    """Return the column `name` as the type that --column-type gives it; "class" is text here. Raises SourceError for a
    value that is not of that type."""
    option = f"--column-type {name}:{kind}"
    wanted = _KINDS.get(kind, pa.large_string())
    if pa.types.is_large_string(column.type) or pa.types.is_string(column.type):
        return column if kind in ("text", "class") else _as_numbers(column, kind, option)
    if pa.types.is_floating(column.type) and kind in ("text", "class"):
        raise SourceError(f"{option}: it holds {column.type}, which keeps no spelling; store it as text")
    try:
        return column.cast(wanted)
    except pa.ArrowException:
        raise SourceError(f"{option}: it holds {column.type}, with values that cannot be {kind}") from None


def _as_numbers(texts: pa.ChunkedArray, kind: ValueType, option: str) -> pa.ChunkedArray:
    known = _known(texts)
    plain = pc.replace_substring_regex(known, r"^\+|\.0*$" if kind == "int" else r"^\+", "")
    fits = pc.match_substring_regex(known, _GIVEN[kind])
    with suppress(pa.ArrowInvalid):
        if pc.all(fits, min_count=0).as_py():
            return plain.cast(_KINDS[kind])
    # What fits is cast but for whole numbers of more than 64 bits.
    row = next(
        i
        for i, (text, fit) in enumerate(zip(plain.to_pylist(), fits.to_pylist(), strict=True))
        if text is not None and not (fit and (kind == "float" or -(2**63) <= int(text) < 2**63))
    )
    wanted = {"int": "a whole number of at most 64 bits", "float": "a number"}[kind]
    raise SourceError(f"{option}: row {row + 1:,} has {texts[row].as_py()[:80]!r}, expected {wanted}")


def label_texts(labels: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return booleans and bytes as texts, which name classes; other labels as they are. Raises SourceError for bytes
    that are no UTF-8 text."""
    kind = labels.type
    if pa.types.is_boolean(kind):
        return labels.cast(pa.large_string())
    if not (pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)):
        return labels
    labels = labels.cast(pa.large_binary())
    try:
        return labels.cast(pa.large_string())
    except pa.ArrowInvalid:
        raise no_text(next(one for one in labels.to_pylist() if one is not None and as_text(one) is None)) from None


def as_text(value: bytes) -> str | None:
    """Return UTF-8 text; None for other bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def no_text(value: bytes) -> SourceError:
    """The error for a label that is bytes."""
    like = looks_like(value)
    return SourceError(
        f"the label {repr(value)[:80]} is not text{f': it looks like {like}' if like else ''}; write labels as text, "
        "such as '1' or 'cat'"
    )


def looks_like(value: bytes) -> str | None:
    """What bytes look like that should be a text and are none; None for nothing known."""
    if _PICKLE.match(value):
        return "a Python pickle"
    if value.startswith(b"\x93NUMPY"):
        return "a NumPy array"
    if len(value) == 1 and value < b" ":
        return f"an 8-bit integer, {value[0]}"
    if len(value) not in (2, 4, 8):
        return None
    bits = 8 * len(value)
    orders: tuple[Literal["little", "big"], ...] = ("little", "big")
    for order in orders:
        whole = int.from_bytes(value, order, signed=True)
        if abs(whole) < 1 << bits * 3 // 4:
            return f"a {order}-endian {bits}-bit integer, {whole}"
        if bits > 16:
            real = struct.unpack(f"{'<' if order == 'little' else '>'}{'f' if bits == 32 else 'd'}", value)[0]
            if 1e-6 < abs(real) < 1e9:
                return f"a {order}-endian {bits}-bit float, {real:g}"
    return None


def are_no_texts(texts: Any) -> Any:
    """Which texts are none but bytes that happen to be UTF-8, such as a packed number."""
    return pc.match_substring_regex(texts, _NO_TEXT)


def _known(texts: Any) -> Any:
    """Texts without blanks around them; null where a number would be missing."""
    plain = pc.ascii_trim(texts, " \t")
    missing = pc.or_(pc.is_in(plain, _NULLS.cast(texts.type)), pc.equal(texts, ""))
    return pc.if_else(missing, pa.scalar(None, texts.type), plain)


def _all_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    """Whether all values but missing ones match. Ends at the first chunk of which one does not."""
    return all(pc.all(_matches(chunk, pattern), min_count=0).as_py() for chunk in texts.chunks)


def _any_matches(texts: pa.ChunkedArray, pattern: str) -> bool:
    return any(pc.any(_matches(chunk, pattern), min_count=0).as_py() for chunk in texts.chunks)


def _matches(chunk: pa.Array, pattern: str) -> pa.Array:
    return pc.match_substring_regex(_known(chunk), pattern)
