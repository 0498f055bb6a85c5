"""Listings of every kind of source: samples in their order, labels, and skipped files."""

from __future__ import annotations

import os
import tarfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from foreign import FIXTURES, image_column, picture, tar_bytes, tar_samples, text_recognition, write_lmdb
from listings import (
    OUT,
    Make,
    classes_in_parquet,
    facts,
    files,
    holding,
    in_lmdb,
    in_parquet,
    in_tar,
    labelled,
    make,
    not_utf8,
    several,
    table,
)
from presize.errors import PresizeWarning
from presize.formatting import size_text
from presize.options import ColumnType, Companion, SourceOptions
from presize.sources.scan import scan


def of(reason: str, make: Make, options: dict[str, Any] | None = None, said: str = "", **expected: Any) -> Any:
    """Return a row of the table.

    Args:
        reason: description of the case.
        make: maker of the source.
        options: SourceOptions, and arguments of scan.
        said: the only expected warning.
        expected: expected `facts` of the source; no rejects by default.
    """
    return pytest.param(make, options or {}, said, {"rejected": {}, **expected}, id=reason)


FLAT: dict[str, Any] = {"classes": None, "labels": None, "by_folder": False}
UNLABELLED = {"labels": "none"}
LONG = "é" * 127 + "x"
SPLITS = "they become its classes; if they are splits, use --split folders$"
FOLDERS = [
    of("a folder is before those in it and after names that sort before a slash",
       files("c/a/b/1", "c/a/2", "c/a-b/3", "c/4", "c/a0/5", "c/b"),
       paths=["c/4", "c/b", "c/a/2", "c/a-b/3", "c/a/b/1", "c/a0/5"], by_folder=True),
    of("a flat folder has no labels", files("2", "10", "1"), paths=["1", "10", "2"], **FLAT),
    of("suffixes do not matter", files("a/t.txt", "a/1", "a/2.jpg"), paths=["a/1", "a/2.jpg", "a/t.txt"]),
    of("hidden files and folders are counted and not entered",
       files(".DS_Store", ".git/config", ".git/objects/1", "a/._1.jpg", "a/.thumbs/1.jpg", "a/1.jpg", "a/..2"),
       paths=["a/1.jpg"], hidden=5, classes=("a",)),
    of("the folder that macOS adds to zip files is no class",
       files("__MACOSX/a/._1.jpg", "a/1.jpg", "b/__MACOSX/2.jpg"),
       paths=["a/1.jpg"], hidden=2, classes=("a", "b"), labels=[0]),
    of("files beside class folders are counted", files("README", "labels.csv", "zzz", "a/1", "b/1"),
       paths=["a/1", "b/1"], labels=[0, 1], outside=3),
    of("without labels every file is listed at any depth",
       files("0.jpg", "b/1.jpg", "a/c/2.jpg", "a/3.jpg", "train/4.jpg", ".hidden/5.jpg"), UNLABELLED,
       paths=["0.jpg", "a/3.jpg", "a/c/2.jpg", "b/1.jpg", "train/4.jpg"], outside=0, hidden=1, **FLAT),
    of("an empty class folder keeps its number", files("a/1", "b/", "c/.hidden", "d/e/", "f/1"),
       classes=("a", "b", "c", "d", "f"), labels=[0, 4]),
    of("a class list decides the numbers and not the order", files("ant/1", "bee/1", "cow/1"),
       {"classes": ["cow", "bee", "ant"]},
       classes=("cow", "bee", "ant"), paths=["ant/1", "bee/1", "cow/1"], labels=[2, 1, 0]),
    of("splits requested by name", files("train/1", "val/1"), {"classes": ["train", "val"]}, labels=[0, 1]),
    of("images next to classes", files("cats/1.jpg", "2.jpg", "3.png", "notes.txt"),
       said="2 images outside them are left out", paths=["cats/1.jpg"]),
    of("train and val", files("train/cat/1", "val/cat/1"), said=SPLITS, labels=[0, 1]),
    of("split names in other case", files("Train/cat/1", "VALID/cat/1", "test/cat/1"), said=SPLITS, labels=[0, 1, 2]),
    of("a name from Windows", files("train\\cats\\1.jpg", "train\\dogs\\2.jpg"),
       said=r"2 of 2 names contain backslashes, such as 'train\\cats\\1.jpg', which separate folders only on Windows, "
       "and no sample has a label; unpack the archive with unzip to get folders$", labels=None),
    of("names from Windows in one class", files("a/b\\1.jpg", "a/b\\2.jpg"),
       said="2 of 2 names contain backslashes, .* and all samples are of one class; unpack", classes=("a",)),
    of("images next to their masks", files("images/a/1.jpg", "masks/a/1.png", "more/1.png"),
       said="has the same folders in images and masks, which become classes; if masks holds masks of images, add "
       r"--pair mask=masks/\{subdir\}/\{stem\}\.png, else build only images$", classes=("images", "masks", "more")),
    of("a class list in another normalization", files("e\u0301/1", "b/2"), {"classes": ["\xe9", "b"]},
       classes=("\xe9", "b"), labels=[1, 0]),
    of("names from Windows in a list", table("b\\1.jpg", "b\\1.jpg", name="t.txt"), {"labels": "t.txt"},
       said="1 of 1 names contain backslashes", labels=None),
    of("names from Windows with labels", table("path,label\nb\\1.jpg,cat\n", "b\\1.jpg"), {"labels": "t.csv"},
       labels=[0]),
    of("a label column of another name", table("path,Label\n1.jpg,cat\n", "1.jpg"), {"labels": "t.csv"},
       said="no column is named label; if column 'Label' holds the labels, rename it$", labels=None),
    of("labels that differ in a blank", table("path,label\n1.jpg,x \n2.jpg,x\n", "1.jpg", "2.jpg"),
       {"labels": "t.csv"}, said="the classes 'x' and 'x ' differ only in whitespace or", classes=("x", "x ")),
    of("splits that differ in a blank", table("path,split\n1.jpg,a\n2.jpg,a\u00a0\n", "1.jpg", "2.jpg"),
       {"labels": "t.csv"}, said=r"the splits 'a' and 'a\\xa0' differ only in whitespace or", labels=None),
    of("folders that differ in the form of a letter", files("\xe9/1", "e\u0301/2"),
       said=r"the classes '.*' and '.*' differ only in whitespace or in the Unicode form of a letter;", labels=[0, 1]),
    of("names from Windows in a tar", in_tar(("b\\1.png", picture(1))),
       said="1 of 1 names contain backslashes, .* has a label; write it again with / in names$", labels=None),
]  # fmt: skip

