"""What a column of texts holds: numbers that a program would print so, booleans, or text."""

from __future__ import annotations

import pickle
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.errors import PresizeWarning, SourceError
from presize.options import ValueType
from presize.sources.columns import as_type, looks_like, lost_spelling, read_texts
from presize.sources.table import read_table


def column(*texts: str) -> pa.ChunkedArray:
    return pa.chunked_array([[text] for text in texts], pa.string())  # a chunk each


@pytest.mark.parametrize(
    ("texts", "values", "reason"),
    [
        (["1", "-20", "0"], [1, -20, 0], "whole numbers"),
        ([" 5", "6\t"], [5, 6], "blanks around them"),
        (["", "NA", "7"], [None, None, 7], "missing ones"),
        (["", "NA"], [None, None], "nothing but missing ones"),
        (["0.5", "12.0", "7"], [0.5, 12.0, 7.0], "decimals"),
        (["1e-05", "1e+20", "-1.5E-07", "2"], [1e-05, 1e20, -1.5e-07, 2.0], "exponents as most languages print them"),
        (["3.0E7", "1.0e10"], [3e7, 1e10], "as Java and Julia do"),
        (["0.000000e+00", "-1.500000e-03"], [0.0, -0.0015], "as C does"),
        (["inf", "-Infinity", "0.5"], [float("inf"), -float("inf"), 0.5], "infinities among numbers"),
        (["3.10", ".5", "5."], [3.1, 0.5, 5.0], "decimals, however many zeros"),
        (["  nan", "   0.5", "NAN", "+nan"], [None, 0.5, None, None], "missing ones as C prints them, with blanks"),
        (["12345678901234568", "1.5"], [12345678901234568.0, 1.5], "as many digits as %.17g prints"),
        (["+0.50", "-0.25"], [0.5, -0.25], "decimals with a plus, as %+.2f prints them"),
        (["1e20", "1.5e300", "0.5"], [1e20, 1.5e300, 0.5], "as Polars and MySQL print large ones"),
        (["-0", "0.5"], [-0.0, 0.5], "a negative zero among decimals"),
        (["true", "FALSE", ""], [True, False, None], "booleans"),
    ],
)
def test_numbers_that_a_program_would_print_so_are_numbers(texts: list[str], values: list[Any], reason: str) -> None:
    assert read_texts(column(*texts)).to_pylist() == values, reason


@pytest.mark.parametrize(
    "texts",
    [
        ["12E5", "3e7"], ["1e300", "7"], ["1E5", "0.5"], ["007", "7"], ["-007", "1"], ["00.5", "1.5"], ["-0", "1"],
        ["2021-03-04"], ["12:30", "1:05"], ["12:30:01"], ["2021-03-04T12:00"], ["2021-03-04 12:00:00.5", ""],
        ["+5", "6"], ["0x1F", "3"], ["0b1", "1"], ["1_000", "5"], ["1,000", "5"], ["1 000"], ["5%", "6%"], ["1/2", "1"],
        ["12345678901234567890", "5"], ["12345678901234567890", "0.5"], ["9223372036854775808", "", "NA"],
        ["inf", "nan"], ["1.#INF", "0.5"], ["\u0665", "5"], ["1d5"], ["1e", "2"], ["0", "1", "true"],
        ["tRUE", "false"], ["NA", "US"], ["1e20", "5e17"], ["1e14", "0.5"], ["+5", "0.5"],
        ["123456789012345678", "0.5"], ["1", " "],
    ],
    ids=lambda texts: " ".join(texts),
)  # fmt: skip
def test_texts_that_look_like_numbers_stay_text(texts: list[str]) -> None:
    assert read_texts(column(*texts)).to_pylist() == texts


@given(st.lists(st.text("0123456789.eE+-:x ", max_size=6), min_size=1, max_size=4))
def test_a_column_is_kept_or_its_numbers_are_what_is_written(texts: list[str]) -> None:
    found = read_texts(column(*texts))
    if not pa.types.is_string(found.type):
        for text, value in zip(texts, found.to_pylist(), strict=True):
            assert (value is None) == (text == "")
            if value is not None:
                assert value == float(text)
                assert str(value) == text.strip() if isinstance(value, int) else not text.strip(" -").startswith("00")


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1) | st.lists(st.floats(allow_nan=False), min_size=1))
def test_numbers_that_python_prints_come_back(numbers: list[int] | list[float]) -> None:
    if any(np.isfinite(number) for number in numbers):
        texts = column(*map(repr, numbers))
        found = read_texts(texts)
        assert found.to_pylist() == numbers
        assert not pa.types.is_floating(found.type) or lost_spelling(texts) is None


@pytest.mark.parametrize(
    "text", ["3.10", "12.00", "0.50", "+0.5", ".5", "5.", "-1.20", "0.1234567890123456789", "9007199254740993"]
)
def test_a_decimal_that_would_be_printed_otherwise_is_found(text: str) -> None:
    assert lost_spelling(column("7", "0.5", text)) == text


