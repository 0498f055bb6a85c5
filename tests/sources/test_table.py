"""Label tables: accepted and refused contents, columns of texts, and that equal values have equal bytes."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import pickle
import struct
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from presize.builder.plan import table_digest
from presize.errors import PresizeWarning, SourceError
from presize.options import ValueType
from presize.sources.columns import as_type, looks_like, lost_spelling, plain_column, read_texts
from presize.sources.labels import naming
from presize.sources.table import read_table
from presize.store.index import INDEX_COLUMNS
from processes import run_python


def write(folder: Path, name: str, content: str | bytes) -> Path:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / name


def parquet(folder: Path, table: pa.Table, **options: Any) -> Path:
    pa.parquet.write_table(table, folder / "labels.parquet", **options)
    return folder / "labels.parquet"


def jsonl(folder: Path, *rows: dict[str, Any]) -> Path:
    return write(folder, "labels.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def column_types(table: pa.Table) -> dict[str, str]:
    return {field.name: str(field.type) for field in table.schema}


# Accepted tables


NUMBER = {"path": ["a"], "n": [1]}
TEXTS = {"path": ["a"], "n": [1], "text": ["x"]}
QUOTED = {"path": ["my a.jpg", "b.jpg"], "label": ["cat", "dog"]}
QUOTES: list[tuple[str, list[Any], str]] = [
    ('a.png, "Yes, we can"\nb.png, "No"\n', ["Yes, we can", "No"], "all are quoted, as in ICDAR's lists"),
    ('\ufeffa.png, "say \\"hi\\""\r\nb.png, "C:\\\\d"\r\n', ['say "hi"', "C:\\d"], "quotes with backslashes"),
    ('a.png,"say ""hi"""\nb.png,"x"\n', ['say "hi"', "x"], "doubled quotes"),
    ('a.png, "see b.jpg, there"\nb.png, "x"\n', ["see b.jpg, there", "x"], "the name of an image in a label"),
    ('a.png, "5" disk"\nb.png, "x"\n', ['5" disk', "x"], "a quote that is not escaped"),
    ('a.png,cat\nb.png,"x, y"\n', ["cat", "x, y"], "only where they are needed"),
    ('a.png\t"Yes"\nb.png\t"No"\n', ["Yes", "No"], "behind tabs"),
    ('a.png, "7"\nb.png, "8"\n', [7, 8], "numbers, as in CSV"),
    ('a.png\t"Yes"\nb.png\tNo\n', ['"Yes"', "No"], "a quoted text among others"),
    ('a.png, "\nb.png, x\n', ['"', "x"], "a single quote"),
    ("a.png 0x10\nb.png 5\n", ["0x10", "5"], "no number in hexadecimal digits"),
]
"""Quotes around the labels of a list are not part of them."""
READ: list[tuple[str, str, dict[str, list[Any]], str]] = [
    ("a.csv", "path,n\na,1\n", NUMBER, "as usual"),
    ("a.csv", "path,n\r\na,1\r\nb,2\r\n", {"path": ["a", "b"], "n": [1, 2]}, "from Windows"),
    ("a.csv", "\ufeffpath,n\na,1\n", NUMBER, "with a byte order mark"),
    ("a.csv", 'path,n\n"a,b",1\n', {"path": ["a,b"], "n": [1]}, "a comma in quotes"),
    ("a.csv", 'path,n\n"a\nb",1\n', {"path": ["a\nb"], "n": [1]}, "a newline in quotes"),
    ("a.csv", "path,n\n007,1\n1e3,2\n", {"path": ["007", "1e3"], "n": [1, 2]}, "paths are text in any case"),
    ("a.csv", "path,label\na,True\nb,TRUE\nc,false\n", {"path": ["a", "b", "c"], "label": ["true", "true", "false"]},
     "booleans as labels are two classes"),
    ("a.csv", "path,label\na,True\nb,False\n", {"path": ["a", "b"], "label": ["True", "False"]}, "as they are written"),
    ("a.csv", "path,n\nNA,1\nnull,2\n", {"path": ["NA", "null"], "n": [1, 2]}, "no path is a null"),
    ("a.csv", "path,n\n caté 🐈,1\n", {"path": [" caté 🐈"], "n": [1]}, "spaces and emoji"),
    ("a.csv", "n,filename\n1,007\n", {"n": [1], "path": ["007"]}, "the column of paths goes by three names"),
    ("a.jsonl", '{"n": 1, "file_name": "007"}\n', {"n": [1], "path": ["007"]}, "and in JSON"),
    ("a.csv", "filename,path\nx,a\n", {"filename": ["x"], "path": ["a"]}, "of path and filename the path"),
    ("a.csv", "path;n;text\na;1;x\n", TEXTS, "semicolons, as a spreadsheet in Europe writes"),
    ("a.csv", "\ufeffsep=;\r\npath;n;text\r\na;1;x\r\n", TEXTS, "Excel's line that declares the separator"),
    ("a.csv", 'sep=;\npath; text, more\na; "1;2"\n', {"path": ["a"], "text, more": ["1;2"]}, "a name with a comma"),
    ("a.csv", "path\tn\ttext\na\t1\tx\n", TEXTS, "tabs"),
    ("a.csv", "path|n|text\na|1|x\n", TEXTS, "bars"),
    ("a.csv", "path;n;text\na;1;x\nb;;\n;;\n;;\n", {"path": ["a", "b"], "n": [1, None], "text": ["x", ""]},
     "rows of separators, as a spreadsheet leaves them at its end"),
    ("a.csv", "path,text;more\na,1;2\n", {"path": ["a"], "text;more": ["1;2"]}, "another separator in a name"),
    ("a.tsv", 'path\ttext\na\t"1, 2;\t3"\n', {"path": ["a"], "text": ["1, 2;\t3"]}, "separators in a value"),
    ("a.csv", "path, n, label,caption\na, 1, cat, sits\nb, 2, dog,runs\n",
     {"path": ["a", "b"], "n": [1, 2], "label": ["cat", "dog"], "caption": [" sits", "runs"]},
     "a blank behind each separator is no part of a name or a text"),
    *((name, text, {"path": ["a.jpg", "b.jpg"], "label": labels}, "codes of digits are texts")
      for labels in (["0002", "7"], [2, 7])
      for name, text in (("a.csv", "path,label\na.jpg,{}\nb.jpg,{}\n".format(*labels)),
                         ("a.txt", "a.jpg\t{}\nb.jpg\t{}\n".format(*labels)))),
    ("a.csv", 'path, label\na, "Yes, we can"\n', {"path": ["a"], "label": ["Yes, we can"]}, "quotes behind a blank"),
    ("a.csv", 'path, "label"\na, "say ""hi"", or"\n', {"path": ["a"], "label": ['say "hi", or']}, "quotes in those"),
    *((f"a.{suffix}", '{"path": "a"}\n', {"path": ["a"]}, "JSON lines go by several names")
      for suffix in ("jsonl", "ndjson", "json", "JSONL")),
    ("a.jsonl", '\ufeff{"path": "a"}\r\n\r\n{"path": "b"}', {"path": ["a", "b"]}, "from Windows"),
    ("a.jsonl", '{"path": "a"}\n{"n": 1, "path": "b"}\n', {"path": ["a", "b"], "n": [None, 1]}, "a late key"),
    ("a.jsonl", '{"path": "2020-01-01"}\n', {"path": ["2020-01-01"]}, "text that looks like a date is text"),
    ("a.jsonl", '{"path": "a\u2028b"}\n', {"path": ["a\u2028b"]}, "a line ends with a newline and nothing else"),
    ("a.jsonl", '{"path": "\\ud83d\\udc08"}\n', {"path": ["🐈"]}, "an escaped emoji"),
    ("a.jsonl", '{"path": "a", "n": 9223372036854775807}\n', {"path": ["a"], "n": [2**63 - 1]}, "exact whole numbers"),
    ("a.jsonl", '{"path": "a", "n": 1}\n{"path": "b", "n": 1.5}\n', {"path": ["a", "b"], "n": [1.0, 1.5]}, "mixed"),
    ("a.jsonl", '{"path": "a", "l": [null, 1]}\n', {"path": ["a"], "l": [[None, 1]]}, "pyarrow's reader gets it wrong"),
    ("a.jsonl", '{"path": "a", "l": [[], null, ["x"]]}\n', {"path": ["a"], "l": [[[], None, ["x"]]]}, "lists of lists"),
    ("a.txt", "a.jpg\nb.png\n", {"path": ["a.jpg", "b.png"]}, "a path in each line"),
    ("a.txt", "\ufeffa.jpg\r\n\r\n b.png \r\n", {"path": ["a.jpg", "b.png"]}, "from Windows, with blank lines"),
    ("a.txt", "a b.jpg\n,c\n", {"path": ["a b.jpg", ",c"]}, "spaces and commas are part of a name"),
    ("a.txt", "cat 1\ncat 2\n", {"path": ["cat 1", "cat 2"]}, "a name without the suffix of an image has no label"),
    *((f"a.{suffix}", text, {"path": ["c/a.jpg", "b.jpg"]}, "as find prints them") for suffix, text in (
        ("txt", "./c/a.jpg\n././/b.jpg\n"), ("csv", "path\n./c/a.jpg\n././/b.jpg\n"),
        ("jsonl", '{"path": "./c/a.jpg"}\n{"path": "././/b.jpg"}\n'))),
    ("a.txt", "# ours: a.jpg\n#Image CLASS\na.jpg 1\n#b.jpg 2\n", {"path": ["a.jpg", "#b.jpg"], "label": [1, 2]},
     "a line that begins with # is a comment, unless that is the name of an image"),
    ("a.csv", "path,n,,\na,1,,\nb,2,,\n", {"path": ["a", "b"], "n": [1, 2]}, "empty columns behind the last"),
    ("a.csv", "path,n\na,1\n,NA\n,\n", {"path": ["a"], "n": [1]}, "rows of nothing below the last"),
    ("a.csv", ",path\n0,a\n", {"": [0], "path": ["a"]}, "one that pandas writes in front"),
    ("a.csv", "id,breed\n0,x\n1,y\n", {"path": ["0", "1"], "breed": ["x", "y"]}, "Kaggle's ids are paths"),
    ("a.txt", "a.jpg 3\nb.JPEG 12\n", {"path": ["a.jpg", "b.JPEG"], "label": [3, 12]}, "numbers, as ImageNet's"),
    ("a.txt", "my a.jpg 1\n", {"path": ["my a.jpg"], "label": [1]}, "a space in the name, too"),
    ("a.txt", "a.jpg/b.jpg x\n", {"path": ["a.jpg/b.jpg"], "label": ["x"]}, "the last suffix ends the path"),
    ("a.txt", "a.jpg 1.jpg\n", {"path": ["a.jpg 1.jpg"]}, "a line that is a name is no label"),
    ("a.txt", "a\tcat\nb\t\tblack dog\n", {"path": ["a", "b"], "label": ["cat", "black dog"]}, "tabs, for any name"),
    *(("gt.txt", text, {"path": ["a.png", "b.png"][: len(labels)], "label": labels}, reason)
      for text, labels, reason in QUOTES),
    ("a.txt", '"a, b.png", "text"\n"c.png", "d"\n', {"path": ["a, b.png", "c.png"], "label": ["text", "d"]}, "quotes"),
    ("a.txt", '"my a.jpg" cat\nb.jpg dog\n', QUOTED, "quotes around some paths"),
    ("a.txt", '"a b.jpg"\nc.jpg\n', {"path": ["a b.jpg", "c.jpg"]}, "quotes around a path alone"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "expected", "reason"), READ)