AROUND = ("../far/2.jpg", "../far.jpg", "../raw-2/1.jpg", "../far/back -> ../raw/a/1.jpg")
"""A folder and files next to the source."""
UNSEEN = "cannot be accessed: "
LOOP = "a link to a folder that contains it"
MANY = UNSEEN + "Too many levels of symbolic links"
NOWHERE = UNSEEN + "No such file or directory"
LINKS: list[tuple[str, tuple[str, ...], list[str], dict[str, str]]] = [
    ("a file inside", ("b/2.jpg -> ../a/1.jpg",), ["a/1.jpg", "b/2.jpg"], {}),
    ("a folder inside is a class of its own", ("b -> a",), ["a/1.jpg", "b/1.jpg"], {}),
    ("one that goes out and comes back is inside", ("b/1.jpg -> ../../far/back",), ["a/1.jpg", "b/1.jpg"], {}),
    ("a link to its own folder", ("a/b -> .",), ["a/1.jpg"], {"a/b": LOOP}),
    ("a link to the source", ("a/b -> ..",), ["a/1.jpg"], {"a/b": LOOP}),
    ("a link to the source, as a class", ("b -> .",), ["a/1.jpg"], {"b": LOOP}),
    ("a link to itself", ("a/b -> b",), ["a/1.jpg"], {"a/b": MANY}),
    ("a link to itself, as a class", ("b -> b",), ["a/1.jpg"], {"b": MANY}),
    ("two links to each other", ("a/b -> c", "a/c -> b"), ["a/1.jpg"], {"a/b": MANY, "a/c": MANY}),
    ("each in the other", ("a/b -> ../c", "c/d -> ../a"), ["a/1.jpg", "c/d/1.jpg"], {"a/b/d": LOOP, "c/d/b": LOOP}),
    ("three folders in a ring", ("a/b -> ../c", "c/d -> ../e", "e/f -> ../a"), ["a/1.jpg", "c/d/f/1.jpg", "e/f/1.jpg"],
     {"a/b/d/f": LOOP, "c/d/f/b": LOOP, "e/f/b/d": LOOP}),
    ("a broken link", ("a/2.jpg -> nowhere",), ["a/1.jpg"], {"a/2.jpg": NOWHERE}),
    ("a broken link, as a class", ("b -> nowhere",), ["a/1.jpg"], {"b": NOWHERE}),
    ("a device is never read", ("a/2.jpg -> /dev/zero",), ["a/1.jpg"], {"a/2.jpg": "neither a file nor a folder"}),
]  # fmt: skip
LINKS_OUT = [
    ("a file", "a/2.jpg", "../../far.jpg", "a/2.jpg"),
    ("a folder that begins like the source is outside", "a/2.jpg", "../../raw-2/1.jpg", "a/2.jpg"),
    ("a folder, as a class", "b", "../far", "b/2.jpg"),
    ("a folder", "a/deeper", "../../far", "a/deeper/2.jpg"),
]
LEFT_OUT = "1 folder left out with everything inside; the first: '.*--follow-links"
FOLLOWED = {"follow_links": True}
FAR_TAR = in_tar(("2.png", b"x"), name="far/b.tar")
LINKED = [
    *(of(f"{reason}{', followed' * len(options)}", files("a/1.jpg", *AROUND, *links), options, paths=paths,
         rejected=rejected, classes=tuple(sorted({path.partition("/")[0] for path in paths})))
      for reason, links, paths, rejected in LINKS for options in ({}, FOLLOWED)),
    *(of(f"{reason} outside", files("a/1.jpg", *AROUND, f"{link} -> {to}"), said="" if link == path else LEFT_OUT,
         paths=["a/1.jpg"], classes=("a",), rejected={link: OUT}, errors={link: "SourceError"})
      for reason, link, to, path in LINKS_OUT),
    *(of(f"{reason} outside, followed", files("a/1.jpg", *AROUND[:3], f"{link} -> {to}"),
         FOLLOWED, paths=["a/1.jpg", path])
      for reason, link, to, path in LINKS_OUT),
    of("the folder above the source", files("a/1.jpg", "../far/2.jpg", "a/up -> ../.."), FOLLOWED,
       paths=["a/1.jpg", "a/up/far/2.jpg"], rejected={"a/up/raw": LOOP}),
    of("a folder in 250 others", files("a/1.jpg", "a/" * 250 + "2.jpg", "a/" * 251 + "3.jpg"),
       said="1 folder left out with everything inside; the first: ", paths=["a/1.jpg", "a/" * 250 + "2.jpg"],
       rejected={"/".join("a" * 251): "it is nested more than 250 folders deep"}),
    of("the source is a link", lambda folder: make(folder, "raw/a/1.jpg", "link -> raw") / "link", paths=["a/1.jpg"]),
    of("a container that links outside", several(in_tar(*tar_samples(2), name="x"), files("1.tar -> ../x")), FOLLOWED,
       labels=[0, 1]),
    of("a broken link to a container", several(in_tar(("1.png", b"")), files("b.tar -> nowhere")),
       said="1 file left out with everything inside; the first: 'b.tar': it cannot be read: No such file",
       paths=["1.png"], rejected={"b.tar": "it cannot be read: No such file or directory"}),
    of("a folder of containers outside", several(in_tar(("1.png", b"")), FAR_TAR, files("b -> ../far")),
       said=LEFT_OUT, paths=["1.png"], rejected={"b": OUT}),
    of("a folder of containers outside, followed", several(in_tar(("1.png", b"")), FAR_TAR, files("b -> ../far")),
       FOLLOWED, paths=["1.png", "2.png"], values=[b"", b"x"]),
    of("nothing but a folder of containers outside, followed", several(FAR_TAR, files("b -> ../far")),
       FOLLOWED, paths=["2.png"], values=[b"x"]),
    of("a folder of containers inside is read once", several(in_tar(("1.png", b"")), files("b -> .", "c -> ../raw")),
       paths=["1.png"]),
    of("containers in a hidden folder that a link shows",
       several(in_tar(("1.png", b""), name="raw/.data/a.tar"), files("b -> .data")), paths=["1.png"]),
    of("an image in the folder that macOS adds to zip files",
       several(in_tar(("1.png", b"")), files("__MACOSX/2.jpg")), paths=["1.png"]),
    of("class folders outside, next to a tar",
       several(in_tar(("1.png", b"")), files("../far/2.jpg", "b -> ../far")), FOLLOWED, paths=["b/2.jpg"],
       containers=()),
]  # fmt: skip

CATS = ("cats/0.jpg", "cats/1.jpg", "dogs/0.jpg", "dogs/1.jpg")
TWO = "path,label\ncats/0.jpg,cat\ndogs/0.jpg,dog\n"
DIGITS = "path,label\ncats/0.jpg,10\ndogs/0.jpg,9\n"
CSV, TXT = {"labels": "t.csv"}, {"labels": "t.txt"}


def typed(name: str, kind: Any) -> dict[str, Any]:
    return {"types": [ColumnType(name, kind)]}


def lines(text: str, *names: str) -> Make:
    """Return a maker of a plain list of paths."""
    return table(text, *CATS, *names, name="t.txt")


