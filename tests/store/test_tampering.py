"""Tampered datasets: the message of each entry point, and none about things that it does not read.

Sizes and hashes in the manifest follow the change, as if somebody hid it, unless a row says otherwise.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
import pytest

from builds import files
from presize.errors import BuildError, DatasetError, RemoteError
from presize.remote.fetch import fetch_dataset
from presize.store.data_files import MANIFEST
from presize.store.dataset import Dataset
from presize.store.export import export_dataset
from presize.store.verify import verify_dataset
from servers import http
from tampering import (
    change_manifest,
    change_offset,
    change_records,
    flip_record,
    index_has_changed,
    read_table,
    reseal,
    with_column,
    with_value,
    write_table,
)

Change = Callable[[Path], object]
SHARD = "shards/00000.lmdb"

# --- the entry points ---


def open_it(root: Path, _: str) -> None:
    Dataset(root)


def read_it(root: Path, _: str) -> None:
    data = Dataset(root)
    for part in (data, *map(data.companion, data.companions)):
        for _position, _pixels in part.pixels(range(len(part))):
            pass
    for sample in range(len(data)):
        data.path(sample)


def verify_it(root: Path, _: str) -> None:
    if problems := verify_dataset(root).problems:
        raise DatasetError("; ".join(f"{file}: {what}" for file, what in problems))


def export_it(root: Path, _: str) -> None:
    out = root.with_name("exported")
    try:
        export_dataset(root, out)
    except DatasetError as error:
        if "nothing was written" in str(error) or "column" in str(error):
            assert not out.exists()
        raise


def fetch_it(root: Path, url: str) -> None:
    before = {*root.parent.iterdir()}
    out = root.with_name("fetched")
    try:
        fetch_dataset(url, out)
    except (DatasetError, RemoteError):
        assert not (out / MANIFEST).exists(), "a refused copy is not a dataset"
        assert {*root.parent.iterdir()} <= {*before, out}, "and no file is outside"
        raise
    assert files(root).items() <= files(out).items()


WAYS = {"open": open_it, "read": read_it, "verify": verify_it, "export": export_it, "fetch": fetch_it}

# --- changes ---


def manifest(*place: str | int, value: object) -> Change:
    """Return a change that sets `value` at a place such as ("shards", 0, "bytes") of the manifest."""

    def change(values: Any) -> None:
        for step in place[:-1]:
            values = values[step]
        values[place[-1]] = value

    return lambda root: change_manifest(root, change)


def index(column: str, values: Any, row: int | None = None) -> Change:
    """Return a change that replaces a column of the index, or one value of it."""

    def change(root: Path) -> None:
        table = read_table(root)
        if row is None:
            write_table(root, with_column(table, column, pa.array(values, table.schema.field(column).type)))
        else:
            write_table(root, with_value(table, column, row, values))

    return change


def table(change: Callable[[pa.Table], pa.Table], rows_per_batch: int | None = None) -> Change:
    return lambda root: write_table(root, change(read_table(root)), rows_per_batch)


def content(file: str, change: Callable[[bytes], bytes], hidden: bool = True) -> Change:
    """Return a change of the bytes of a file; the manifest follows if it is hidden."""

    def write(root: Path) -> None:
        before = (root / file).read_bytes()
        (root / file).write_bytes(change(before))
        assert (root / file).read_bytes() != before
        if hidden:
            reseal(root)

    return write


def removed(file: str) -> Change:
    return lambda root: (root / file).unlink()


def flipped(file: str) -> Change:
    """Return a change of a bit in the last nonzero byte of a file, which the manifest does not follow."""

    def flip(old: bytes) -> bytes:
        at = len(old.rstrip(b"\0")) - 1
        return old[:at] + bytes([old[at] ^ 1]) + old[at + 1 :]

    return content(file, flip, hidden=False)


def record(sample: int, change: Callable[[bytes], bytes], **options: bool) -> Change:
    """Return a change of one stored value; its CRC-32 in the index follows."""

    def write(root: Path) -> None:
        places = read_table(root).select(["shard", "row"]).to_pylist()
        here = (places[sample]["shard"], places[sample]["row"])
        change_records(root, lambda shard, row, old: change(old) if (shard, row) == here else old, **options)

    return write


def without_a_record(root: Path) -> None:
    with lmdb.open(str(root / SHARD), subdir=False, lock=False, lib_version=0) as env, env.begin(write=True) as txn:
        txn.delete((2).to_bytes(8, "big"))
    reseal(root)


def free_pages_outside(root: Path) -> None:
    shard = bytearray((root / SHARD).read_bytes())
    for page in (0, 4096):  # both meta pages
        struct.pack_into("<Q", shard, page + 16 + 24 + 40, 2**33)
    (root / SHARD).write_bytes(shard)
    reseal(root)


def no_picture(root: Path) -> None:
    """Make index and shard agree on a value that no decoder accepts."""
    value = b"\xff\xd8\xff not a picture"
    record(0, lambda _: value)(root)
    index("nbytes", len(value), row=0)(root)


def arrow(**options: Any) -> Change:
    """Return the index written with other options of Arrow."""

    def change(root: Path) -> None:
        columns, how = read_table(root), pa.ipc.IpcWriteOptions(**options)
        with (
            pa.OSFile(str(root / "index.arrow"), "wb") as file,
            pa.ipc.new_file(file, columns.schema, options=how) as w,
        ):
            w.write_table(columns)
        index_has_changed(root)

    return change


DICTIONARIES, BATCHES = 2, 3
"""Numbers of two fields of the footer of an Arrow file."""


def without_in_footer(field: int) -> Change:
    """Remove a field from the footer of the index, which may be absent if it is empty."""

    def change(old: bytes) -> bytes:
        changed = bytearray(old)
        end = len(changed) - 10
        begin = end - struct.unpack_from("<i", changed, end)[0]
        footer = begin + struct.unpack_from("<I", changed, begin)[0]
        fields = footer - struct.unpack_from("<i", changed, footer)[0]
        struct.pack_into("<H", changed, fields + 4 + 2 * field, 0)
        return bytes(changed)

    return content("index.arrow", change)


# --- the table ---


def opening(words: str, verify: str | None = None) -> dict[str, str]:
    """Return the messages about a dataset that cannot be opened, and so neither read nor exported; the same for
    verify."""
    return {"open": words, "read": words, "export": words, "verify": words if verify is None else verify}


def reading(words: str, verify: str, export: str | None = None, fetch: str = "") -> dict[str, str]:
    """Return the messages about a dataset that can be opened; the same for export as for reading."""
    return {"read": words, "export": words if export is None else export, "verify": verify, "fetch": fetch}


def column(name: str, kind: str) -> str:
    return f"index.arrow is damaged: expected one column {name} of type {kind} without nulls; copy or build the dataset"


DAMAGED = r"index\.arrow is damaged: "
LENGTH = r"is damaged: its length differs from the index; presize verify lists all damage$"
OTHER_RECORD = r"shards/0000\d\.lmdb: row \d \(class-.* is damaged: its length or CRC-32 differs from the"
NOT_ONCE = r"index\.arrow: it does not list each of the 3 rows of shards/0000[01]\.lmdb once"
UNDECODABLE = r"row \d \(.*\) cannot be decoded: "
BAD_TEXT = r"index\.arrow: In column 0: "
OUTSIDE_TEXT = r"is damaged: the path of sample 2 is out of bounds"
PATHS = [f"class-0/{i}.png" for i in range(6)]

TABLE: list[tuple[str, dict[str, str], dict[str, Change]]] = [
    # dataset  message of each entry point  change
    ("lmdb", {}, {"nothing": lambda _: None}),
    ("folder", {"open": "is a folder of image files; read it with FolderDataset"}, {"nothing": lambda _: None}),
    ("masks", {}, {"nothing": lambda _: None}),

    # Files that the manifest does not describe.
    ("lmdb", reading(r"00000\.lmdb: No such file or directory; the dataset is incomplete",
                     "^shards/00000.lmdb: cannot be read: No such file or directory$",
                     fetch=r"00000\.lmdb does not exist"), {"no shard": removed(SHARD)}),
    ("lmdb", reading("truncated or replaced; copy or build the dataset again",
                     r"^shards/00000.lmdb: has \d+ bytes where the manifest says \d+$",
                     fetch=r"00000.lmdb has \d+ bytes where the manifest says \d+"), {
        "a shard cut short": content(SHARD, lambda old: old[:-1], hidden=False),
        "a longer shard": content(SHARD, lambda old: old + b"x", hidden=False),
    }),
    ("lmdb", reading("is damaged: its CRC-32 differs", "^shards/00000.lmdb: its SHA-256 differs from the manifest$",
                     fetch=r"00000\.lmdb: its SHA-256 differs from the manifest: it was damaged or replaced"), {
        "a bit of a shard": flipped(SHARD),
    }),
    ("lmdb", reading(r"sample 2 \(class-0/4.png\) of .* is damaged: its CRC-32 differs from the index; presize verify",
                     OTHER_RECORD), {"a flipped bit in a record": lambda root: flip_record(root, 2)}),
    ("lmdb", {**opening(r"index\.arrow: No such file or directory; the dataset is incomplete",
                        "^index.arrow: cannot be read: No such file or directory$"),
              "fetch": r"index\.arrow does not exist"}, {"no index": removed("index.arrow")}),
    ("lmdb", {**opening(r"index\.arrow has \d+ bytes where the manifest says \d+: truncated",
                        r"^index.arrow: has \d+ bytes where the manifest says \d+$"),
              "fetch": r"index.arrow has \d+ bytes where the manifest says"}, {
        "an index cut short": content("index.arrow", lambda old: old[:1000], hidden=False),
        "a longer index": content("index.arrow", lambda old: old + bytes(10**6), hidden=False),
    }),
    ("lmdb", {**opening(r"index\.arrow is damaged: its SHA-256 differs from the manifest; copy or build",
                        "^index.arrow: its SHA-256 differs from the manifest$"),
              "fetch": "index.arrow: its SHA-256 differs"}, {"a bit of the index": flipped("index.arrow")}),
    ("lmdb", {"verify": "^rejects.jsonl: cannot be read: No such file or directory$"}, {
        "no rejects, of which there are none": removed("rejects.jsonl"),
    }),
    ("lmdb", {"verify": "^report.html: its SHA-256 differs from the manifest$",
              "fetch": "report.html: its SHA-256 differs"}, {"a bit of the report": flipped("report.html")}),

    # Shards that agree with the manifest.
    ("lmdb", reading(r"00000\.lmdb is damaged: .*; copy or build the dataset again$", "^shards/00000.lmdb: "), {
        "a page without a header": content(SHARD, lambda old: old[:8192] + b"\xff" * 16 + old[8208:]),
        "pages of zeros": content(SHARD, lambda old: old[:8192] + bytes(len(old) - 8192)),
        "nothing but zeros": content(SHARD, lambda old: bytes(len(old))),
        "half a shard": content(SHARD, lambda old: old[: len(old) // 2]),
    }),
    ("lmdb", {"verify": r"^shards/00000\.lmdb: freeDB DB root page 8589934592 out of range$"}, {
        "a list of free pages, which no reader follows, outside of the file": free_pages_outside,
    }),
    ("lmdb", reading("00000.lmdb has no row 2: the index belongs to another dataset",
                     "it has 2 records where the manifest says 3; .*row 2 .* is missing"), {
        "a missing record": without_a_record,
    }),
    ("lmdb", reading(LENGTH, OTHER_RECORD), {
        "a longer record": record(2, lambda old: old + b"\0"),
        "a shorter record": record(2, lambda old: old[:-1]),
        "an empty record": record(2, lambda _: b""),
    }),
    ("lmdb", reading(r"^sample \d \(class-0/\d.png\) of .* is damaged: .*; presize verify lists all damage$",
                     UNDECODABLE, export=""), {
        "a record of zeros": record(2, lambda old: bytes(len(old))),
        "a record with half of zeros": record(2, lambda old: old[:300] + bytes(len(old) - 300)),
        "a record that is no picture": no_picture,
    }),

    # An index that does not agree with the shards.
    ("lmdb", reading("the index of .* is damaged: there is no shard 2$", NOT_ONCE), {"shard 2": index("shard", 2, 4)}),
    ("lmdb", reading("the index of .* is damaged: there is no shard -1", NOT_ONCE), {"shard": index("shard", -1, 4)}),
    ("lmdb", reading(r"\.lmdb has no row 1000: the index belongs to", NOT_ONCE), {"row 1000": index("row", 1000, 4)}),
    ("lmdb", reading(r"\.lmdb has no row -1: the index belongs to", NOT_ONCE), {"row -1": index("row", -1, 4)}),
    ("lmdb", reading("is damaged: its (length|CRC-32) differs", NOT_ONCE), {"equal rows": index("row", [0] * 6)}),
    ("lmdb", reading(LENGTH, OTHER_RECORD), {
        "a record of one byte": index("nbytes", 1, 4),
        "a record of less than none": index("nbytes", -1, 4),
    }),
    ("lmdb", reading("is damaged: its CRC-32 differs from the index", OTHER_RECORD), {"a sum": index("crc32", 7, 4)}),
    ("lmdb", reading("but the index says 24 and 7", "but the index says 24 and 7", export=""), {
        "another width": index("width", 7, 4),
    }),
    ("lmdb", {"verify": "index.arrow: a label is out of range for 2 classes"}, {
        "a label above": index("label", 2, 4),
        "a label below": index("label", -1, 4),
    }),
    ("lmdb", {}, {"a class without images": index("label", [1] * 6)}),

    # Paths.
    ("lmdb", {"verify": "index.arrow: a path is listed twice", "export": "the path 'class-0/0.png' twice"}, {
        "a path twice": index("path", [*PATHS[:5], PATHS[0]]),
    }),
    ("lmdb", {"verify": r"1 path leads out of the source; the first is '\.\./a'",
              "export": r"the path '\.\./a', which leads out of the folder; nothing was written"}, {
        "a path that leads out": index("path", "../a", 3),
    }),
    ("lmdb", {"verify": "2 paths lead out of the source; the first is 'a/../..'",
              "export": "the path 'a/../..', which leads"}, {
        "paths that lead out": index("path", [*PATHS[:4], "a/../..", ".."]),
    }),
    ("lmdb", {"export": "which is longer than 4095 bytes"}, {"a long path": index("path", "c/" * 20_000 + "d.jpg", 3)}),
    ("lmdb", {"export": "which has more than 250 folders; nothing was written"}, {
        "a deep path": index("path", "a/" * 990 + "x.png", 3),
        "a path that is too deep by one": index("path", "a/" * 251 + "x.png", 3),
    }),
    ("lmdb", {}, {"a path that is as deep as can be": index("path", "a/" * 250 + "x.png", 3)}),
    ("lmdb", {"export": "^export: cannot write .*/exported/c{300}: File name too long; choose another$"}, {
        "a long name": index("path", f"{'c' * 300}/c.jpg", 3),
    }),
    ("lmdb", {"verify": BAD_TEXT + "Invalid: Invalid UTF8 sequence at string index 2$",
              "export": "column 'path' of .* is damaged"}, {
        "a path that is no text": content("index.arrow", lambda old: old.replace(b"class-0/4", b"class-0/\xff")),
    }),
    ("lmdb", reading(OUTSIDE_TEXT, BAD_TEXT, export="column 'path' of .* is damaged: "), {
        "a path behind all text": lambda root: change_offset(root, "path", 3, 10**12),
        "a path before all text": lambda root: change_offset(root, "path", 3, -5),
        "a path that ends before it begins": lambda root: change_offset(root, "path", 3, 0),
    }),
    ("folder", {"open": "is a folder", "verify": "index.arrow: '.*' leads out of the dataset",
                "fetch": "'.*' is not an image name; nothing was written for it"}, {
        f"an image at {name!r}": index("file", name, 3)
        for name in ("/etc/passwd", "../raw/class-0/0.png", "", "a\0b", "class-0/../..", ".")
    }),
    ("folder", {"open": "is a folder", "verify": "cannot be read: No such file",
                "fetch": "'.*' is not an image name; nothing was written for it"}, {
        "a deep image": index("file", "a/" * 990 + "x.png", 3),
    }),
    ("folder", {"open": "is a folder", "verify": r"^(manifest|\.presize)\.json: (is damaged|cannot be)",
                "fetch": "'.*' is not an image name; nothing was written for it"}, {
        f"an image at {name!r}": index("file", name, 3) for name in (MANIFEST, ".presize.json")
    }),

    # Files of another type than Arrow, or with other columns.
    *[("lmdb", opening(column(name, kind)), {
        f"no column {name}": table(lambda old, name=name: old.drop_columns([name])),
        f"a column {name} with a null": index(name, None, 3),
        f"two columns {name}": table(lambda old, name=name: old.append_column(name, old.column(name))),
        f"a column {name} of another type": table(
            lambda old, name=name, other=other: with_column(old, name, old.column(name).cast(other))
        ),
    }) for name, kind, other in (
        ("path", "large_string", pa.string()), ("row", "int32", pa.int64()), ("nbytes", "int64", pa.int32()),
        ("label", "int32", pa.float32()), ("source_facts", "uint32", pa.int64()),
    )],
    *[("masks", opening(column(f"mask_{name}", "int")[:60]), {
        f"no column {name} of masks": table(lambda old, name=name: old.drop_columns([f"mask_{name}"])),
    }) for name in ("width", "nbytes", "source_facts")],
    ("lmdb", opening(DAMAGED + "it has 5 rows where the manifest says 6"), {"5": table(lambda old: old.slice(0, 5))}),
    ("lmdb", opening(DAMAGED + "it has 12 rows where the manifest says 6"), {
        "all rows twice": table(lambda old: pa.concat_tables([old, old]).combine_chunks()),
    }),
    ("lmdb", opening(DAMAGED + "it has 3 record batches, not 1"), {"6": table(lambda old: old, rows_per_batch=2)}),
    ("lmdb", opening(DAMAGED + "it has 0 record batches, not 1"), {"no batches": without_in_footer(BATCHES)}),
    ("lmdb", {}, {
        "no list of dictionaries": without_in_footer(DICTIONARIES),
        "the format of old Arrow libraries": arrow(use_legacy_format=True),
        "times that Python cannot read": table(
            lambda old: old.append_column("when", pa.array(range(1, 7), pa.timestamp("ns")))
        ),
    }),
    ("lmdb", opening(DAMAGED + "it is compressed or has dictionaries"), {
        **{f"{how} of {'old' if old else 'new'} libraries": arrow(compression=how, use_legacy_format=old)
           for how in ("zstd", "lz4") for old in (False, True)},
        "dictionaries": table(lambda old: old.append_column("more", pa.array(["a"] * 6).dictionary_encode())),
    }),
    ("lmdb", opening(DAMAGED), {
        "text before the index": lambda root: change_offset(root, "path", 0, -1),
        "text behind the index": lambda root: change_offset(root, "path", 6, 10**9),
        "text that ends below 0": lambda root: change_offset(root, "path", 6, -8),
        **{f"{len(other)} bytes {other[:4]!r}": content("index.arrow", lambda _, other=other: other)
           for other in (b"", b"ARROW1\0\0", bytes(5000), b"x" * 5000, *map(bytes, (1, 9, 10, 11, 100)))},
    }),
    ("lmdb", opening(DAMAGED + "the name of a column is not UTF-8; copy or build"), {
        "a name that is no text": content("index.arrow", lambda old: old.replace(b"source_width", b"source\xffwidth")),
    }),
    *[("lmdb", opening(f"was built with LMDB {engine}; this version of presize reads 0.9: upgrade", verify=""), {
        f"engine {engine}": manifest("engine", value=engine),
    }) for engine in ("1.0", None)],

    # Images that are files, and masks.
    ("folder", {"open": "is a folder", "verify": "^class-1/1.jpg: is damaged: its length or CRC-32 differs",
                "fetch": "class-1/1.jpg: its CRC-32 differs from the index: it was damaged, replaced or removed"}, {
        "a bit of an image": flipped("class-1/1.jpg"),
        "an image in the place of another": lambda root: shutil.copy(root / "class-0/0.jpg", root / "class-1/1.jpg"),
    }),
    ("folder", {"open": "is a folder", "verify": "^class-0/2.jpg: cannot be read: No such file or directory$",
                "fetch": "class-0/2.jpg: its CRC-32 differs from the index"}, {"no image": removed("class-0/2.jpg")}),
    ("masks", reading(r"mask-00000\.lmdb is damaged: ", "^shards/mask-00000.lmdb: its SHA-256 differs",
                      fetch="mask-00000.lmdb: its SHA-256"), {
        "a shard of zeros": content("shards/mask-00000.lmdb", lambda old: bytes(len(old)), hidden=False),
    }),
    ("masks", reading(r"mask-00000\.lmdb: No such file", "^shards/mask-00000.lmdb: cannot be read: No such file",
                      fetch="mask-00000.lmdb does not exist"), {"no shard": removed("shards/mask-00000.lmdb")}),
    ("masks", reading(r"^the mask of sample 5 \(images/05\.jpg\) of .* is damaged: ",
                      r"^shards/mask-0000\d.lmdb: row \d \(images/05.jpg\) cannot be decoded: ", export=""), {
        "another height": index("mask_height", 7, 5),
    }),
    ("masks", reading(r"^the mask of sample 5 \(images/05\.jpg\) .* its CRC-32 differs",
                      r"^shards/mask-0000\d.lmdb: row \d \(images/05.jpg\) is damaged"), {
        "another sum": index("mask_crc32", 0, 5),
    }),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], str]]:
    """Serve written datasets on a web server."""
    base = tmp_path_factory.getbasetemp()
    with http(base) as port:
        yield lambda path: f"http://127.0.0.1:{port}/{path.relative_to(base).as_posix()}"


def compare(root: Path, url: str, words: dict[str, str]) -> None:
    """Compare the message of each entry point about the dataset in `root` with the patterns in `words`; none if
    missing."""
    for way, enter in WAYS.items():
        try:
            enter(root, url)
            said = ""
        except (DatasetError, RemoteError, BuildError) as error:
            said = str(error)
        assert re.search(words[way], said) if words.get(way) else said == "", f"{way}: {said}"
        assert "\n" not in said


@pytest.mark.parametrize(
    ("of", "words", "change"),
    [
        pytest.param(of, words, change, id=f"{of}: {name}")
        for of, words, changes in TABLE
        for name, change in changes.items()
    ],
)
def test_each_entry_point_reports_the_fault(
    of: str, words: dict[str, str], change: Change, small: Path, tmp_path: Path, server: Callable[[Path], str]
) -> None:
    root = Path(shutil.copytree(small / of, tmp_path / "set"))
    change(root)
    if of == "folder":
        words = dict.fromkeys(("read", "export"), "is a folder of image files") | words
    compare(root, server(root), words)


MANIFESTS: list[tuple[str, list[Change]]] = [
    ("is not a valid name for a file of a dataset", [
        *(manifest("index", "file", value=name) for name in (
            "../index.arrow", "/etc/passwd", "index.arrow\n", "index-\u0661.arrow", "x" * 10**6,
        )),
        *(manifest("shards", 0, "file", value=name) for name in (
            "shards/../../00000.lmdb", "shards/00000.lmdb/../x", "shards/00000.lmdb\0", "../../outside.lmdb",
        )),
        manifest("rejects", "file", value="manifest.json"),
        manifest("report", "file", value="../report.html"),
    ]),
    ("expected text, got 5", [manifest("shards", 0, "file", value=5)]),
    *[(f"expected a count, got {value!r}"[:40], [manifest("shards", 0, "bytes", value=value)])
      for value in (-1, True, 4096.0, 2**63, 10**30)],
    ("expected a count, got '6'", [manifest("samples", value="6")]),
    ("expected a count, got None", [manifest("generation", value=None)]),
    ("expected a count, got -2", [manifest("left_out", "rejected", value=-2)]),
    ("its shards do not add up to its samples", [
        manifest("shards", 0, "rows", value=10**6), manifest("shards", value=[]), manifest("samples", value=10**9),
    ]),
    ("it has no samples", [manifest("samples", value=0)]),
    ("expected an object, got None", [manifest("shards", 0, value=None), manifest("identity", value=None)]),
    ("expected an object, got []", [manifest("shards", 0, value=[]), manifest("identity", "options", value=[])]),
    ("expected an object, got [1]", [manifest("left_out", value=[1])]),
    ("expected an object, got 'report.html'", [manifest("report", value="report.html")]),
    ("expected a list, got {'0': 1}", [manifest("shards", value={"0": 1})]),
    ("expected a list, got ''", [manifest("shards", value="")]),
    ("expected a list, got 'abc'", [manifest("classes", value="abc")]),
    ("expected text, got 1", [manifest("classes", value=["a", 1])]),
    ("expected text, got 0.9", [manifest("engine", value=0.9)]),
    ("it has a class twice", [manifest("classes", value=["a", "b", "a"])]),
    ("layout: expected one of lmdb, folder, got 'tar'", [manifest("layout", value="tar")]),
    ("layout: expected one of lmdb, folder, got ['lmdb']", [manifest("layout", value=["lmdb"])]),
    ("format: expected one of jpeg, png, webp, raw", [manifest("identity", "options", "image", "format", value="gif")]),
    ("color: expected one of rgb, gray, rgba, keep", [manifest("identity", "options", "image", "color", value={})]),
    ("it has no 'file'", [manifest("shards", 0, value={})]),
    ("it has no 'options'", [manifest("identity", value={})]),
    ("it has no 'digest'", [lambda root: change_manifest(root, lambda values: values.pop("digest"))]),
    ("it has no 'versions'", [lambda root: change_manifest(root, lambda values: values.pop("versions"))]),
]  # fmt: skip
COMPANIONS: list[tuple[str, list[Change]]] = [
    ("'../mask' is not the name of a companion", [manifest("companions", 0, "name", value="../mask")]),
    ("format: expected one of jpeg, png, webp, raw, npy", [manifest("companions", 0, "format", value="bmp")]),
    ("filter: expected one of nearest", [manifest("companions", 0, "filter", value="sharp")]),
    ("depth: expected one of 8, 16, got 12", [manifest("companions", 0, "depth", value=12)]),
    ("expected a count, got -1", [manifest("companions", 0, "bytes", value=-1)]),
    ("the shards of a companion differ in rows from those of", [manifest("companions", 0, "shards", value=[])]),
    ("is not a valid name for a file", [manifest("companions", 0, "shards", 0, "file", value="shards/mask.lmdb")]),
    ("it has a companion twice", [
        lambda root: change_manifest(root, lambda values: values["companions"].append(values["companions"][0])),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("of", "words", "change"),
    [
        pytest.param(of, words, change, id=f"{of}: {words} {number}")
        for of, table in (("lmdb", MANIFESTS), ("masks", COMPANIONS))
        for words, changes in table
        for number, change in enumerate(changes)
    ],
)
def test_a_manifest_with_a_wrong_value_is_refused_by_each_entry_point(
    of: str, words: str, change: Change, small: Path, tmp_path: Path, server: Callable[[Path], str]
) -> None:
    root = tmp_path / "set"
    root.mkdir()
    shutil.copy(small / of / MANIFEST, root)
    change(root)
    line = rf"/set/manifest\.json is damaged: .{{,60}}{re.escape(words)}.{{,250}}; copy or build the dataset again$"
    compare(root, server(root), dict.fromkeys(WAYS, line))