def test_a_table_is_read(name: str, text: str, expected: dict[str, list[Any]], reason: str, tmp_path: Path) -> None:
    assert read_table(write(tmp_path, name, text)).to_pydict() == expected, reason


@pytest.mark.parametrize(
    ("text", "column", "row"),
    [
        ('path,label\na,"x\nb,y\nc,y\n', "label", 1),
        ('path,label\na,x\nb,"y\nc,y', "label", 2),
        ('path,label\na,"x\nb,"y\nc,y\n', "label", 1),
        ('path,caption\na,x\nb,"a ""cat"" on\nc,y\n', "caption", 2),
        ('path,caption\na.jpg,"x\nb.jpg,y\nc.jpg,"x\nd.jpg,y\n', "caption", 1),
        ('path;n;caption;m\na.JPG;1;x;2\nb.JPG;1;"x;2\r\nc.JPG;1;"x;2\n', "caption", 2),
        ('caption,path\n"x,a.jpg\n"x,b.jpg\ny,c.jpg\n', "caption", 1),
        ('n, caption, path, m\n1, "x, a.jpg, 2\n1, y, b.jpg, 2\n1, "x, c.jpg, 2\n', "caption", 1),
    ],
)
def test_a_quote_that_is_not_closed_is_an_error_and_takes_no_rows(
    text: str, column: str, row: int, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=f"column '{column}' in row {row} .* a line break after .* close the quote"):
        read_table(write(tmp_path, "labels.csv", text))