SPELLED = ("cats/1.jpg", "cats/1.png", "dogs/a b.jpg", "e\u0301/e\u0301.jpg", "n/1.txt", "n/2.png", "n/2.txt")
SPELLINGS = [
    ("./cats/1.jpg", "cats/1.jpg"),
    ("/cats/1.jpg", "cats/1.jpg"),
    ("cats//./1.jpg", "cats/1.jpg"),
    ("cats\\1.jpg", "cats/1.jpg"),
    ("C:\\cats\\1.jpg", "cats/1.jpg"),
    ("dogs/a b", "dogs/a b.jpg"),
    ("\\dogs\\a b", "dogs/a b.jpg"),
    ("\xe9/\xe9.jpg", "e\u0301/e\u0301.jpg"),
    ("/\xe9/e\u0301", "e\u0301/e\u0301.jpg"),
    ("n/1", "n/1.txt"),
    ("n/2", "n/2.png"),
]
"""Spellings of paths, and the path of SPELLED that each means."""
TABLES = [
    of("a table has its own order",
       table("label,path,score\nb,dogs/0.jpg,1.5\na,cats/1.jpg,\n", *CATS, "dogs/0.jpg = 12345"),
       CSV, paths=["dogs/0.jpg", "cats/1.jpg"], labels=[1, 0], classes=("a", "b"), score=[1.5, None],
       source_nbytes=[5, 1], columns=["path", "source_nbytes", "source_mtime_ns", "label", "score"]),
    of("whole numbers", table("path,label\ncats/0.jpg,70\ncats/1.jpg,-1\n", *CATS), CSV, classes=None, labels=[70, -1]),
    of("a list of classes", table(TWO, *CATS), {**CSV, "classes": ["dog", "ant", "cat"]},
       classes=("dog", "ant", "cat"), labels=[2, 0]),
    of("digits are names, by their values, on request", table(DIGITS, *CATS), CSV | typed("label", "class"),
       classes=("9", "10"), labels=[1, 0]),
    of("and by their texts", table(DIGITS, *CATS), CSV | typed("label", "text"), classes=("10", "9")),
    of("and by a list", table(DIGITS, *CATS), {**CSV, **typed("label", "class"), "classes": ["10", "9"]},
       classes=("10", "9"), labels=[0, 1]),
    of("absolute paths", table("path\n{raw}/dogs/1.jpg\ncats/0.jpg\n", *CATS), CSV, paths=["dogs/1.jpg", "cats/0.jpg"]),
    of("repeated rows are one sample", table("path,caption\ncats/0.jpg,a\ndogs/0.jpg,b\ncats/0.jpg,c\n", *CATS),
       {**CSV, "repeated": "list"}, paths=["cats/0.jpg", "dogs/0.jpg"], caption=[["a", "c"], ["b"]]),
    of("one file by several paths is several samples",
       table("path\ncats/0.jpg\nkittens/0.jpg\ncat.jpg\n", *CATS, "kittens -> cats", "cat.jpg -> cats/0.jpg"), CSV,
       paths=["cats/0.jpg", "kittens/0.jpg", "cat.jpg"]),
    of("containers next to a table are ignored",
       several(in_parquet(path=["0001"], label=["cat"]), files("0001")), {"labels": "raw/a.parquet"}, paths=["0001"]),
    of("the folders of a list are classes", lines("dogs/1.jpg\ncats/0.jpg\ndogs/0.jpg\n"), TXT,
       paths=["dogs/1.jpg", "cats/0.jpg", "dogs/0.jpg"], classes=("cats", "dogs"), labels=[1, 0, 1]),
    of("a single path has no folder", lines("dogs/1.jpg\n1.jpg\n", "1.jpg"), TXT, classes=None, labels=None),
    of("its own labels", lines("dogs/1.jpg pet\ncats/0.jpg lion\n"), TXT, classes=("lion", "pet"), labels=[1, 0]),
    *(of(f"{suffix}: the path {path!r} of a file",
         table(form.format(path.replace("\\", "\\\\") if suffix == "jsonl" else path), *SPELLED, name=f"t.{suffix}"),
         {"labels": f"t.{suffix}"}, paths=[file])
      for suffix, form in (("csv", "path,n\n{},1\n"), ("tsv", "path\tn\n{}\t1\n"), ("txt", "{}\n"),
                           ("jsonl", '{{"path": "{}", "n": 1}}\n'))
      for path, file in SPELLINGS),
    of("a path in another spelling means its file, also in Parquet",
       several(in_parquet(path=[path for path, _ in SPELLINGS[:3]], n=[0, 1, 2]), files(*SPELLED)),
       {"labels": "raw/a.parquet", "repeated": "list"}, paths=["cats/1.jpg"], n=[[0, 1, 2]]),
    of("spellings of one file are one path", table("path,n\nn/2,0\n./n/2.png,1\ncats/1.png,2\n", *SPELLED),
       {**CSV, "repeated": "list"}, paths=["n/2.png", "cats/1.png"], n=[[0, 1], [2]]),
    of("a name with a backslash and blanks is taken literally",
       table("path\n c\\1.jpg \n", "c/1.jpg", " c\\1.jpg "), CSV, paths=[" c\\1.jpg "]),
    of("a folder is not the named file", table("path\ncats\n", "cats/1.jpg", "cats.jpg"), CSV, paths=["cats.jpg"]),
    of("Places365 begins paths with a slash", lines("/cats/0.jpg 0\n/dogs/0.jpg 1\n"), TXT,
       paths=["cats/0.jpg", "dogs/0.jpg"], labels=[0, 1]),
    of("Food-101 leaves suffixes out, and folders are classes", lines("cats/0\ndogs/1\n"), TXT,
       paths=["cats/0.jpg", "dogs/1.jpg"], classes=("cats", "dogs"), labels=[0, 1]),
    *(of(f"CUB has {what} in front of each path", lines(text), TXT, paths=["cats/0.jpg", "dogs/1.jpg"],
         classes=("cats", "dogs"))
      for what, text in (("a number", "1 cats/0.jpg\n2 dogs/1.jpg\n"),
                         ("a number and a tab", "1\tcats/0.jpg\n2\tdogs/1\n"),
                         ("a number, and no suffix behind,", "0001  cats/0\n0002  dogs/1\n"))),
    of("numbers before paths with labels", lines("1 cats/0.jpg 5\n2 dogs/1.jpg 6\n"), TXT,
       paths=["cats/0.jpg", "dogs/1.jpg"], labels=[5, 6]),
    of("Pets has comments, and labels after names without a suffix",
       lines("#Image CLASS-ID\n#ID: 1:37 Class ids\nAbyssinian_100 1\nbeagle_2 5\n", "Abyssinian_100.jpg",
             "Abyssinian_100.mat", "beagle_2.jpg"), TXT,
       paths=["Abyssinian_100.jpg", "beagle_2.jpg"], labels=[1, 5], classes=None),
    of("VOC has labels of one sign", lines("cats/0 -1\ncats/1  1\n"), TXT, paths=["cats/0.jpg", "cats/1.jpg"],
       labels=[-1, 1]),
    of("a name with a blank and no suffix is not a label",
       lines("cat 1\ncat 2\n", "cat 1.jpg", "cat 2.jpg", "cat.jpg"), TXT, paths=["cat 1.jpg", "cat 2.jpg"],
       labels=None),
    of("the first line is the count of the others", lines("2\ncats/0.jpg 7\ndogs/0.jpg 8\n"), TXT,
       paths=["cats/0.jpg", "dogs/0.jpg"], labels=[7, 8]),
    of("or a file name", lines("2\n0\n1\n", "0.jpg", "1.jpg", "2.jpg"), TXT, paths=["2.jpg", "0.jpg", "1.jpg"]),
    of("Kaggle's ids", table("id,label\n0,cat\n1,dog\n", "0.png", "1.png"), CSV, paths=["0.png", "1.png"],
       classes=("cat", "dog")),
    of("a class list in another normalization", table("path,label\n1.jpg,e\u0301\n", "1.jpg"),
       {**CSV, "classes": ["b", "\xe9"]}, labels=[1], classes=("b", "\xe9")),
    of("the second folder, with splits",
       lines("val/dogs/2.jpg\ntrain/cats/1.jpg\n", "train/cats/1.jpg", "val/dogs/2.jpg"), {**TXT, "split": "folders"},
       classes=("cats", "dogs"), labels=[1, 0], split=["val", "train"]),
]  # fmt: skip