@pytest.mark.parametrize("text", ["3.1", "12.0", "0.05", "10.0", "100", "1e-05", "0.30000000000000004", "-0.25"])
def test_a_decimal_that_is_printed_as_it_is_written_is_none(text: str) -> None:
    assert lost_spelling(column(text)) is None


# In a table


def labels(folder: Path, *texts: str, types: dict[str, ValueType] | None = None) -> list[Any]:
    (folder / "t.csv").write_text("path,label\n" + "".join(f"{i}.png,{text}\n" for i, text in enumerate(texts)))
    return read_table(folder / "t.csv", types=types or {}).column("label").to_pylist()


def test_decimals_that_lose_their_spelling_are_said_with_the_option(tmp_path: Path) -> None:
    with pytest.warns(PresizeWarning) as said:
        assert labels(tmp_path, "1.50", "3.10", "12.00") == [1.5, 3.1, 12.0]
    (warning,) = said
    assert str(warning.message) == (
        f"labels '{tmp_path}/t.csv': '1.50' in column 'label' is read as the number 1.5, not a class; --column-type "
        "label:text keeps texts as they are written, --column-type label:float reads numbers without this warning"
    )


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        ("text", ["1.50", "007", "x"], ["1.50", "007", "x"]),
        ("class", ["10", "9"], ["10", "9"]),
        ("int", ["007", "+5", "-1", "2.0"], [7, 5, -1, 2]),
        ("float", ["1.50", "12E5", "+5", "007"], [1.5, 1.2e6, 5.0, 7.0]),
    ],
)
def test_a_column_has_the_type_that_it_is_given_and_nothing_is_said(
    kind: ValueType, texts: list[str], values: list[Any], tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert labels(tmp_path, *texts, types={"label": kind}) == values


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("int", "12E5", "a whole number of at most 64 bits"),
        ("int", "1.5", "a whole number of at most 64 bits"),
        ("int", "9" * 20, "a whole number of at most 64 bits"),
        ("int", "0x1F", "a whole number of at most 64 bits"),
        ("float", "1,5", "a number"),
        ("float", "12:30", "a number"),
    ],
)
def test_a_value_of_another_type_is_named_with_its_row(
    kind: ValueType, text: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError) as caught:
        labels(tmp_path, "1", "", f'"{text}"', types={"label": kind})
    assert str(caught.value) == f"--column-type label:{kind}: row 3 has {text!r}, expected {expected}"


def test_a_type_is_for_a_column_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"^--column-type lable:int: there is no such column; there are label$"):
        labels(tmp_path, "1", types={"lable": "int"})


def test_columns_that_have_a_type_already_are_cast_where_nothing_is_lost() -> None:
    whole, real = (pa.chunked_array([pa.array([1, 20], kind)]) for kind in (pa.int32(), pa.float32()))
    assert as_type("n", whole, "class").to_pylist() == ["1", "20"]
    assert as_type("n", real, "int").to_pylist() == [1, 20]
    with pytest.raises(SourceError, match="it holds float, which keeps no spelling; store it as text"):
        as_type("n", real, "text")
    with pytest.raises(SourceError, match="it holds float, with values that cannot be int"):
        as_type("n", pa.chunked_array([pa.array([1.5], pa.float32())]), "int")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_booleans_and_bytes_as_labels_name_classes(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t.{suffix}"
    if suffix == "jsonl":
        path.write_text('{"path": "a", "label": true}\n{"path": "b", "label": false}\n')
        assert read_table(path).column("label").to_pylist() == ["true", "false"]
    else:
        pa.parquet.write_table(pa.table({"path": ["a", "b"], "label": [b"cat", b"d\xc3\xb6g"]}), path)
        assert read_table(path).column("label").to_pylist() == ["cat", "dög"]
        pa.parquet.write_table(pa.table({"path": ["a", "b"], "label": [b"cat", b"\x80\x03K\x01."]}), path)
        with pytest.raises(SourceError, match=r"the label b'.x80.x03K.x01.' is not text: it looks like a Python pick"):
            read_table(path)


# Bytes


@pytest.mark.parametrize(
    ("value", "like"),
    [
        (struct.pack("<I", 1), "a little-endian 32-bit integer, 1"),
        (struct.pack("<i", -3), "a little-endian 32-bit integer, -3"),
        (struct.pack(">I", 7), "a big-endian 32-bit integer, 7"),
        (np.int64(300).tobytes(), "a little-endian 64-bit integer, 300"),
        (struct.pack("<H", 5), "a little-endian 16-bit integer, 5"),
        (b"\x03", "an 8-bit integer, 3"),
        (struct.pack("<f", 2.5), "a little-endian 32-bit float, 2.5"),
        (struct.pack(">d", 0.1), "a big-endian 64-bit float, 0.1"),
        (pickle.dumps(5), "a Python pickle"),
        (pickle.dumps(5, 0), "a Python pickle"),
        (b"\x93NUMPY\x01", "a NumPy array"),
        (b"\xff", None),
        (b"cat", None),
    ],
)
def test_bytes_that_are_no_text_are_recognized(value: bytes, like: str | None) -> None:
    assert looks_like(value) == like