@pytest.mark.parametrize(
    "text",
    [
        'path,label\na,"b\nc"\n',
        'path,caption\na,"b ""c"\n',
        'path,caption\na,"b\nc"\n',
        'path,caption\na,"b\nc ""d"""',
        'path,caption\na.jpg,"b.jpg, c.jpg,\nd.jpg"\n',
        'caption,path\n"b\nc, d.jpg",a.jpg\n',
    ],
)
def test_quotes_and_line_breaks_in_the_last_row_are_read(text: str, tmp_path: Path) -> None:
    assert read_table(write(tmp_path, "labels.csv", text)).num_rows == 1


def test_the_type_of_a_csv_column_depends_on_all_of_it(tmp_path: Path) -> None:
    text = "path,n\n" + "".join(f"{i:060},{i}\n" for i in range(40_000)) + "last,many\n"
    table = read_table(write(tmp_path, "labels.csv", text))
    assert len(text) > 2 * 2**20, "more than pyarrow reads at once"
    assert column_types(table)["n"] == "large_string"


@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "\n"]), inner),
            max_leaves=5,
        ),
        max_size=4,
    ),
    piece=st.integers(1, 4),
)
def test_any_json_is_a_table_or_a_one_line_error(rows: list[Any], piece: int, tmp_path: Path) -> None:
    path = jsonl(tmp_path, *({"path": str(i), "value": value} for i, value in enumerate(rows)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("presize.sources.table.JSON_ROWS_AT_ONCE", piece)
        try:
            table = read_table(path)
        except SourceError as error:
            assert str(error).isprintable()
            return
    table.validate(full=True)
    assert table_digest(table) == table_digest(read_table(path)), "for any number of rows read at once"


# Parquet


def test_columns_of_parquet_have_their_logical_values_without_a_writers_extra_columns(tmp_path: Path) -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6, dtype=np.int32).reshape(2, 3))
    day = datetime.datetime(2020, 2, 29, 12, tzinfo=datetime.UTC)
    columns = {
        "path": (pa.array(["a", "b"]), "large_string"),
        "many": (pa.array([2**64 - 1, None], pa.uint64()), "uint64"),
        "price": (pa.array([decimal.Decimal("1.50"), None], pa.decimal128(5, 2)), "decimal128(5, 2)"),
        "when": (pa.array([day, None], pa.timestamp("us", "UTC")), "timestamp[us, tz=UTC]"),
        "raw": (pa.array([b"\xff\0", None]), "large_binary"),
        "box": (pa.array([[0.5, 1.0], None], pa.list_(pa.float32())), "large_list<item: float>"),
        "kind": (pa.array(["dog", None]).dictionary_encode(), "large_string"),
        "tensor": (tensors, "large_list<item: int32>"),
    }
    written = pa.table({name: column for name, (column, _) in columns.items()})
    path = pa.field("path", pa.string(), nullable=False, metadata={"note": "private"})
    schema = written.schema.set(0, path).with_metadata({"pandas": "{}"})
    (tmp_path / "split=train").mkdir()  # a partition to other readers
    table = read_table(parquet(tmp_path / "split=train", written.cast(schema)))
    assert table.to_pydict() == written.to_pydict()
    assert column_types(table) == {name: kind for name, (_, kind) in columns.items()}
    assert table.schema.metadata is None and not any(field.metadata or not field.nullable for field in table.schema)