BY_FOLDERS = {"split": "folders"}
SPLIT = [
    of("splits have one class list", files("val/bee/1.jpg", "train/bee/2.jpg", "train/ant/x/3.jpg", "val/ant/4.jpg"),
       BY_FOLDERS, split=["train", "train", "val", "val"],
       paths=["train/ant/x/3.jpg", "train/bee/2.jpg", "val/ant/4.jpg", "val/bee/1.jpg"], labels=[0, 1, 0, 1],
       classes=("ant", "bee"), by_folder=False),
    of("a class missing from a split is numbered",
       files("train/ant/1.jpg", "train/bee/1.jpg", "train/cow/1.jpg", "val/bee/1.jpg"), BY_FOLDERS,
       said="different classes; .*: val lacks 2 classes, such as 'ant'$", split=["train", "train", "train", "val"],
       classes=("ant", "bee", "cow"), labels=[0, 1, 2, 1]),
    of("a class list numbers those of all splits",
       files("train/ant/1.jpg", "train/bee/1.jpg", "val/bee/1.jpg", "val/ant/1.jpg"),
       {**BY_FOLDERS, "classes": ["bee", "cow", "ant"]}, split=["train", "train", "val", "val"], labels=[2, 0, 2, 0]),
    of("images next to the classes of splits are counted",
       files("0.jpg", "test/1.jpg", "test/2.jpg", "train/ant/1.jpg", "train/notes.txt"), BY_FOLDERS,
       said="folders in them its classes; 3 images outside them are left out", split=["train"],
       paths=["train/ant/1.jpg"], outside=4),
    of("splits without classes have no labels", files("notes.txt", "val/2.jpg", "train/1.jpg"), BY_FOLDERS,
       said=r"its 2 splits \(train, val\) hold no class folders, .*leave out --split; .*add --labels none",
       split=["train", "val"], paths=["train/1.jpg", "val/2.jpg"], outside=1, classes=None, labels=None),
    of("without labels, all files of a split are listed",
       files("notes.txt", "val/2.jpg", "train/1.jpg", "train/a/b/3.jpg"), BY_FOLDERS | UNLABELLED,
       split=["train", "train", "val"], paths=["train/1.jpg", "train/a/b/3.jpg", "val/2.jpg"], outside=1,
       classes=None, labels=None),
    of("a table has the folders in its paths", table("path\nb/x/1.jpg\na/2.jpg\n", "b/x/1.jpg", "a/2.jpg"),
       CSV | BY_FOLDERS, split=["b", "a"]),
    of("a split without samples", files("a/1.jpg"), {"split": "train=0.999999999999,val=0.000000000001"},
       said="no samples for val; the source has 1 sample$", split=["train"]),
    *(of(f"splits of {' and '.join(names)}",
         several(*(in_tar(*tar_samples(1, n), name=f"raw/{name}") for n, name in enumerate(names)), files()),
         {"split": text}, split=split)
      for names, text, split in (
          (("data/train-000000.tar", "data/train-000001.tar", "data/val_0.tar"), "folders", ["train", "train", "val"]),
          (("train/0.tar", "val/0.tar"), "folders", ["train", "val"]),
          (("0.tar", "1.tar", "2.tar"), "all=1", ["all"] * 3))),
]  # fmt: skip

CAT = picture(1)
ELSEWHERE = ["../1.png", "/etc/2.png", "a/../../3.png", "x" * 5000 + "/5.png"]
NO_PATH = "its name is not a relative path in UTF-8"


FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
FAR = "very/long/" + "folder/" * 30 + "0001.png"
"""A name too long for USTAR."""
TWO_SAMPLES = tar_bytes(tar_samples(2))
KEPT = "earlier samples are kept"


