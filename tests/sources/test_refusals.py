"""Sources and options from which no build can start: one line tells the problem and the fix."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foreign import image_column, picture, tar_bytes, tar_samples, write_lmdb, write_parquet, write_tar
from listings import Make, at, classes_in_parquet, files, holding, in_lmdb, in_parquet, in_tar, labelled, several, table
from presize.errors import OptionError, SourceError
from presize.options import ColumnType, Companion, SourceOptions
from presize.sources.scan import scan

FIXTURE = Path(__file__).parents[1] / "fixtures" / "format-1"


def by_lmdb(database: bytes | None = None, **options: Any) -> Make:
    """Return a maker of one value in a named database."""

    def write(folder: Path) -> Path:
        with lmdb.open(str(folder / "raw"), **options) as env:
            with env.begin(write=True, db=env.open_db(database)) as txn:
                txn.put(b"1", picture(1))
        return folder / "raw"

    return write


def several_values(folder: Path) -> Path:
    path = write_lmdb(folder / "raw", {"1": b"a"}) / "data.mdb"
    content = bytearray(path.read_bytes())
    for page in (0, 4096):
        content[page + 16 + 24 + 48 + 4] = 0x04  # MDB_DUPSORT of the main database; lmdb sets it only for others
    path.write_bytes(content)
    return path


def both(name: str) -> Make:
    """Return a maker of one of two containers of different kinds, or their folder."""

    def write(folder: Path) -> Path:
        write_tar(folder / "both" / "1.tar", tar_samples(1))
        write_parquet(folder / "both" / "1.parquet", {"image": image_column([picture(1)])})
        return folder / "both" / name

    return write


PARQUET = io.BytesIO()
pq.write_table(pa.table({"image": image_column([picture(n) for n in range(10)])}), PARQUET)
FOLDER = "expected a folder of images"
URL = "is a URL; download it, or mount it, and give the local folder"
ONE: dict[str | bytes, bytes] = {"image-1": picture(1), b"\x1b[31m\xff": b""}
NUMBERED = {"keys": "image-{:09d}", "label_keys": "label-{:09d}"}
TEXTS = {"keys": "text-recognition"}
PACKED = labelled(*(struct.pack("<I", n) for n in (1, 65, 300)))
NOT_TEXT = "its label is not UTF-8 text; it looks like a "
LABELS = {"labels": "t.csv"}
NO_CLASSES = "--classes needs a label column of strings"
CATS = ("cats/0.jpg", "dogs/0.jpg")
SEVERAL = ("two.jpg", "two.png", "deep/1.jpg", "\xe9\xe9.jpg", "e\u0301e\u0301.jpg")
NO_PATH: list[tuple[str, str, str]] = [
    ("gone.jpg", "'gone.jpg' does not exist", "there is none"),
    ("far\\0.jpg", "'far\\\\0.jpg' does not exist; expected a path relative to the source, with / between folders", ""),
    ("D:\\far\\x.jpg", "'D:\\\\far\\\\x.jpg' does not exist; expected a path relative to the source, wi", "a drive"),
    ("/etc/passwd", "'/etc/passwd' does not exist; expected a path relative to the source, with", "elsewhere"),
    ("../raw/dogs/0.jpg", "'../raw/dogs/0.jpg' leads out of the source; there is 'dogs/0.jpg'", "out and in again"),
    *((path, f"{path!r} leads out of the source", "elsewhere") for path in ("../a", "a/../../b", "..", "a\0b")),
    ("{raw}2/a.jpg", "raw2/a.jpg' does not exist", "beside the source"),
    ("{raw}/../a.jpg", "'../a.jpg' leads out of the source", "below it, and out again"),
    ("{raw}", "/raw' does not exist", "the source itself"),
    *((path, f"{path!r} ", "the source itself") for path in (".", "./")),
    ("/home/me/raw/dogs/0.jpg", "'/home/me/raw/dogs/0.jpg' does not exist; there is 'dogs/0.jpg'", "another machine"),
    ("Dogs/0.jpg", "'Dogs/0.jpg' does not exist; there is 'dogs/0.jpg', and case matters", "case counts"),
    ("dogs/0.png", "'dogs/0.png' does not exist; there is 'dogs/0.jpg' (source", "another suffix"),
    ("dogs%2F0.jpg", "'dogs%2F0.jpg' does not exist; there is 'dogs/0.jpg'", "a URL's escapes are not decoded"),
    ("two", "'two' does not exist; there are 'two.jpg' and 'two.png'", "which of the two?"),
    ("e\u0301\xe9", r"; there are 'e\u0301e\u0301.jpg' and '\xe9\xe9.jpg', and this is 'e\u0301\xe9'", "which?"),
    ("1.jpg", "'1.jpg' does not exist; there is 'deep/1.jpg'", "in another folder"),
    ("broken.jpg", "'broken.jpg' does not exist", "a link to nothing"),
    ("loop.jpg", "'loop.jpg' cannot be accessed: Too many levels", "a link to itself"),
    ("cats/0.jpg/1.jpg", "'cats/0.jpg/1.jpg' cannot be accessed: Not a directory", "below a file"),
    ("x" * 256, "xxx' cannot be accessed: File name too long", "no file system has it"),
    ("cats/", "'cats/' is not a file", "a folder"),
    ("pipe", "'pipe' is not a file", "opening it would wait for ever"),
    ("zero", "'zero' is a link out of the source; use --follow-links", "a device, outside"),
    ("out/1.jpg", "'out/1.jpg' is a link out of the source; use --follow-links if you trust it (source", "outside"),
]  # fmt: skip
LINKS = (
    "broken.jpg -> nowhere",
    "loop.jpg -> loop.jpg",
    "zero -> /dev/zero",
    "out -> ../far",
    "out.jpg -> ../far/1.jpg",
)


def listing(path: str) -> Make:
    """Return a maker of a table of three paths, of which the first is valid."""
    listed = table(f"path\ncats/0.jpg\n{path}\nalso gone\n", *CATS, *SEVERAL, "../far/1.jpg", *LINKS)

    def write(folder: Path) -> Path:
        source: Path = listed(folder)
        os.mkfifo(source / "pipe")
        return source

    return write


REFUSED: list[tuple[Make, dict[str, Any], str, str]] = [
    # Folders
    (files(), {}, "raw' holds no files (nothing at all); expected image files", "an empty folder"),
    (files(".a", "b/.c"), {}, "holds no files (2 hidden); expected", "hidden files alone"),
    (files("1.jpg", "2.jpg", "thumbs/"), {}, "no files (2 outside the class folders)", "a stray empty folder"),
    (files("logo.jpg", "train -> ../../far", "../../far/1.jpg"), {},
     "no files (1 outside the class folders, 1 refused, the first: 'train': a l", "class folders that are links out"),
    (files("a/1\n.jpg -> /dev"), {}, r"1 refused, the first: 'a/1\n.jpg': a link out", "refused files alone"),
    (files("ant/1", "be\ne/1", "cow/1"), {"classes": ["ant"]},
     r"2 class folders are not in the class list of 1 name, such as 'ant'; the first is 'be\ne'", "no such class"),
    (files("1.jpg"), {"classes": ["ant"]}, "--classes needs class folders", "a flat folder"),
    (files("a/1"), {"classes": "classes.txt"}, "expected a list of names, got 'classes.txt'", "a file is not a list"),
    (files("a/1"), {"classes": {"a"}}, "classes: expected a list of names, got {'a'}", "a set has no order"),
    (files("a/1"), {"classes": ["a", "b", "a"]}, "classes: expected each name once, got 'a' 2 times", "which?"),
    (files("a/1"), {"classes": ["a", ""]}, "'' is not the name of a class", "a folder has a name"),
    (files("1.jpg"), {"split": "folders"}, "--split folders: source ... has no folders; expected one for each", ""),
    (files("train/ant/1.jpg", "train/bee/1.jpg"), {"split": "folders", "classes": ["ant"]},
     "1 class folder is not in the class list of 1 name, such as 'ant'; the first is 'bee'", "a class of a split"),
    (at("file", "file"), {}, f"source 'file' is a file; {FOLDER}", "not a folder"),
    (at("no\nwhere"), {}, rf"source 'no\nwhere' does not exist; {FOLDER}", "not there"),
    (at("broken", "broken -> nowhere"), {}, "source 'broken' does not exist", "a link to nothing"),
    (at("loop", "loop -> loop"), {}, "source 'loop': Too many levels of symbolic links", "a link to itself"),
    (at("nu\0ll"), {}, r"source 'nu\x00ll': ... null", "no file system has it"),
    (at(""), {}, "source '' does not exist", "no name is not the folder where one stands"),
    # Kinds of sources
    (at("hf://datasets/x"), {}, URL, "a store that we do not know"),
    (at("gs:/bucket/x"), {}, URL, "a slash is missing"),
    (lambda folder: (folder / "a.zip").write_bytes(b"PK\5\6") and "a.zip", {},
     "source 'a.zip' is a zip file; unpack it, and give the folder", "its images cannot be read one by one"),
    (at("OUT", f"OUT/64 -> {FIXTURE}"), {}, "is a presize dataset, whose images are already resized; build from the "
     "raw images, or make another dataset from it with presize derive", "sizes of a dataset"),
    (at("OUT/64", f"OUT/64 -> {FIXTURE}"), {}, "'OUT/64' is a presize dataset, whose images are already", "a dataset"),
    (several(in_tar(*tar_samples(2), name="x"), files("1.tar -> ../x")), {},
     "the first: '1.tar': it is a link out of the source; use --follow-links", "a container elsewhere"),
    (at("s3://data/x"), {"companions": [Companion("mask", "{stem}.png")]},
     "--pair is for folders, label tables, tar shards, not for buckets (source 's3://data/x'); copy it to a disk first",
     "a bucket"),
    (at("http://127.0.0.1:9/x"), {}, "a web server does not list its files; give their paths with --labels", ""),
    (both(""), {}, "holds files of several kinds (parquet, tar); give a folder with one kind", "which?"),
    (both("1.parquet"), {"classes": ["a"]}, "--classes needs labels, and the samples have none", "no labels"),
    (files("1.png"), {"keys": "jpg"}, "--keys is for Parquet files, LMDBs, tar shards, not for folders (source '", ""),
    (both("1.tar"), {"keys": "png", "label_keys": "label-{}"}, "--label-keys is for LMDBs, not for tar shards (so", ""),
    (files("a/1"), {"types": [ColumnType("label", "class")]},
     "--column-type is for label tables, label tables of buckets, Parquet files, LMDBs, tar shards, not for", ""),
    (files("a/1"), {"label_keys": "label-{}"}, "label_keys: needs --keys", ""),
    (files("a/1"), {"keys": "lsun", "label_keys": "label-{}"}, "label_keys: cannot be combined with --keys lsun", ""),
    (files("a/1"), {"keys": ""}, "keys: expected a string such as image-", ""),
    # Label tables
    (files("a/1"), {"labels": "https://host/t.csv"}, "labels 'https://host/t.csv': a URL cannot be read here; do", ""),
    (files("a/1"), {"labels": "./none"}, "labels './none': expected a name that ends with", "no suffix"),
    (at("raw/a", "raw/a", "t.csv"), LABELS, f"source 'raw/a' is a file; {FOLDER}", "paths begin in a folder"),
    (table("path,label\ncats/0.jpg,cat\ndogs/0.jpg,dog\n", *CATS), {**LABELS, "classes": ["cat"]},
     "labels 't.csv': the label 'dog' is not in the class list of 1 name", "no such class"),
    (table("path,label\ncats/0.jpg,5\n", *CATS), {**LABELS, "classes": ["5"]},
     f"{NO_CLASSES}; --column-type label:class reads numbers as their names", "numbers"),
    (table("path,label\ncats/0.jpg,\1\0\0\0\n", *CATS), LABELS,
     r"the label b'\x01\x00\x00\x00' is not text: it looks like a little", "a packed number"),
    *((listing(path), LABELS, f"labels 't.csv': 2 of its 3 paths cannot be used, the first: ... {said}", reason)
      for path, said, reason in NO_PATH),
    (table("0\n", *CATS, name="t.txt"), {"labels": "t.txt"}, "the first: '0' does not exist", "a count of no lines"),
    (table("0 cats/0.jpg\n0 dogs/0.jpg\n", *CATS, name="t.txt"), {"labels": "t.txt"},
     "the first: '0 cats/0.jpg' does not exist; there is 'cats/0.jpg'", "labels in front of paths"),
    (table("id,img\n1,cats/0.jpg\n", *CATS), LABELS,
     "the first: '1' does not exist (source ... ); no column is called path, so 'id' was used", "another"),
    (table("path,split\n1.jpg,train\n", "1.jpg"), {**LABELS, "split": "a=0.5,b=0.5"},
     "already have a column 'split'; leave out --split", "whose splits?"),
    (table("path,n\nb/x/1.jpg,1\n3.jpg,2\n", "b/x/1.jpg", "3.jpg"), {**LABELS, "split": "folders"},
     "--split folders: 1 of 2 paths are not in a folder of the source; the first is '3.jpg'", "beside the splits"),
    # Companions
    (table("path,seg\n1.jpg,1.png\n", "1.jpg", "1.png"), LABELS | {"companions": [Companion("mask", column="masks")]},
     "--pair mask: there is no column 'masks' (columns: path, ... seg", "another column"),
    (table("path,masks\n1.jpg,7\n", "1.jpg", "1.png"), LABELS | {"companions": [Companion("mask", column="masks")]},
     "--pair mask: column 'masks' does not hold paths", "numbers"),
    (table("path,masks,mask_width\n1.jpg,1.png,3\n", "1.jpg", "1.png"),
     LABELS | {"companions": [Companion("mask", column="masks")]},
     "the index needs the column name 'mask_width'; rename yours", "a name that is taken"),
    (files("i/1.jpg", "m/1.PNG"), {"companions": [Companion("mask", "m/{stem}.png")], "labels": "none"},
     "i/1.jpg: the companion mask does not exist: 'm/1.png'; there is 'm/1.PNG', and case matters", "case counts"),
    (files("1.png", "2.png"), {"companions": [Companion("mask", "{name}")]},
     "every file of ... is a companion; --pair matches the images themselves", "no image is left"),
    # LMDBs
    (in_lmdb({f"image-{n:09d}": b"" for n in range(1, 8)}), {},
     "an LMDB needs --keys; its first keys are 'image-000000001', 'image-000000002', ... …; expected a pattern, such "
     "as --keys image-{:09d} for image-000000001, or one of text-recognition, basicsr", "keys are not guessed"),
    *((in_lmdb(ONE), {"keys": keys}, r"no key matches --keys ... ; its first keys are '\\x1b[31m\\xff', 'image-1'", "")
      for keys in ("img-{:09d}", "image-{:05d}", "text-recognition")),
    (in_lmdb(ONE), {"keys": "image-{}", "label_keys": "label-{:09d}"},
     "no key matches --label-keys label-{:09d}; its first keys are ... 'image-1'", "no labels"),
    (labelled(b"1", b"2"), {**NUMBERED, "classes": ["1", "10", "2"]},
     "the label 1 may be a position in the class list or the name '1' in it; --column-type label:class", "a guess"),
    *((in_lmdb({f"{before}{n:05d}{behind}": picture(n) for n in range(7)}), {},
       f"such as --keys {before}{{:05d}}{behind} for {before}00000{behind}, or one of", "keys of another shape")
      for before, behind in (("", ""), ("n01/", ".jpg"))),
    (in_lmdb({f"{n * 7919 % 101:x}a{n}": picture(n) for n in range(9)}), {}, "such as --keys image-{:09d}", ""),
    *((in_lmdb({f"{n}": value for n in range(2)}), options, said, name)
      for options in ({}, {"keys": "{}"})
      for said, name, value in (
          ("the value of '0' is a Python pickle", "a dict", pickle.dumps({"image": b""}, 0)),
          ("the value of '0' is a Python pickle", "an array", pickle.dumps(np.zeros(9), 0)),
          ("the value of '0' is a Caffe Datum", "pixels", b"\x08\x03\x10\x80\x02\x18\x80\x02\x22\x80\x80\x0c"),
          ("the value of '0' is a Caffe Datum", "a JPEG", b"\x22\xb0\x09\xff\xd8\xff\xe0"))),
    *((in_lmdb({"0": pickle.dumps((b"x", 3), protocol)}), {"keys": "{}"},
       "the value of '0' is a Python pickle, and unpickling can run arbitrary code", f"protocol {protocol}")
      for protocol in (2, 3, 4, 5)),
    (in_lmdb({f"{n}": bytes(3000) for n in range(40)}), {"keys": "{}"},
     "none of the values tried (16) is an encoded image: the value of '0' begins with", "zeros"),
    (in_lmdb(ONE), {"keys": "basicsr"}, "needs meta_info.txt next to the LMDB: No such file ... 'image-1'", "no list"),
    (PACKED, NUMBERED, r"the label b'\x01\x00\x00\x00' is not text: it looks like a little-endian 32-bit integer, 1; "
     "write labels as text, such as '1' or 'cat'", "packed numbers"),
    (PACKED, TEXTS, NOT_TEXT + "little-endian 32-bit integer, 1", "packed numbers as texts"),
    (labelled(b"9"), {**NUMBERED, "types": [ColumnType("n", "int")]},
     "--column-type n:int: there is no such column (columns: label", "another column"),
    *((labelled(b"x"), options, said, "no pattern")
      for text in ("image", "image-{}-{}", "{name}", "{:9x}", "image-%s", "{:099999d}", "{:18d}")
      for options, said in (
          ({"keys": text}, "keys: expected a pattern with one number, such as image-{:09d}, or text-"),
          ({"keys": "image-{:09d}", "label_keys": f"={text}"}, "label_keys: expected a "))),
    (by_lmdb(b"images", max_dbs=2, lib_version=0), {"keys": "{}"},
     "its key b'images' holds a database; expected plain keys and values", "several databases"),
    (by_lmdb(lib_version=1), {"keys": "{}"}, "it is not an LMDB file of engine 0.9", ""),
    (several_values, {"keys": "{}"}, "its keys have several values, or are native integers", ""),
    # Parquet
    (in_parquet(url=["a"], label=[1]), {}, "no image column ... ; it has url (string), label (int64)", "URLs"),
    (in_parquet(image=image_column([b""])), {"keys": "img"}, "--keys img is not an image column ... it has image", ""),
    (in_parquet(photo=image_column([b""]), mask=image_column([b""])), {},
     "it has 2 image columns; choose one, such as --keys photo", "which?"),
    *((holding("a.parquet", content), {}, "holds no samples in 1 file; ... it cannot be read as Parquet", reason)
      for content, reason in (
          (PARQUET.getvalue()[:-1], "without its end"), (PARQUET.getvalue()[:100], "cut short"),
          (b"PAR1", "its magic alone"), (PARQUET.getvalue()[:-20] + bytes(20), "zeros at its end"))),
    (classes_in_parquet(["dog", "cat"], ["cat", "dog"]), {},
     "the class lists of 'a.parquet' and 'b.parquet' differ; build each separately", "which?"),
    # Tars
    *((holding(f"a.tar.{kind}", module.compress(bytes(512))), {},
       f"it is compressed, ... ; decompress it first: ... -d a.tar.{kind}", "no image can be read by itself")
      for kind, module in (("gz", gzip), ("bz2", bz2), ("xz", lzma))),
    *((holding("a.tar", content), {}, "a.tar' holds no samples in 1 file; the first: 'a.tar': it is not a tar", reason)
      for content, reason in ((b"", "nothing"), (b"a", "a byte"), (bytes(100), "zeros"), (b"x" * 600, "text"))),
    (holding("a.tar", tar_bytes(tar_samples(1))[: 1124 + len(picture(0)) // 512 * 512]), {},
     "the first: 'a.tar/000000.png': the tar ends before this sample does", "a first sample that may lack a file"),
    (in_tar(*tar_samples(1), name="raw/0.tar"), {"split": "folders"},
     "--split folders: '0.tar' is not in a folder of the source", "beside the splits"),
    # Splits
    *((files("a/1"), {"split": text}, f"split: ... {said}", "") for text, said in (
        ("", "expected folders, or names and fractions, such as train=0.9,val=0.1, got ''"),
        *((text, f"got '{text}'") for text in (
            "folder", "train", "train=0.9,val", "train=0.9,", "=0.9,val=0.1", "train=90%,val=10%", "train=-0.5,val=1.5",
            "train=1,val=0", "train=0.5,train=0.5")),
        ("train=0.9,val=0.2", "the fractions in 'train=0.9,val=0.2' add up to 1.1, expected 1"),
        ("train=9,val=1", "add up to 10, expected 1"))),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:source .* left out")
@pytest.mark.parametrize(("make", "options", "message", "reason"), REFUSED)
def test_a_source_is_refused_in_one_line(
    make: Make, options: dict[str, Any], message: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message stands for all lines that contain its parts, which `` ... `` separates."""
    monkeypatch.chdir(tmp_path)
    source, others = make(tmp_path), {name: options[name] for name in ("types", "companions") if name in options}
    with pytest.raises((SourceError, OptionError)) as caught:
        scan(source, SourceOptions(**{name: options[name] for name in options if name not in others}), **others)
    said = str(caught.value)
    assert said.isprintable(), repr(said)
    assert all(part in said for part in message.split(" ... ")), (said, reason)