# Refused tables


def columns(**values: list[Any]) -> Callable[[Path], Path]:
    return lambda folder: parquet(folder, pa.table(values))


def file(name: str, content: str | bytes) -> Callable[[Path], Path]:
    return lambda folder: write(folder, name, content)


csv, json_lines, txt = (partial(file, name) for name in ("labels.csv", "labels.jsonl", "train.txt"))


def made(make: Callable[[Path], object], name: str) -> Callable[[Path], Path]:
    """Return a function that applies `make` to a path."""
    return lambda folder: (make(folder / name), folder / name)[1]


TIMES = [
    (pa.array([1, 2000], pa.timestamp("ns")), "timestamp[ns]"),
    (pa.array([[1]], pa.list_(pa.timestamp("ns"))), "list<item: timestamp[ns]>"),
    (pa.array([1], pa.time64("ns")), "time64[ns]"),
    (pa.array([1], pa.duration("ns")), "duration[ns]"),
    (pa.array([10**12], pa.timestamp("s")), "a date after the year 9999"),
    (pa.array([0], pa.timestamp("s", tz="Mars/Olympus")), "an unknown time zone"),
]

NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
MAP = pa.array([[("key", 1)]], pa.map_(pa.string(), pa.int64()))
GARBAGE = bytes(range(256)) * 64