def end_of(tar: bytes) -> int:
    """Return the offset of the end mark."""
    return -(-len(tar.rstrip(b"\0")) // 512) * 512


def damaged(tar: bytes, at: int) -> bytes:
    """Return a tar with a wrong byte in the header of its third sample."""
    content = bytearray(tar)
    content[end_of(TWO_SAMPLES) + at] ^= 0x55
    return bytes(content)


def one_field(extension: str, content: bytes) -> Make:
    """Return a maker of two samples, the first with a file next to its image."""
    return in_tar(("1.png", CAT), (f"1.{extension}", content), ("2.png", CAT))


TARS = [
    of("files with one stem up to the first dot are a sample",
       in_tar(("a/1.left.png", CAT), ("a/1.json", b'{"x": 1}'), ("b/1.PNG", CAT), ("b/1.json", b'{"x": 2}')),
       listed=[{"path": "a/1.left.png", "x": 1}, {"path": "b/1.PNG", "x": 2}], values=[CAT, CAT]),
    of("a leading dot is not part of a name",
       in_tar(("./._1.png", b"mac"), ("./1.png", CAT), ("./x/.hidden.png", b"")), listed=[{"path": "1.png"}], hidden=2),
    of("files without an extension or image", in_tar(("README", b"text"), ("1.txt", b"text"), ("2.png", CAT)),
       listed=[{"path": "2.png"}], values=[CAT],
       rejected={"a.tar/README": "its name has no extension",
                 "a.tar/1.txt": "no image among .txt; the files of a sample must be consecutive"}),
    of("names that lead outside", in_tar(*((name, CAT) for name in ELSEWHERE), ("4.png", CAT)),
       listed=[{"path": "4.png"}], rejected={f"a.tar/{name}": NO_PATH for name in ELSEWHERE}),
    of("the first of two samples with one name is taken",
       in_tar(("1.png", CAT), ("2.png", CAT), ("1.png", b"other")), paths=["1.png", "2.png"], values=[CAT, CAT],
       rejected={"a.tar/1.png": "an earlier sample of the file has the same name"}),
    of("a missing label among others", in_tar(("1.png", CAT), ("1.cls", b"7"), ("2.png", CAT)),
       listed=[{"path": "1.png", "label": 7}], rejected={"a.tar/2.png": "it has no label"}),
    of("a key of .json does not replace the field of a file",
       in_tar(("1.png", CAT), ("1.cls", b"7"),
              ("2.png", CAT), ("2.cls", b"8"), ("2.json", b'{"label": 100, "txt": "c", "label_": 1}'), ("2.txt", b"b"),
              ("3.png", CAT), ("3.cls", b"9"), ("3.json", b'{"label": null}')),
       listed=[{"path": "1.png", "label": 7, "label_": None, "label__": None, "txt": None, "txt_": None},
               {"path": "2.png", "label": 8, "label_": 100, "label__": 1, "txt": "b", "txt_": "c"},
               {"path": "3.png", "label": 9, "label_": None, "label__": None, "txt": None, "txt_": None}]),
    of("JSON of all kinds of values becomes columns",
       in_tar(("0.png", CAT), ("0.json", b'{"tags": ["a", "b"], "box": {"x": 1.5}, "n": null}'),
              ("1.png", CAT), ("1.json", b'{"tags": [], "n": 3, "flag": true}')),
       listed=[{"path": "0.png", "tags": ["a", "b"], "box": {"x": 1.5}, "n": None, "flag": None},
               {"path": "1.png", "tags": [], "box": None, "n": 3, "flag": True}]),
    of("a name that is not UTF-8", in_tar(("\udcff.png", CAT), ("2.png", CAT), form=tarfile.GNU_FORMAT),
       paths=["2.png"], rejected={"a.tar/\\xff.png": "its name is not UTF-8"}),
    of("an extension chooses among several images", in_tar(("1.jpg", CAT), ("1.png", picture(2)), ("1.cls", b"5")),
       {"keys": "png"}, said=r"which are left out: \.jpg \(1 sample\)$",
       listed=[{"path": "1.png", "label": 5}], values=[picture(2)]),
    of("several images", in_tar(("1.jpg", CAT), ("1.png", CAT), ("2.png", CAT)), paths=["2.png"],
       rejected={"a.tar/1.jpg": "its sample has several images, .jpg and .png; choose one, such as --keys jpg"}),
    of("names with dots", in_tar(("a.1.jpg", CAT), ("a.2.jpg", CAT), ("b.jpg", CAT)), paths=["b.jpg"],
       rejected={"a.tar/a.1.jpg": "its sample has several images, .1.jpg and .2.jpg (a name ends at its first dot); "
                 "choose one, such as --keys 1.jpg"}),
    of("fields of mixed types are skipped with a warning",
       in_tar(("1.png", CAT), ("1.json", b'{"x": 1, "y": 1}'), ("2.png", CAT), ("2.json", b'{"x": "a"}')),
       said=r"which are left out: x \(2 samples\)$",
       listed=[{"path": "1.png", "y": 1}, {"path": "2.png", "y": None}]),
    of("also in a tar of several, whose samples are kept",
       several(in_tar(("1.png", CAT), ("1.json", b'{"label": 1}'), ("2.png", CAT), ("2.json", b'{"label": "a"}')),
               in_tar(("3.png", CAT), ("3.json", b'{"label": 3, "y": 1}'), name="raw/b.tar")),
       said=r"which are left out: label \(3 samples\)$",
       listed=[{"path": "1.png", "y": None}, {"path": "2.png", "y": None}, {"path": "3.png", "y": 1}]),
    of("a field whose name is not text", in_tar(("a.png", CAT), ("a.json", b'{"\\ud800": 3, "b": 4}')),
       said=r"which are left out: .*\(1 sample\)$", listed=[{"path": "a.png", "b": 4}]),
    of("a file among others that is not a tar",
       several(in_tar(*tar_samples(2)), lambda folder: (folder / "raw/b.tar").write_bytes(b"<html>" * 200), files()),
       said=r"1 file left out with everything inside; .*'b\.tar': it is not a tar", labels=[0, 1],
       rejected={"b.tar": "it is not a tar: its first block is not a header"}),
    of("a container whose name is not UTF-8",
       several(in_tar(*tar_samples(2)), in_tar(*tar_samples(1), name="raw/\udcff.tar")),
       said="its name is not UTF-8", labels=[0, 1], rejected={"\\xff.tar": "its name is not UTF-8"}),
    *(of(f".{extension} of {content[:20]!r}", one_field(extension, content), paths=["2.png"],
         rejected={"a.tar/1.png": said})
      for extension, content, said in (
          ("cls", b"cat", "its .cls cannot be read: expected a whole number, got 'cat'; write names as 'label' in a "
           ".json"),
          ("json", b"[1]", "its .json cannot be read: expected a JSON object"),
          ("json", b'{"a": ', "its .json cannot be read: Expecting value"),
          ("json", b"[" * 100_000, "its .json cannot be read: maximum recursion depth exceeded while decoding a JSON "
           "array from a unicode string"),
          ("txt", b"\xff\xfe", "its .txt cannot be read: 'utf-8' codec can't decode byte 0xff in position 0: invalid "
           "start byte"),
          ("txt", b"a" * (1 << 20) + b"a", "its .txt has 1.05 MB, too large for a label"))),
    *(of(f"{form} of {name[:30]}", in_tar((name, CAT), ("z.png", picture(2)), form=number), paths=[name, "z.png"],
         values=[CAT, picture(2)])
      for form, number in FORMATS.items()
      for name in ("a.png", "folder/" * 20 + "0001.png", "été/ü.png", *[FAR] * (form != "ustar"))),
    *(of(f"a size of {size[:9]} is not taken", holding("a.tar", tar_bytes([("1.png", CAT)], size=size)), values=[CAT])
      for size in ("9" * 5000, "-5", "1_0")),
    *(of(f"tars with {padding} bytes between them",
         holding("a.tar", bytes(padding).join(tar_bytes(tar_samples(3, n), tarfile.GNU_FORMAT) for n in (0, 3, 6))),
         values=[picture(n) for n in range(9)], labels=[n % 3 for n in range(9)])
      for padding in (0, 512, 10240, 3 << 20)),
    of("labels apart from their images",
       in_tar(("1.cls", b"0"), ("2.cls", b"1"), ("3.txt", b"no image"), ("1.png", CAT), ("2.png", CAT)),
       said="source .*: 2 files are not next to the image of the same name, the first: a.tar/1.cls; such files and the "
            "labels in them are left out; make the tar again with tar --sort=name -cf NEW.tar FOLDER$",
       paths=["1.png", "2.png"],
       rejected={f"a.tar/{name}": f"no image among {name[1:]}; the files of a sample must be consecutive"
                 for name in ("1.cls", "2.cls", "3.txt")}),
    of("a sample does not continue in the next tar",
       holding("a.tar", tar_bytes([*tar_samples(2), ("x.png", CAT)])
               + tar_bytes([("x.cls", b"1"), *tar_samples(1, 5)])),
       paths=["000000.png", "000001.png", "000005.png"],
       rejected={"a.tar/x.png": "it has no label",
                 "a.tar/x.cls": "no image among .cls; the files of a sample must be consecutive"}),
    of("the first of joined tars with the same names is taken", holding("a.tar", TWO_SAMPLES * 2), labels=[0, 1],
       rejected=dict.fromkeys(("a.tar/000000.png", "a.tar/000001.png"),
                              "an earlier sample of the file has the same name")),
    *(of(f"{rest[:8]!r} behind an end mark and {padding} bytes", holding("a.tar", TWO_SAMPLES + bytes(padding) + rest),
         labels=[0, 1], rejected={"a.tar": f"byte {len(TWO_SAMPLES) + padding:,}, after its end mark at byte "
                                           f"{end_of(TWO_SAMPLES):,}, does not start a header; {KEPT}"})
      for rest in (b"\n", b"<html>" * 1000, b"\x1f\x8b" + bytes(2000) + b"x") for padding in (0, 2 << 20)),
    of("a truncated tar after another",
       holding("a.tar", tar_bytes(tar_samples(1)) + tar_bytes(tar_samples(3, 1))[:700]), paths=["000000.png"],
       rejected={"a.tar": f"it ends after 188 of the {len(CAT):,} bytes of '000001.png'; {KEPT}"}),
    *(of(f"a third header that is damaged at {at}", holding("a.tar", damaged(tar_bytes(tar_samples(5)), at)),
         labels=[0, 1], rejected={"a.tar": f"byte {end_of(TWO_SAMPLES):,} does not start a header; {KEPT}"})
      for at in (0, 3, 124, 150, 345)),
    of("an interrupted download whose file has its full size", holding("a.tar", TWO_SAMPLES.ljust(3 << 20, b"\0")),
       labels=[0, 1], rejected={"a.tar": f"its end mark at byte {end_of(TWO_SAMPLES):,} is followed by "
                                         f"{size_text((3 << 20) - end_of(TWO_SAMPLES))} of zeros; {KEPT}"}),
    of("shards of WebDataset", lambda _: FIXTURES / "webdataset",
       listed=[{"path": f"{'ant bee cow'.split()[n % 3]}/{n:04d}.jpg", "label": n % 3, "caption": f"picture {n}",
                "width_": 24 + n,  # the index has its own width
                "score": n / 4, "txt": f"a text of {n}"} for n in range(9)]),
]  # fmt: skip

NUMBERED = {"keys": "image-{:09d}", "label_keys": "label-{:09d}"}
TEXTS = {"keys": "text-recognition"}
NOT_TEXT = "its label is not UTF-8 text"
COUNTED = r"^'data\.mdb': 'num-samples' says {} samples, but the LMDB has 2 images; all are used$"


def keys_of(*numbers: int) -> list[str]:
    return [f"image-{number:09d}" for number in numbers]


def basicsr(folder: Path) -> Path:
    names = ["0801_s001", "0801_s002", "folder/0802_s001"]
    path = write_lmdb(folder / "raw/x.lmdb", {name: picture(n) for n, name in enumerate(names)})
    lines = [f"{name}.png (20,24,3) 1" for name in [*reversed(names), "0999"]]
    (path / "meta_info.txt").write_text("\n".join([*lines, ""]))
    return folder / "raw"


def one_damaged(folder: Path) -> Path:
    text_recognition(folder / "raw/a", ["x"])
    os.truncate(text_recognition(folder / "raw/b", ["y"]) / "data.mdb", 9000)
    return folder / "raw"


HASHES = [f"{n * 7919 % 1000:040x}" for n in range(30)]
LMDBS = [
    of("text recognition has images and texts", lambda folder: text_recognition(folder / "raw", ["a", "7", "été", ""]),
       TEXTS, paths=keys_of(1, 2, 3, 4), text=["a", "7", "été", ""],
       values=[picture(n) for n in range(1, 5)], classes=None),
    of("labels are classes", labelled(b"dog", b"cat", b"dog"), NUMBERED, labels=[1, 0, 1], classes=("cat", "dog")),
    of("labels are numbers", labelled(b"7", b"0", b"-1"), NUMBERED, labels=[7, 0, -1], classes=None),
    of("labels are positions in a class list", labelled(b"1", b"0"), {**NUMBERED, "classes": ["cat", "dog"]},
       labels=[1, 0], classes=("cat", "dog")),
    of("labels are positions and names in a class list", labelled(b"1", b"0"), {**NUMBERED, "classes": ["0", "1"]},
       labels=[1, 0], classes=("0", "1")),
    of("an empty class is not a class", labelled(b"cat", b"", b"dog"), NUMBERED, labels=[0, 1], classes=("cat", "dog"),
       rejected={"data.mdb/image-000000002": "it has no label"}),
    *(of(f"the label {empty!r} among numbers is none", labelled(b"7", empty, b"10"), NUMBERED, labels=[7, 10],
         classes=None, rejected={"data.mdb/image-000000002": "it has no label"})
      for empty in (b"", b" \n")),
    of("labels in a column are texts", labelled(b"7", b"007"), {**NUMBERED, "label_keys": "digits=label-{:09d}"},
       digits=["7", "007"]),
    of("BasicSR's meta info lists the images", basicsr, {"keys": "basicsr"},
       paths=["folder/0802_s001.png", "0801_s002.png", "0801_s001.png"], values=[picture(n) for n in (2, 1, 0)],
       rejected={"x.lmdb/data.mdb/0999.png": "the LMDB has no such key"}),
    of("LSUN has the order of the file", in_lmdb({key: picture(n, "WEBP") * 40 for n, key in enumerate(HASHES)}),
       {"keys": "lsun"}, paths=HASHES, values=[picture(n, "WEBP") * 40 for n in range(30)]),
    of("equal keys of several LMDBs get the names of the LMDBs",
       several(lambda folder: text_recognition(folder / "raw/MJ/train", ["a", "b"]),
               lambda folder: text_recognition(folder / "raw/ST", ["c"]), files()),
       TEXTS, paths=["MJ/train/image-000000001", "MJ/train/image-000000002", "ST/image-000000001"],
       text=["a", "b", "c"]),
    of("one file, in numeric order",
       lambda folder: write_lmdb(folder / "a.mdb", {f"{n}": picture(n) for n in range(12)}, subdir=False),
       {"keys": "{}"}, paths=[f"{n}" for n in range(12)], values=[picture(n) for n in range(12)]),
    of("a missing or non-text label rejects one sample",
       in_lmdb(dict.fromkeys(keys_of(1, 2, 3, 4, 5), CAT) | {f"label-{n:09d}": b"x" for n in (1, 3)}
               | {"label-000000004": b"\xff", "label-000000005": b"x" * 70_000, "label-000000009": b"of no image"}),
       TEXTS, paths=keys_of(1, 3),
       rejected={"data.mdb/image-000000002": "it has no label", "data.mdb/image-000000004": NOT_TEXT,
                 "data.mdb/image-000000005": NOT_TEXT}),
    *(of(f"{options['keys']} of a count of {count}", labelled(b"x", b"y", **{"num-samples": b"%d" % count}), options,
         said=COUNTED.format(count), paths=keys_of(1, 2))
      for options in (NUMBERED, TEXTS, {"keys": "image-%09d"}) for count in (1, 30)),
    of("a key that is not a path", in_lmdb({"ok": CAT, "../up": CAT, b"\xff\x00": CAT}), {"keys": "lsun"}, paths=["ok"],
       rejected={"data.mdb/../up": NO_PATH, "data.mdb/": NO_PATH}),
    of("a pattern with a bracket and a shorter width", in_lmdb({f"a(b{n:03}c": picture(n) for n in (5, 1000)}),
       {"keys": "a(b{:3d}c"}, paths=["a(b005c", "a(b1000c"]),
    of("numbers of many digits",
       in_lmdb(dict.fromkeys([f"{n:017d}" for n in (0, 5, 10**17 - 1, 10**17, 10**19)] + ["00"], CAT)),
       {"keys": "{:017d}"}, paths=[f"{n:017d}" for n in (0, 5, 10**17 - 1, 10**17)]),
    of("a damaged LMDB among others", one_damaged, TEXTS,
       said=r"'b/data\.mdb': it is damaged: it has 9000 bytes, too few for its pages", text=["x"],
       rejected={"b/data.mdb": "it is damaged: it has 9000 bytes, too few for its pages"}),
]  # fmt: skip

PICTURES = [picture(number) for number in range(7)]
NAMES = ["a.png", None, "a.png", "../b.png", "", "/c.png", "d.png"]
FRAMES = [[{"bytes": b"a", "path": None}], []]
NAMED = ["dog", "cat"]
PATH_TYPES = [pa.string(), pa.large_string()]
if int(pa.__version__.partition(".")[0]) >= 26:  # earlier ones may be unable to write views
    PATH_TYPES.append(pa.string_view())
PARQUET = [
    of("files of Hugging Face's datasets", lambda _: FIXTURES / "datasets", classes=("ant", "bee", "cow"),
       listed=[{"path": f"{n:04d}.png", "label": n % 3, "caption": f"picture {n}"} for n in [7, 8, *range(7)]]),
    of("rows without a unique name get their number", in_parquet("data/x", image=image_column(PICTURES, NAMES)),
       paths=["a.png", *(f"data/x/{row:08d}" for row in range(1, 6)), "d.png"]),
    of("names shared by two files get the file name as a prefix",
       several(*(in_parquet(name, image=image_column(PICTURES[:2], ["a.png", name])) for name in ("t-0", "t-1"))),
       paths=["t-0/a.png", "t-0/t-0", "t-1/a.png", "t-1/t-1"]),
    of("one of several image columns is chosen and other bytes are skipped",
       in_parquet(photo=image_column(PICTURES[:2]), mask=image_column(PICTURES[2:4]), frames=FRAMES, label=[3, 4]),
       {"keys": "mask"}, said=r"left out: photo \(2 samples\), frames \(2 samples\)$", values=PICTURES[2:4],
       listed=[{"path": "a/00000000", "label": 3}, {"path": "a/00000001", "label": 4}]),
    of("numbers of 64 bits with and without a sign",
       several(in_parquet("a", image=PICTURES[:1], hash=[-1]),
               in_parquet("b", image=PICTURES[1:2], hash=pa.array([2**63], pa.uint64()))),
       said=r"left out: hash \(2 samples\)$", listed=[{"path": "a/00000000"}, {"path": "b/00000000"}]),
    of("a column of the name that another one gets", in_parquet(image=PICTURES[:1], width=[3], width_=[4]),
       listed=[{"path": "a/00000000", "width__": 3, "width_": 4}]),
    *(of(f"a column of paths names the rows, of type {kind}",
         in_parquet(image=PICTURES[:2], path=pa.array(["a.png", "b/c.png"], kind)), values=PICTURES[:2],
         listed=[{"path": "a.png"}, {"path": "b/c.png"}])
      for kind in PATH_TYPES),
    *(of(f"labels of {kind or 'their own'} type", classes_in_parquet(NAMED), typed("label", kind) if kind else {},
         labels=[0, 1], classes=("dog", "cat"))
      for kind in (None, "text", "class")),
    of("a class list renumbers", classes_in_parquet(NAMED), {"classes": ["cat", "bee", "dog"]}, labels=[2, 0],
       classes=("cat", "bee", "dog")),
    of("a class list names numbers", in_parquet(image=image_column(PICTURES[:2]), label=[1, 0]),
       {"classes": ["dog", "bee"]}, labels=[1, 0], classes=("dog", "bee")),
    of("labels are not requested", classes_in_parquet(NAMED), UNLABELLED, labels=None, classes=None),
    of("labels in a column of another name", in_parquet(image=PICTURES[:2], labels=[1, 0]), labels=None, classes=None,
       said=r"source '.*/a\.parquet': samples have no label, because no column is named label; if column 'labels' "
            r"holds the labels, read it with LMDBDataset\(OUT, target='labels'\)$"),
    of("labels of another name that are not requested", in_parquet(image=PICTURES[:2], labels=[1, 0]), UNLABELLED,
       labels=None, classes=None),
    of("labels without a class", classes_in_parquet(NAMED, labels=[0, -1, 1, 2]), labels=[0, 1],
       rejected={f"a/0000000{row}": "its label is not in the class list of 2 names" for row in (1, 3)}),
]  # fmt: skip

MASK = Companion("mask", "masks/{stem}.png")
BELOW = Companion("mask", "masks/{subdir}/{stem}.png")
NOT_AN_IMAGE = "not an image format that presize reads"


def paired(*companions: Companion, **options: Any) -> dict[str, Any]:
    return {"companions": companions, **options}


COMPANIONS = [
    of("companion files are not samples", files("1.jpg", "1_mask.png = 1", "2.jpg", "2_mask.png = 22"),
       paired(Companion("mask", "{stem}_mask.png")), paths=["1.jpg", "2.jpg"], mask_source_nbytes=[1, 2]),
    of("a companion named by a column may also be a sample",
       table("path,next\n1.jpg,2.jpg\n2.jpg,3.jpg\n3.jpg,3.jpg\n", "1.jpg", "2.jpg = 22", "3.jpg = 333"),
       paired(Companion("mask", column="next"), **CSV), paths=["1.jpg", "2.jpg", "3.jpg"],
       mask_source_nbytes=[2, 3, 3]),
    of("a sample without a companion is rejected and a non-image file skipped",
       files("a/1.jpg", "a/2.jpg", "a/notes.txt", "masks/1.png"), paired(MASK), paths=["a/1.jpg"],
       rejected={"a/2.jpg": "companion mask does not exist", "a/notes.txt": NOT_AN_IMAGE},
       errors={"a/2.jpg": "ImageError", "a/notes.txt": "NotAnImageError"}),
    of("a companion that links out of the source is refused",
       files("a/1.jpg", "a/2.jpg", "masks/1.png -> ../../far.png", "masks/2.png", "../far.png"), paired(MASK),
       paths=["a/2.jpg"], rejected={"masks/1.png": OUT, "a/1.jpg": f"companion mask is {OUT}"},
       errors={"masks/1.png": "SourceError", "a/1.jpg": "ImageError"}),
    of("unless requested", files("a/1.jpg", "masks/1.png -> ../../far.png", "../far.png = 12345"),
       paired(MASK, **FOLLOWED), paths=["a/1.jpg"], mask_source_nbytes=[5]),
    of("a column must not lead out of the source, or be empty",
       table("path,seg\n1.jpg,../raw/m.png\n2.jpg,m.png\n3.jpg,\n", "1.jpg", "2.jpg", "3.jpg", "m.png"),
       paired(Companion("mask", column="seg"), **CSV), paths=["2.jpg"],
       rejected={"1.jpg": "companion mask leads out of the source",
                 "3.jpg": "companion mask is not named in column seg"}),
    of("a column names companions in any spelling",
       table("path,seg\n1,m/1\n2,\\m\\2.png\n3,gone\n", "1.jpg", "2.jpg", "3.jpg", "m/1.png = 1", "m/2.png = 22"),
       paired(Companion("mask", column="seg"), **CSV), paths=["1.jpg", "2.jpg"], seg=["m/1.png", "m/2.png"],
       mask_source_nbytes=[1, 2], rejected={"3.jpg": "companion mask does not exist"}),
    *(of(f"{image!r} and {mask!r} are in two normalizations", files(f"images/{image}.jpg", f"masks/{mask}.png = 22"),
         paired(MASK), paths=[f"images/{image}.jpg"], mask_source_nbytes=[2])
      for image, mask in (("\xe9", "e\u0301"), ("e\u0301", "\xe9"))),
    of("masks are in folders like those of the images",
       files("images/train/1.jpg", "images/val/1.jpg", "masks/train/1.png", "masks/val/1.png = 22"),
       paired(BELOW, **UNLABELLED), paths=["images/train/1.jpg", "images/val/1.jpg"], mask_source_nbytes=[1, 2],
       labels=None),
    of("Cityscapes' other files are not samples",
       files("leftImg8bit/train/bonn/1_leftImg8bit.png",
             *(f"gtFine/train/bonn/1_gtFine_{end}" for end in ("color.png", "labelIds.png", "polygons.json"))),
       paired(Companion("mask", "gtFine/{subdir}/{stem%_leftImg8bit}_gtFine_labelIds.png"), **UNLABELLED),
       paths=["leftImg8bit/train/bonn/1_leftImg8bit.png"],
       rejected={"gtFine/train/bonn/1_gtFine_color.png": "companion mask is not named by gtFine/{subdir}/"
                 "{stem%_leftImg8bit}_gtFine_labelIds.png", "gtFine/train/bonn/1_gtFine_polygons.json": NOT_AN_IMAGE},
       errors=dict.fromkeys((f"gtFine/train/bonn/1_gtFine_{end}" for end in ("color.png", "polygons.json")),
                            "NotAnImageError")),
    of("a table lists no other files", table("path,n\n1_img.jpg,1\n2.jpg,2\n", "1_img.jpg", "1_masks.png", "2.jpg"),
       paired(Companion("mask", "{stem%_img}_masks.png"), **CSV), paths=["1_img.jpg"],
       errors={"2.jpg": "ImageError"}, rejected={"2.jpg": "companion mask is not named by {stem%_img}_masks.png"}),
    of("folders of each patient", files("a/images/1.png", "a/masks/1.png", "b/images/1.png", "b/masks/1.png"),
       paired(Companion("mask", "{dir%/images}/masks/{name}")), paths=["a/images/1.png", "b/images/1.png"],
       classes=("a", "b")),
    of("if one folder holds all images, its subfolders are classes",
       files("image/cats/1.jpg", "image/dogs/1.jpg", "mask/cats/1.png", "mask/dogs/1.png", "mask/dogs/x.png", "notes"),
       paired(Companion("mask", "mask/{subdir}/{stem}.png")), paths=["image/cats/1.jpg", "image/dogs/1.jpg"],
       labels=[0, 1], classes=("cats", "dogs")),
    of("also if a stray file is among their companions",
       files("images/cats/1.jpg", "images/dogs/2.jpg", "masks/cats/1_mask.png", "masks/dogs/2_mask.png",
             "masks/dogs/9_mask.png"),
       paired(Companion("mask", "masks/{subdir}/{stem}_mask.png")), paths=["images/cats/1.jpg", "images/dogs/2.jpg"],
       labels=[0, 1], classes=("cats", "dogs")),
    of("and splits", files("images/train/a/1.jpg", "images/val/a/2.jpg", "masks/train/a/1.png", "masks/val/a/2.png"),
       paired(BELOW, **BY_FOLDERS), paths=["images/train/a/1.jpg", "images/val/a/2.jpg"], split=["train", "val"],
       classes=("a",)),
    of("a folder of companions is not a class of splits",
       files("train/images/1.jpg", "train/masks/1.png", "val/images/1.jpg", "val/masks/1.png"),
       paired(Companion("mask", "{dir%/images}/masks/{stem}.png"), **BY_FOLDERS), classes=("images",), labels=[0, 0]),
    of("a folder of companions is not a class",
       files("cats/1.jpg", "masks/1.png", "masks/2.png", "masks/unused.png", "zebras/2.jpg"), paired(MASK),
       classes=("cats", "zebras"), paths=["cats/1.jpg", "zebras/2.jpg"], labels=[0, 1]),
    of("nor is one with stray files among its companions",
       files("cats/1.jpg", "masks/1_mask.png", "masks/2_mask.png", "masks/9_mask.png", "masks/Thumbs.db",
             "zebras/2.jpg"),
       paired(Companion("mask", "masks/{stem}_mask.png")), classes=("cats", "zebras"), labels=[0, 1],
       paths=["cats/1.jpg", "zebras/2.jpg"],
       rejected={"masks/9_mask.png": "companion mask does not exist", "masks/Thumbs.db": NOT_AN_IMAGE},
       errors={"masks/9_mask.png": "ImageError", "masks/Thumbs.db": "NotAnImageError"}),
    of("a folder of images that lack companions is a class",
       files("cats/1.jpg", "dogs/2.jpg", "masks/1.png", "zebras/3.jpg", "masks/3.png"), paired(MASK),
       classes=("cats", "dogs", "zebras"), labels=[0, 2], rejected={"dogs/2.jpg": "companion mask does not exist"}),
]  # fmt: skip

NOT_UTF8 = "its name is not UTF-8"
BYTES = [
    of("a file", lambda folder: not_utf8(make(folder / "raw", "a/1.jpg"), b"a/caf\xe9\n.jpg").touch() or folder / "raw",
       paths=["a/1.jpg"], rejected={"a/caf\\xe9\n.jpg": NOT_UTF8}),
    *(of(f"the folder {where!r}",
         lambda folder, where=where: make(not_utf8(make(folder / "raw", "a/1.jpg"), where), "2.jpg", "deeper/3.jpg")
         and folder / "raw",
         said=r"1 folder left out .*: '.*caf\\xe9': its name is not UTF-8", paths=["a/1.jpg"], classes=("a",),
         rejected={where.decode("utf-8", "backslashreplace"): NOT_UTF8})
      for where in (b"caf\xe9", b"a/caf\xe9")),
    of("the source", lambda folder: make(not_utf8(folder, b"\xff\n"), "a/1.jpg"), paths=["a/1.jpg"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "options", "said", "expected"),
    [*FOLDERS, *LINKED, *TABLES, *SPLIT, *TARS, *LMDBS, *PARQUET, *COMPANIONS, *BYTES],
)
def test_a_source_has_these_samples(
    make: Make, options: dict[str, Any], said: str, expected: dict[str, Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    source = make(tmp_path)
    arguments = {name: options[name] for name in ("types", "companions", "follow_links") if name in options}
    samples = SourceOptions(**{name: value for name, value in options.items() if name not in arguments})
    with pytest.warns(PresizeWarning, match=said) if said else nullcontext() as warned:
        found = scan(source, samples, **arguments)
    assert facts(found, *expected) == expected
    for warning in warned or ():
        assert str(warning.message).isprintable()
        assert warning.filename == __file__, "it points at the caller"
