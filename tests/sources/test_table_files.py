"""The files that list samples: separators, names of the column of paths, and plain lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from presize.errors import SourceError
from presize.sources.table import is_list, read_table


def rows(folder: Path, name: str, text: str) -> dict[str, list[Any]]:
    (folder / name).write_bytes(text.encode())
    return read_table(folder / name).to_pydict()


# Separators


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "path,n,text\na,1,x\n", "commas"),
        ("a.csv", "path;n;text\na;1;x\n", "semicolons, as a spreadsheet in Europe writes"),
        ("a.csv", "path\tn\ttext\na\t1\tx\n", "tabs"),
        ("a.csv", "path|n|text\na|1|x\n", "bars"),
        ("a.CSV", '"n";"text";"path"\n1;x;a\n', "quoted names, in any order"),
        ("a.csv", "\ufeffpath;n;text\r\na;1;x\r\n", "from Windows"),
        ("a.tsv", "path\tn\ttext\na\t1\tx\n", "tabs, by the suffix"),
    ],
)
def test_the_header_tells_the_separator(name: str, text: str, reason: str, tmp_path: Path) -> None:
    found = rows(tmp_path, name, text)
    assert {column: found[column] for column in ("path", "n", "text")} == {"path": ["a"], "n": [1], "text": ["x"]}, (
        reason
    )


def test_rows_of_separators_alone_are_those_that_a_spreadsheet_leaves_at_its_end(tmp_path: Path) -> None:
    assert rows(tmp_path, "a.csv", "path;n;text\na;1;x\nb;;\n;;\n;;\n") == {
        "path": ["a", "b"], "n": [1, None], "text": ["x", ""],
    }  # fmt: skip
    with pytest.raises(SourceError, match="'' is not a relative path"):
        rows(tmp_path, "a.csv", "path;n\na;1\n;2\n")


def test_a_separator_in_a_value_says_nothing(tmp_path: Path) -> None:
    assert rows(tmp_path, "a.csv", "path,text;more\na,1;2\n") == {"path": ["a"], "text;more": ["1;2"]}
    assert rows(tmp_path, "a.tsv", 'path\ttext\na\t"1, 2;\t3"\n') == {"path": ["a"], "text": ["1, 2;\t3"]}


def test_a_blank_behind_each_separator_is_no_part_of_a_name_or_a_text(tmp_path: Path) -> None:
    text = "path, n, label,caption\na, 1, cat, sits\nb, 2, dog,runs\n"
    assert rows(tmp_path, "a.csv", text) == {
        "path": ["a", "b"], "n": [1, 2], "label": ["cat", "dog"], "caption": [" sits", "runs"],
    }  # fmt: skip
    assert rows(tmp_path, "a.csv", "n, path\n1, 007\n") == {"n": [1], "path": ["007"]}


@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_codes_of_digits_are_texts_where_a_number_would_lose_their_zeros(name: str, tmp_path: Path) -> None:
    header, separator = ("path,label\n", ",") if name == "a.csv" else ("", "\t")
    codes, numbers = ["0002", "7", "007", "1501"], ["0", "2", "7", "10"]
    for labels, kept in ((codes, codes), (numbers, [0, 2, 7, 10])):
        lines = [f"{i}.jpg{separator}{label}\n" for i, label in enumerate(labels)]
        assert rows(tmp_path, name, header + "".join(lines))["label"] == kept


# The column of paths


@pytest.mark.parametrize("name", ["path", "filename", "file_name"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_the_column_of_paths_goes_by_three_names(name: str, kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pa.parquet.write_table(pa.table({"n": [1], name: ["007"]}), file)
    else:
        file.write_text(f"n,{name}\n1,007\n" if kind == "csv" else f'{{"n": 1, "{name}": "007"}}\n')
    assert read_table(file).to_pydict() == {"n": [1], "path": ["007"]}


def test_of_path_and_filename_the_path_lists_the_samples(tmp_path: Path) -> None:
    assert rows(tmp_path, "a.csv", "filename,path\nx,a\n") == {"filename": ["x"], "path": ["a"]}


def test_two_columns_that_may_be_the_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="it has the columns 'filename' and 'file_name'; rename the one of the paths"):
        rows(tmp_path, "a.csv", "filename,file_name\nx,a\n")


# Lists of paths


@pytest.mark.parametrize(
    ("text", "expected", "reason"),
    [
        ("a.jpg\nb.png\n", {"path": ["a.jpg", "b.png"]}, "a path in each line"),
        ("a.jpg\nb.png", {"path": ["a.jpg", "b.png"]}, "no newline at the end"),
        ("\ufeffa.jpg\r\n\r\n b.png \r\n", {"path": ["a.jpg", "b.png"]}, "from Windows, with blank lines"),
        ("a b.jpg\n,c\n", {"path": ["a b.jpg", ",c"]}, "spaces and commas are part of a name"),
        ('"a".jpg\n', {"path": ['"a".jpg']}, "so are quotes"),
        ("cat 1\ncat 2\n", {"path": ["cat 1", "cat 2"]}, "a name without the suffix of an image has no label"),
        ("./c/a.jpg\n././/b.jpg\n", {"path": ["c/a.jpg", "b.jpg"]}, "as find prints them"),
        ("a.jpg 3\nb.JPEG 12\n", {"path": ["a.jpg", "b.JPEG"], "label": [3, 12]}, "numbers behind, as ImageNet's"),
        ("a.jpg,3\nb.png, -1\n", {"path": ["a.jpg", "b.png"], "label": [3, -1]}, "a comma between"),
        ("a.jpg x\nb.png 2\n", {"path": ["a.jpg", "b.png"], "label": ["x", "2"]}, "one text makes all of them text"),
        ("a.jpg black cat\n", {"path": ["a.jpg"], "label": ["black cat"]}, "a label of two words"),
        ("my a.jpg 1\n", {"path": ["my a.jpg"], "label": [1]}, "a space in the name, too"),
        ("a.jpg/b.jpg x\n", {"path": ["a.jpg/b.jpg"], "label": ["x"]}, "the last suffix ends the path"),
        ("a.jpg 1.jpg\n", {"path": ["a.jpg 1.jpg"]}, "a line that is a name is no label"),
        ("a\tcat\nb\t\tblack dog\n", {"path": ["a", "b"], "label": ["cat", "black dog"]}, "tabs, whatever the name"),
        ("a b\t7\n", {"path": ["a b"], "label": [7]}, "a tab decides"),
    ],
)
def test_a_list_has_a_path_and_perhaps_a_label_in_each_line(
    text: str, expected: dict[str, list[Any]], reason: str, tmp_path: Path
) -> None:
    assert rows(tmp_path, "train.txt", text) == expected, reason


@pytest.mark.parametrize(
    ("text", "labels", "reason"),
    [
        ('a.png, "Yes, we can"\nb.png, "No"\n', ["Yes, we can", "No"], "all are quoted, as in ICDAR's lists"),
        ('\ufeffa.png, "say \\"hi\\""\r\nb.png, "C:\\\\d"\r\n', ['say "hi"', "C:\\d"], "quotes with backslashes"),
        ('a.png,"say ""hi"""\nb.png,"x"\n', ['say "hi"', "x"], "doubled quotes"),
        ('a.png, "see b.jpg, there"\nb.png, "x"\n', ["see b.jpg, there", "x"], "the name of an image in a label"),
        ('a.png, "5" disk"\nb.png, "x"\n', ['5" disk', "x"], "a quote that is not escaped"),
        ('a.png,cat\nb.png,"x, y"\n', ["cat", "x, y"], "only where they are needed"),
        ('a.png\t"Yes"\nb.png\t"No"\n', ["Yes", "No"], "behind tabs"),
        ('a.png\t"say ""hi"""\nb.png\tx\n', ['say "hi"', "x"], "only where they are needed, behind tabs"),
        ('a.png, "7"\nb.png, "8"\n', [7, 8], "numbers, as in CSV"),
        ('a.png, 5" disk\nb.png, x\n', ['5" disk', "x"], "a quote in a text"),
        ('a.png "a" and "b"\n', ['"a" and "b"'], "two quoted words"),
        ('a.png\t"Yes"\nb.png\tNo\n', ['"Yes"', "No"], "a quoted text among others"),
        ('a.png, "\nb.png, x\n', ['"', "x"], "a single quote"),
        ('a.png, "\\frac 1 \\\\ 2"\nb.png, "x"\n', ["\\frac 1 \\\\ 2", "x"], "backslashes that escape no quote"),
        ("a.png 0x10\nb.png 5\n", ["0x10", "5"], "no number in hexadecimal digits"),
    ],
)
def test_quotes_around_the_labels_of_a_list_are_no_part_of_them(
    text: str, labels: list[Any], reason: str, tmp_path: Path
) -> None:
    assert rows(tmp_path, "gt.txt", text)["label"] == labels, reason