REFUSED = [
    (lambda folder: folder / "labels.csv", "No such file or directory; expected a readable file: an abs", "not there"),
    (lambda folder: folder / "la\nbels.csv", r"la\nbels.csv': No such file", "a name that breaks lines"),
    (lambda folder: folder / ("x" * 300 + ".csv"), "File name too long", "no file system has it"),
    (made(os.mkfifo, "labels.csv"), "it is not a regular file", "opening it would wait for ever"),
    (made(Path.mkdir, "labels.parquet"), "Is a directory", "a folder of Parquet files is not one table"),
    (file("labels.xml", "path\na\n"), "ends with .csv, .tsv, .txt, .jsonl, .ndjson", "unknown"),
    (file("labels.parquet", GARBAGE), "Parquet magic bytes not found", "not Parquet"),
    *((file(f"labels.{suffix}", ""), "it is empty; expected the paths of images", "nothing at all")
      for suffix in ("csv", "jsonl", "txt", "parquet")),
    (csv("sep=;\npath;n\na;1\nb\n"), "row 2 has 1 value, but the header has 2 columns: 'b'; an empty value also needs "
     "its ';'", "rows are counted after the header"),
    (csv(bytes(5000)), "it is UTF-16 text or binary data", "zeros"),
    (csv("path,n\n\na,1\nb,2,\x1b[31m\n"),
     r"row 2 has 3 values, but the header has 2 columns: 'b,2,\x1b[31m'; put quotes around a value that contains ','",
     "terminal codes stay text"),
    (csv("path;n\n" + "a;1\n" * 300_000 + "b\n"),
     "row 300,001 has 1 value, but the header has 2 columns: 'b'; an empty value also needs its ';'",
     "a cell is missing"),
    (csv("path,n\na,1,\nb,2,\n"), "row 1 has 3 values, but the header has 2 columns: 'a,1,'; also end the header with "
     "','", "empty cells behind the last column"),
    (csv("cats/1.jpg,cat\ncats/2.jpg,cat\n"), "its first line is not a header: 'cats/1.jpg, cat'; expected the names "
     "of the columns, such as path,label", "a table without a header"),
    (csv("# ours\n# v2\npath,label\na,1\n"), "its first line is a comment: '# ours'; a table begins with the "
     "names of its columns, such as path,label: remove the lines above them", "comments"),
    (csv(b"path,n\n\xff,1\n"), "column 'path' is not UTF-8 text; save the table as UTF-8", "Latin-1"),
    (csv(b"path,label\na,caf\xe9\n"), "column 'label' is not UTF-8 text", "Latin-1 in labels"),
    (csv("path,label\n"), "it lists no samples", "a header alone"),
    (csv("file,label\na,1\n"), "no path column (called path, filename or file_name); it has 'file', 'lab", "another"),
    (csv(",".join(f"{i:030}" for i in range(999)) + "\n"), "'000000000000000000000000000000', ", "a thousand columns"),
    (csv("path,n,n\na,1,2\n"), "it has the column 'n' more than once", "which of the two?"),
    (csv("Path;n\na;2\n"), "it has 'Path', 'n'; rename the column of the paths to path", "by the likeliest separator"),
    (csv("path;n\na;1\n;2\n"), "1 of 2 rows have no path; the first is row 2", "an empty path at the end"),
    (csv("path,n\n,1\na,2\n,3\n"), "2 of 3 rows have no path; the first is row 1", "an empty path"),
    *((file(f"labels.{suffix}", "path,label\ncats/1.jpg,cat\n".encode(code)),
       "it is UTF-16 text or binary data; save it as UTF-8 text", "a spreadsheet's Unicode text")
      for suffix in ("csv", "tsv", "txt", "jsonl") for code in ("utf-16", "utf-16-le", "utf-16-be")),
    (csv("path,label,,\na,1,x,\nb,2,,y\n"), "it has 2 columns with values but without a name; name", "which?"),
    (csv("id,image\n1,a\n"), "columns 'image' and 'id'; rename the one with the paths to path", "which of the two?"),
    (json_lines('{"images": [], "annotations": [], "categories": []}\n'),
     "it is a COCO annotation file, one object for all images; expected one object per image, each on its own line: d",
     "instances_val2017.json"),
    (txt("3\na.jpg 1\nb.jpg 2\n"), "1 of 3 lines have no label, such as '3'", "a count of lines that is another"),
    (txt("a.jpg -1  1 1\nb.jpg  1 -1 1\n"), "each line has several values after its path, such as 'a.jpg -1  1 1'; "
     "expected one label; save columns as CSV, with a header such as path,label,x, or", "CelebA's attributes"),
    (txt("a.jpg\tn01\t0\t32\nb.jpg\tn02\t9\t8\n"),
     r"each line has several values after its path, such as 'a.jpg n01\t0\t32'; expected one label; save",
     "Tiny ImageNet's boxes"),
    (json_lines("{}\n"), "no path column (called path, filename or file_name); it has none", "no columns"),
    (json_lines('{"path": "a"}\n{"path": \n'), "line 2 is not JSON: Expecting value", "a line cut short"),
    (json_lines('[{"path": "a"}]\n'), "line 1 is not a JSON object; expected one object per line, as jq -c '.[]' mak",
     "one array of all"),
    (json_lines('[\n {"path": "a"}\n]\n'), "line 1 is not JSON: Expecting value; expected one object per line, as jq",
     "an array in many lines"),
    (json_lines('{"path": "a", "n": ' + "[" * 100_000 + "\n"), "line 1 is not JSON: maximum recursion", "too deep"),
    (json_lines('{"path": "a", "n": ' + "9" * 5000 + "}\n"), "line 1 is not JSON: Exceeds the limit", "too long"),
    (json_lines('{"path": "a", "n": 18446744073709551616}\n'), "column 'n' in row 1: ", "more than 64 bits"),
    (json_lines('{"path": "a", "n": 1}\n{"path": "b", "n": "x"}\n'),
     "column 'n' in row 2: Could not convert 'x' with type str: tried to convert to int64; write its val", "mixed"),
    (json_lines('{"path": "a"}\n' * 20_000 + '{"path": 5}\n'), "column 'path' in row 20,001: Expected bytes, got",
     "a number as the path of one row"),
    (json_lines(b'{"path": "\xff"}\n'), "it is not UTF-8 text", "Latin-1"),
    (json_lines('{"path": "\\ud800"}\n'), "it is not UTF-8 text", "half an emoji"),
    (json_lines('{"path": 5}\n'), "the path column holds int64, expected strings", "numbers as paths"),
    (json_lines('{"id": 5}\n'), "column 'id', used for the paths, holds int64, expected strings", "numbers as paths"),
    (json_lines('{"path": "a"}\n{"n": 1}\n'), "1 of 2 rows have no path; the first is row 2", "no path"),
    (columns(path=["a", "b", "a", "c", "b", "a"]), "2 paths are listed more than once; the first is 'a', 3 t", "twice"),
    (columns(path=[{"\n": 1}]), r"the path column holds struct<\n: int64>, expected strings", "structs as paths"),
    (columns(path=["a", "b"], label=["x", ""]), "1 of 2 rows have no label", "a class has a name"),
    (columns(path=["a", "b"], label=["x", None]), "1 of 2 rows have no label", "a class for every sample"),
    (columns(path=["a", "b"], label=[2.0, float("nan")]), "1 of 2 rows have no label", "not a number is no class"),
    (json_lines('{"path": "a", "label": 2}\n{"path": "b", "label": NaN}\n'), "1 of 2 rows have no label", "of json"),
    (txt("\n"), "it lists no samples", "a blank line"),
    (txt("a.jpg 1\nb.jpg\n"), "1 of 2 lines have no label, such as 'b.jpg', and others have one, such as", "some have"),
    (txt("a.jpg\nb.jpg\na.jpg\n"), "1 path is listed more than once; the first is 'a.jpg', 2 times; --repeated list "
     "makes the rows of a path one sample, whose other columns are lists", "twice"),
    (columns(path=["a"], extra=MAP), "column 'extra' holds map<", "no index keeps it"),
    (columns(path=["a"], text=NOT_UTF8), "Invalid UTF8", "Latin-1 in Parquet"),
    (json_lines('{"path": "a.jpg", "x": ' + "[" * 80 + "1" + "]" * 80 + "}\n"),
     "column 'x' holds lists or objects nested more than 32 levels deep", "Arrow could not write it"),
    *((columns(path=[f"{n}.jpg" for n in range(len(values))], when=values), "values that Python has no type for", what)
      for values, what in TIMES),
    *((columns(path=["a"], **{name: [1]}), f"the index needs the column name {name!r}; rename yours", "its own")
      for name in sorted(set(INDEX_COLUMNS) - {"path"})),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message", "reason"), REFUSED)
def test_invalid_label_tables_are_refused(
    make: Callable[[Path], Path], message: str, reason: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    with pytest.raises(SourceError) as caught, naming(f"labels {str(path)!r}"):
        read_table(path)
    said = str(caught.value)
    assert said.isprintable(), repr(said)
    assert message in said, reason
    assert said.startswith(f"labels {str(path)!r}: ")
    assert len(said) - len(str(path)) < 450


# Duplicate paths, and absolute ones


CAPTIONS: list[dict[str, Any]] = [
    {"path": "b", "caption": "a cat", "n": 1, "tags": ["x"], "label": "cat"},
    {"path": "a", "caption": "a dog", "n": None, "tags": [], "label": "dog"},
    {"path": "b", "caption": "été", "n": 3, "tags": None, "label": "cat"},
    {"path": "c", "caption": None, "n": 4, "tags": ["y", "z"], "label": "ant"},
    {"path": "b", "caption": "", "n": 5, "tags": ["x"], "label": "pet"},
]


def test_rows_of_one_path_become_lists_at_its_first_position(tmp_path: Path) -> None:
    table = read_table(jsonl(tmp_path, *CAPTIONS), repeated="list")
    assert table.to_pylist() == [
        {
            "path": "b",
            "caption": ["a cat", "été", ""],
            "n": [1, 3, 5],
            "tags": [["x"], None, ["x"]],
            "label": ["cat", "cat", "pet"],
        },
        {"path": "a", "caption": ["a dog"], "n": [None], "tags": [[]], "label": ["dog"]},
        {"path": "c", "caption": [None], "n": [4], "tags": [["y", "z"]], "label": ["ant"]},
    ]
    assert column_types(table)["caption"] == "large_list<item: large_string>"


def test_a_single_row_without_values_becomes_empty_lists(tmp_path: Path) -> None:
    boxes = {"a": [1, None], "b": [None], "c": [3], "d": [None, None]}
    rows = [{"path": path, "box": box and [box], "kind": box and "x"} for path, some in boxes.items() for box in some]
    table = read_table(jsonl(tmp_path, *reversed(rows)), repeated="list")
    assert table.column("path").to_pylist() == [*"dcba"]
    assert table.column("box").to_pylist() == [[None, None], [[3]], [], [None, [1]]]
    assert table.column("kind").to_pylist() == [[None, None], ["x"], [], [None, "x"]]
    assert read_table(jsonl(tmp_path, {"path": "a", "box": None}), repeated="list").to_pylist() == [
        {"path": "a", "box": []}
    ]


def test_absolute_paths_inside_the_source_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "real é").mkdir()
    (tmp_path / "link").symlink_to("real é")
    paths = [f"{tmp_path}/link/a.jpg", f"{tmp_path}/real é/b/c.jpg", "d.jpg", f"x{tmp_path}/link/a.jpg"]
    table = read_table(jsonl(tmp_path, *({"path": path} for path in paths)), tmp_path / "link")
    assert table["path"].to_pylist() == ["a.jpg", "b/c.jpg", "d.jpg", f"x{tmp_path}/link/a.jpg"]
    with pytest.raises(SourceError, match=r"the first is 'a\.jpg', 2 times"):  # once as an absolute path
        read_table(jsonl(tmp_path, {"path": "a.jpg"}, {"path": f"{tmp_path}/link/a.jpg"}), tmp_path / "link")


# Equal values are equal bytes


NASTY = [
    {
        "path": f"a/{i}.jpg",
        "whole": None if i % 3 == 0 else i,
        "real": None if i % 4 == 0 else i / 7,
        "text": None if i % 5 == 0 else f"é{i}",
        "yes": None if i % 6 == 0 else i % 2 == 0,
        "list": None if i % 3 == 1 else [i, None, 2][: i % 4],
        "texts": None if i % 7 == 1 else ["x" * j if j % 2 else None for j in range(i % 5)],
        "struct": None if i % 2 else {"a": i if i % 3 else None, "b": [{"c": None if i % 5 else "s"}, None]},
        "nothing": None,
    }
    for i in range(100)
]


def test_the_digest_does_not_depend_on_the_kind_of_table(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(NASTY)
    options: list[dict[str, Any]] = [{}, {"row_group_size": 7}, {"use_dictionary": False, "compression": "none"}]
    digests = {table_digest(read_table(parquet(tmp_path, table, **each))) for each in options}
    assert digests == {table_digest(read_table(jsonl(tmp_path, *NASTY)))}
    lists = {
        table_digest(read_table(path, repeated="list"))
        for path in (jsonl(tmp_path, *CAPTIONS), parquet(tmp_path, pa.Table.from_pylist(CAPTIONS), row_group_size=2))
    }
    assert len(lists) == 1
    numbers = table.select(["path", "whole", "real", "yes"])
    pa.csv.write_csv(numbers, tmp_path / "labels.csv")
    as_csv, as_json = tmp_path / "labels.csv", jsonl(tmp_path, *numbers.to_pylist())
    assert table_digest(read_table(as_csv)) == table_digest(read_table(as_json))


@pytest.mark.parametrize("length", [1, 3, 64, 99, 100])
def test_the_digest_does_not_depend_on_slices_and_chunks(length: int) -> None:
    table = pa.Table.from_pylist([*NASTY, *NASTY])[100:]  # so that nothing starts at the beginning of its buffer
    pieces = pa.concat_tables([table.slice(i, length) for i in range(0, 100, length)])
    assert digest_of_plain(pieces) == digest_of_plain(pa.Table.from_pylist(NASTY))


def digest_of_plain(table: pa.Table) -> str:
    plain = {name: plain_column(name, table.column(name)) for name in table.column_names}
    return table_digest(pa.table(plain))


KINDS = {
    "numbers": lambda values, _: pa.array(values),
    "fixed-size lists": lambda values, _: pa.FixedSizeListArray.from_arrays(np.repeat(values, 3), 3),
    "lists": lambda values, _: pa.ListArray.from_arrays(np.arange(len(values) + 1, dtype=np.int32), values),
    "structs": lambda values, _: pa.StructArray.from_arrays([pa.array(values)], ["x"]),
    "decimals": lambda values, _: pa.array(values).cast(pa.decimal128(20)),
    "views": lambda values, _: pa.array(values.astype(str)).cast(pa.string_view()),
    "structs of lists": lambda values, hide: pa.StructArray.from_arrays([hide(KINDS["lists"](values, hide))], ["x"]),
    "lists of structs": lambda values, hide: pa.ListArray.from_arrays(
        np.arange(len(values) + 1, dtype=np.int32), hide(KINDS["structs"](values, hide))
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_under_nulls_do_not_matter(kind: str) -> None:
    hidden = np.arange(100) % 3 == 0
    validity = pa.py_buffer(np.packbits(~hidden, bitorder="little").tobytes())

    def hide(array: pa.Array) -> pa.Array:
        """Declare a third of the values null, in the same memory."""
        children = [array.field(i) for i in range(array.type.num_fields)] if pa.types.is_struct(array.type) else None
        if pa.types.is_nested(array.type) and children is None:
            children = [array.values]
        own = array.buffers()[1 : array.type.num_buffers]
        return pa.Array.from_buffers(array.type, len(array), [validity, *own], children=children)

    def column(seed: int) -> pa.Array:
        values = np.where(hidden, np.random.default_rng(seed).integers(10, 99, 100), np.arange(100) % 89 + 10)
        return hide(KINDS[kind](values, hide))

    assert column(1).equals(column(2))
    assert digest_of_plain(pa.table({"x": column(1)})) == digest_of_plain(pa.table({"x": column(2)}))
    assert plain_column("x", pa.chunked_array([column(1)])).to_pylist() == column(1).to_pylist()


def test_previous_contents_of_memory_do_not_matter(tmp_path: Path) -> None:
    paths = [jsonl(tmp_path, *NASTY), parquet(tmp_path, pa.Table.from_pylist(NASTY), row_group_size=9)]
    script = """
        import sys
        from presize.builder.plan import table_digest
        from presize.sources.table import read_table
        print({table_digest(read_table(path)) for path in sys.argv[1:]})
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MALLOC_PERTURB_", "85")  # glibc fills fresh memory with it
        patch.setenv("ARROW_DEFAULT_MEMORY_POOL", "system")
        assert run_python(script, *paths).strip() == str({table_digest(read_table(paths[0]))})


def test_a_time_in_nanoseconds_that_is_whole_microseconds_is_accepted(tmp_path: Path) -> None:
    table = read_table(parquet(tmp_path, pa.table({"path": ["a.jpg"], "when": pa.array([5000], pa.timestamp("ns"))})))
    assert table.column("when").to_pylist() == [datetime.datetime(1970, 1, 1, 0, 0, 0, 5)]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("a/. \t\n\r,;é\0\"'0.jpg"), max_size=40) | st.text(max_size=20))
def test_any_text_is_a_list_or_a_one_line_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        table = read_table(tmp_path / "a.txt")
    except SourceError as error:
        assert str(error).isprintable()
    else:
        assert set(table.column_names) <= {"path", "label"}
        assert all(table.column("path").to_pylist())


def column(*texts: str) -> pa.ChunkedArray:
    return pa.chunked_array([[text] for text in texts], pa.string())  # one chunk each


@pytest.mark.parametrize(
    ("texts", "values", "reason"),
    [
        (["1", "-20", "0"], [1, -20, 0], "whole numbers"),
        ([" 5", "6\t"], [5, 6], "surrounding blanks"),
        (["", "NA", "7"], [None, None, 7], "missing ones"),
        (["", "NA"], [None, None], "only missing ones"),
        (["0.5", "12.0", "7"], [0.5, 12.0, 7.0], "decimals"),
        (["1e-05", "1e+20", "-1.5E-07", "2"], [1e-05, 1e20, -1.5e-07, 2.0], "exponents as most languages print them"),
        (["  nan", "   0.5", "NAN", "+nan"], [None, 0.5, None, None], "missing ones as C prints them, with blanks"),
        (["12345678901234568", "1.5"], [12345678901234568.0, 1.5], "as many digits as %.17g prints"),
        (["+0.50", "-0.25"], [0.5, -0.25], "decimals with a plus, as %+.2f prints them"),
        (["1e20", "1.5e300", "0.5"], [1e20, 1.5e300, 0.5], "as Polars and MySQL print large ones"),
        (["-0", "0.5"], [-0.0, 0.5], "a negative zero among decimals"),
        (["true", "FALSE", ""], [True, False, None], "booleans"),
    ],
)
def test_numbers_as_programs_print_them_are_numbers(texts: list[str], values: list[Any], reason: str) -> None:
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
def test_a_column_is_kept_or_its_numbers_print_as_written(texts: list[str]) -> None:
    found = read_texts(column(*texts))
    if not pa.types.is_string(found.type):
        for text, value in zip(texts, found.to_pylist(), strict=True):
            assert (value is None) == (text == "")
            if value is not None:
                assert value == float(text)
                assert str(value) == text.strip() if isinstance(value, int) else not text.strip(" -").startswith("00")


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1) | st.lists(st.floats(allow_nan=False), min_size=1))
def test_numbers_printed_by_python_are_read_back(numbers: list[int] | list[float]) -> None:
    if any(np.isfinite(number) for number in numbers):
        texts = column(*map(repr, numbers))
        found = read_texts(texts)
        assert found.to_pylist() == numbers
        assert not pa.types.is_floating(found.type) or lost_spelling(texts) is None


LOST = ["3.10", "12.00", "0.50", "+0.5", ".5", "5.", "-1.20", "0.1234567890123456789", "9007199254740993"]
KEPT = ["3.1", "12.0", "0.05", "10.0", "100", "1e-05", "0.30000000000000004", "-0.25"]


@pytest.mark.parametrize("text", [*LOST, *KEPT])
def test_a_decimal_that_would_be_printed_differently_is_found(text: str) -> None:
    assert lost_spelling(column("7", "0.5", text)) == (text if text in LOST else None)


# Columns of a table


def labels(folder: Path, *texts: str, types: dict[str, ValueType] | None = None) -> list[Any]:
    (folder / "t.csv").write_text("path,label\n" + "".join(f"{i}.png,{text}\n" for i, text in enumerate(texts)))
    return read_table(folder / "t.csv", types=types or {}).column("label").to_pylist()


def test_decimals_that_lose_their_spelling_are_reported_with_the_option(tmp_path: Path) -> None:
    with pytest.warns(PresizeWarning) as said:
        assert labels(tmp_path, "1.50", "3.10", "12.00") == [1.5, 3.1, 12.0]
    (warning,) = said
    assert str(warning.message) == (
        f"labels '{tmp_path}/t.csv': '1.50' in column 'label' is read as the number 1.5, not a class; --column-type "
        "label:text keeps values as written, --column-type label:float reads numbers without this warning"
    )


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        ("text", ["1.50", "007", "x"], ["1.50", "007", "x"]),
        ("int", ["007", "+5", "-1", "2.0"], [7, 5, -1, 2]),
        ("float", ["1.50", "12E5", "+5", "007"], [1.5, 1.2e6, 5.0, 7.0]),
    ],
)
def test_a_column_has_its_given_type_without_a_message(
    kind: ValueType, texts: list[str], values: list[Any], tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert labels(tmp_path, *texts, types={"label": kind}) == values


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("int", "12E5", "a whole number of at most 64 bits"),
        ("int", "9" * 20, "a whole number of at most 64 bits"),
        ("int", "0x1F", "a whole number of at most 64 bits"),
        ("float", "1,5", "a number"),
    ],
)
def test_a_value_of_another_type_is_named_with_its_row(
    kind: ValueType, text: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError) as caught:
        labels(tmp_path, "1", "", f'"{text}"', types={"label": kind})
    assert str(caught.value) == f"--column-type label:{kind}: row 3 has {text!r}, expected {expected}"


def test_an_empty_cell_of_a_typed_column_is_a_null(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,n\na,\nb,5\n")
    assert read_table(tmp_path / "t.csv", types={"n": "float"}).column("n").to_pylist() == [None, 5.0]


def test_typed_columns_are_cast_if_nothing_is_lost() -> None:
    whole, real = (pa.chunked_array([pa.array([1, 20], kind)]) for kind in (pa.int32(), pa.float32()))
    assert as_type("n", whole, "class").to_pylist() == ["1", "20"]
    assert as_type("n", real, "int").to_pylist() == [1, 20]
    with pytest.raises(SourceError, match="it holds float, so the original spelling is lost; store it as text"):
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
        (struct.pack(">I", 7), "a big-endian 32-bit integer, 7"),
        (np.int64(300).tobytes(), "a little-endian 64-bit integer, 300"),
        (b"\x03", "an 8-bit integer, 3"),
        (struct.pack("<f", 2.5), "a little-endian 32-bit float, 2.5"),
        (struct.pack(">d", 0.1), "a big-endian 64-bit float, 0.1"),
        (pickle.dumps(5), "a Python pickle"),
        (pickle.dumps(5, 0), "a Python pickle"),
        (b"\x93NUMPY\x01", "a NumPy array"),
        (b"\xff", None),
    ],
)
def test_binary_data_is_recognized(value: bytes, like: str | None) -> None:
    assert looks_like(value) == like