def test_paths_in_quotes_are_those_within(tmp_path: Path) -> None:
    assert rows(tmp_path, "a.txt", '"a, b.png", "text"\n"c.png", "d"\n') == {
        "path": ["a, b.png", "c.png"], "label": ["text", "d"],
    }  # fmt: skip
    assert rows(tmp_path, "a.txt", '"my a.jpg" cat\nb.jpg dog\n')["path"] == ["my a.jpg", "b.jpg"]
    assert rows(tmp_path, "a.txt", '"a b.jpg"\nc.jpg\n') == {"path": ["a b.jpg", "c.jpg"]}


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ('path, label\na.png, "Yes, we can"\n', "Yes, we can"),
        ('path, "label"\na.png, "say ""hi"", or"\n', 'say "hi", or'),
        ('"label", "path"\n"x, y", "a, b.png"\n', "x, y"),
    ],
)
def test_quotes_behind_a_separator_and_a_blank_are_quotes(text: str, label: str, tmp_path: Path) -> None:
    assert rows(tmp_path, "a.csv", text)["label"] == [label]


@pytest.mark.parametrize(
    ("text", "message", "reason"),
    [
        ("", "it lists no samples", "nothing at all"),
        ("\n \n", "it lists no samples", "blank lines"),
        (
            "a.jpg 1\nb.jpg\n",
            "1 of 2 lines have no label, such as 'b.jpg', and others have one, such as",
            "some have one",
        ),
        ("a\t1\nb.jpg 2\n", "1 of 2 lines have no label, such as 'b.jpg 2'", "a tab in one line"),
        ("a.jpg\na.jpg\n", "1 path is listed more than once", "twice"),
        ("../a.jpg\n", "'../a.jpg' is not a relative path inside the source", "upwards"),
    ],
)
def test_what_is_no_list_is_refused(text: str, message: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        rows(tmp_path, "train.txt", text)
    assert message in str(caught.value), reason
    assert str(caught.value).isprintable()


def test_a_list_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9.jpg\n")
    with pytest.raises(SourceError, match="it is not UTF-8 text"):
        read_table(tmp_path / "a.txt")


def test_only_text_files_are_lists(tmp_path: Path) -> None:
    assert [is_list(tmp_path / name) for name in ("a.txt", "a.TXT", "a.csv", "txt")] == [True, True, False, False]


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
