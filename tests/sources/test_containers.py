"""Containers: LMDBs, Parquet files and tar shards as other programs write them, and all kinds of damage to them."""

from __future__ import annotations

import os
import random
import tarfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from foreign import (
    image_column,
    picture,
    tar_bytes,
    tar_samples,
    text_recognition,
    write_lmdb,
    write_parquet,
    write_tar,
)
from listings import listed, make, rejected, values
from presize.errors import ImageError, PresizeWarning, SourceError
from presize.options import Companion, SourceOptions
from presize.sources import parquet_rows
from presize.sources.companions import source_of
from presize.sources.containers import kind_of, recognize
from presize.sources.contents import Source
from presize.sources.lmdb import read_lmdb
from presize.sources.scan import scan, scan_images
from presize.sources.source_files import SourceReader
from presize.sources.tar import END_MARK, CutShort, list_tar, members
from processes import run_python


def test_a_file_is_recognized_by_its_content(tmp_path: Path) -> None:
    write_tar(tmp_path / "one", tar_samples(1))
    write_parquet(tmp_path / "two", {"image": image_column([picture(1)])})
    text_recognition(tmp_path / "three", ["a"])
    places = {"one": "tar", "two": "parquet", "three": "lmdb", "three/data.mdb": "lmdb"}
    for name, kind in places.items():
        found = recognize(tmp_path / name)
        assert found is not None
        assert found.kind.name == kind


def test_a_folder_is_recognized_by_the_names_in_it() -> None:
    names = {"a.tar": "tar", "b.TAR": "tar", "c.tar.gz": "tar", "d.parquet": "parquet", "x.lmdb": "lmdb",
             "data.mdb": "lmdb", "lock.mdb": None, "x.lmdb-lock": None, "notes.txt": None}  # fmt: skip
    assert {name: (kind := kind_of(name)) and kind.name for name in names} == names


def test_an_image_at_any_depth_makes_a_folder_one_of_images_except_with_keys(tmp_path: Path) -> None:
    for name in ("b/1.tar", "0.tar", ".cache/1.tar"):
        write_tar(tmp_path / name, tar_samples(1))
    for keys in (False, True):
        found = recognize(tmp_path, keys)
        assert found is not None
        assert found.paths == ("0.tar", "b/1.tar"), "hidden folders hold no containers"
    make(tmp_path, "c/1.png")
    assert recognize(tmp_path) is None
    assert scan(tmp_path).containers == ()
    found = recognize(tmp_path, among_images=True)
    assert found is not None
    assert found.paths == ("0.tar", "b/1.tar")
    with pytest.raises(SourceError, match=r"holds no image files, only containers such as '1\.tar'"):
        scan_images(tmp_path / "b")


# Byte offsets of values: as liblmdb reports them, and always inside the file

KEYS = st.binary(min_size=1, max_size=60)
SIZES = st.sampled_from([0, 1, 50, 2000, 2030, 4080, 4081, 20_000])


@given(records=st.dictionaries(KEYS, SIZES, max_size=200), gone=st.sets(st.integers(0, 199)))
def test_all_records_are_found_at_their_offsets(
    records: dict[bytes, int], gone: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lmdb") / "a"
    values = {key: key[:1] * nbytes for key, nbytes in records.items()}
    write_lmdb(path, values)
    with lmdb.open(str(path), map_size=1 << 26, lib_version=0) as env, env.begin(write=True) as txn:
        for number, key in enumerate(list(values)):
            if number in gone:
                txn.delete(key)
                del values[key]
    found = read_lmdb(str(path / "data.mdb"))
    rows = np.arange(len(found.keys))
    assert dict(zip(found.keys.to_pylist(), found.read(rows, 1 << 30).to_pylist(), strict=True)) == values
    assert found.keys.to_pylist() == sorted(values)


def test_a_small_file_cannot_claim_large_values(tmp_path: Path) -> None:
    """Two records that share their pages would make a build read them twice, and a thousand, a thousand times."""
    path = write_lmdb(tmp_path / "a", {"1": b"x" * 9000, "2": b"y" * 9000}) / "data.mdb"
    content = bytearray(path.read_bytes())
    first = content.find(b"x" * 100) // 4096
    second = content.find(b"y" * 100) // 4096
    place = content.find(b"2" + second.to_bytes(8, "little")) + 1
    content[place : place + 8] = first.to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(SourceError, match="it is damaged: two values overlap"):
        read_lmdb(str(path))


def test_no_change_of_a_file_yields_an_offset_outside_of_it(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a", {f"key-{n:04d}": bytes([n % 256]) * (n * 37 % 5000) for n in range(400)})
    whole = (path / "data.mdb").read_bytes()
    draw = random.Random(7)
    refused = 0
    place = str(tmp_path / "changed.mdb")
    tree = [at for at in range(0, len(whole), 4096) if whole[at + 10] in (1, 2, 8)]  # branches, leaves, meta pages
    for _ in range(examples(400)):
        content = bytearray(whole)
        for _ in range(draw.choice([1, 1, 3, 10])):
            at = draw.choice(tree) + draw.randrange(draw.choice([24, 200, 4096]))
            content[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, content[at] ^ 1 << draw.randrange(8)])
        if draw.random() < 0.1:
            del content[draw.randrange(len(content)) :]
        Path(place).write_bytes(content)
        try:
            found = read_lmdb(place)
        except SourceError:
            refused += 1
            continue
        assert (found.offset >= 0).all()
        assert (found.nbytes >= 0).all()
        assert (found.offset + found.nbytes <= len(content)).all()
        assert found.nbytes.sum() <= len(content)
    assert 0 < refused < examples(400)


PICTURES = [picture(number) for number in range(10)]


def reading(source: Source) -> Callable[[int], bytes]:
    """Return a function that reads a sample by number."""
    reader = SourceReader(source.root)
    return lambda sample: reader.read(source.files(np.array([sample]))[0])


def value(source: Source, sample: int) -> bytes:
    return reading(source)(sample)


def test_a_run_is_a_row_group(tmp_path: Path) -> None:
    for name in "ab":
        write_parquet(tmp_path / f"{name}.parquet", {"image": image_column(PICTURES)}, group_rows=4)
    runs = scan(tmp_path).groups
    assert runs is not None
    assert runs.tolist() == [0] * 4 + [1] * 4 + [2] * 2 + [3] * 4 + [4] * 4 + [5] * 2


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_a_column_of_plain_bytes_is_read(kind: pa.DataType, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"jpg": pa.array(PICTURES[:3], kind), "path": ["x/1.png", "2.png", "3.png"]})
    source = scan(tmp_path)
    assert listed(source) == [{"path": "x/1.png"}, {"path": "2.png"}, {"path": "3.png"}]
    assert [value(source, sample) for sample in (2, 0, 1)] == [PICTURES[2], PICTURES[0], PICTURES[1]]


def test_a_row_without_bytes_is_an_image_error(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"image": image_column([PICTURES[0], None], ["a.png", "elsewhere.png"])})
    source = scan(tmp_path)
    assert value(source, 0) == PICTURES[0]
    with pytest.raises(ImageError, match="its row has no bytes; paths of image files are not followed"):
        value(source, 1)


def test_a_damaged_row_group_costs_only_its_images(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"image": image_column(PICTURES)}, group_rows=5)
    content = bytearray(path.read_bytes())
    second = pa.parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content[second : second + 40] = b"\xff" * 40
    path.write_bytes(content)
    source = scan(tmp_path)
    assert [value(source, sample) for sample in range(5)] == PICTURES[:5]
    with pytest.raises(ImageError, match="its row group cannot be decoded: "):
        value(source, 7)
    assert value(source, 0) == PICTURES[0]


def test_rows_are_decoded_once_if_read_in_order_and_are_right_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "a.parquet", {"image": image_column(PICTURES * 10)}, group_rows=50)
    source = scan(tmp_path)
    opened: list[str] = []
    begun: list[list[int]] = []
    open_parquet, iter_batches = parquet_rows.open_parquet, pq.ParquetFile.iter_batches

    def count(file: pq.ParquetFile, *arguments: Any, **named: Any) -> Any:
        begun.append(named["row_groups"])
        return iter_batches(file, *arguments, **named)

    monkeypatch.setattr(parquet_rows, "open_parquet", lambda path: opened.append(path) or open_parquet(path))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", count)
    read = reading(source)
    assert [read(sample) for sample in range(100)] == PICTURES * 10
    assert (len(opened), begun) == (1, [[0], [1]])
    shuffled = np.random.default_rng(0).permutation(100).tolist()
    assert [read(sample) for sample in shuffled] == [PICTURES[sample % 10] for sample in shuffled]


def test_the_footer_of_a_file_is_parsed_once_for_all_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "a.parquet", {"image": image_column(PICTURES)})
    source = scan(tmp_path)
    parsed: list[str] = []
    read_metadata = pq.read_metadata
    monkeypatch.setattr(pq, "read_metadata", lambda path: parsed.append(path) or read_metadata(path))
    assert [reading(source)(sample) for sample in range(10)] == PICTURES  # one reader each
    assert parsed == []  # only the listing parses it


def test_a_file_replaced_while_it_is_opened_is_read_with_its_own_footer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"image": image_column(PICTURES)}, group_rows=5)
    other = write_parquet(tmp_path / "new", {"image": image_column(PICTURES)}, group_rows=2)
    read_metadata = pq.read_metadata

    def replace_it(parsed: str) -> pq.FileMetaData:
        footer = read_metadata(parsed)
        if other.exists():
            other.replace(path)
        return footer

    monkeypatch.setattr(pq, "read_metadata", replace_it)
    assert [parquet_rows.open_parquet(str(path)).num_row_groups for _ in range(2)] == [5, 5]


READ_IN_ORDER = """
    import sys
    import pyarrow as pa
    from presize.sources.parquet_rows import RowReader
    reader = RowReader(sys.argv[1], "image")
    print(sum(len(reader.read(0, row)) for row in range(3000)))
    print(pa.default_memory_pool().max_memory())
"""


def test_a_row_group_is_never_completely_in_memory(tmp_path: Path) -> None:
    """Only a few pages are: pyarrow writes 1,024 rows, here 20 MB, into each."""
    values = [np.random.default_rng(n).bytes(20_000) for n in range(3000)]
    path = write_parquet(tmp_path / "a.parquet", {"image": pa.array(values)}, group_rows=3000)
    read_bytes, peak_bytes = map(int, run_python(READ_IN_ORDER, path, timeout_s=60).split())
    assert read_bytes == 60_000_000
    assert peak_bytes < 80_000_000


LONG = "very/long/" + "folder/" * 30


def test_a_size_of_more_than_8_gib_is_read(tmp_path: Path) -> None:
    """The size is stored in binary, or in PAX headers; the file is sparse."""
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        member = tarfile.TarInfo("big.png")
        member.size = 9 << 30
        path = tmp_path / f"{form}.tar"
        path.write_bytes(member.tobuf(form))
        os.truncate(path, path.stat().st_size + (9 << 30) + 1024)
        found = list_tar(str(path), "a.tar", SourceOptions())
        assert found.samples.column("source_nbytes").to_pylist() == [9 << 30]
        assert found.rejects == []


def test_a_sparse_file_of_posix_format_is_rejected_by_its_real_name(tmp_path: Path) -> None:
    """GNU tar also gives it another name, with the number of its process."""
    member = tarfile.TarInfo("GNUSparseFile.28513/1.jpg")
    member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.name": "cats/1.jpg", "GNU.sparse.realsize": "9"}
    path = tmp_path / "a.tar"
    path.write_bytes(member.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    (reject,) = list_tar(str(path), "a.tar", SourceOptions()).rejects
    assert (reject.path, reject.reason) == ("a.tar/cats/1.jpg", "it is a link, or not a regular file")


def test_links_are_rejected_and_folders_are_skipped(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", tar_samples(2))
    with tarfile.open(path, "a") as tar:
        for name, kind in (("3.png", tarfile.SYMTYPE), ("folder.png", tarfile.DIRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, "/etc/passwd", 700  # a size that it does not have
            tar.addfile(member)
    assert rejected(scan(tmp_path)) == {"a.tar/3.png": "it is a link, or not a regular file"}


# Companions


PAIRS = [Companion("depth", "{dir}/{stem}.depth.npy"), Companion("mask", "{dir}/{stem}.mask.png")]


def pair_samples(count: int = 3) -> list[tuple[str, bytes]]:
    """Return pictures with a depth map and a mask each, and with an unused file."""
    return [
        (f"x/{number}.{extension}", f"{extension} of {number}".encode())
        for number in range(count)
        for extension in ("depth.npy", "jpg", "mask.png", "txt", "Other")
    ]


def test_companions_of_a_sample_are_its_other_files(tmp_path: Path) -> None:
    files = [file for file in pair_samples() if file[0] != "x/1.mask.png"]
    for name in ("a", "b"):  # with samples of the same paths
        write_tar(tmp_path / f"{name}.tar", files)
    with pytest.warns(PresizeWarning, match=r"which are left out: \.other \(4 samples\)$"):
        source = scan(tmp_path, companions=PAIRS)
    expected = [file for file in files if not file[0].startswith("x/1")]
    for extension, one in (("jpg", None), *zip(("depth.npy", "mask.png"), PAIRS, strict=True)):
        found = source if one is None else source_of(source, one)
        assert values(found) == [content for name, content in expected if name.endswith(extension)] * 2
    assert rejected(source) == {f"{name}.tar/x/1.jpg": "companion mask does not exist" for name in "ab"}
    assert "txt" in source.fields and "offset:depth" not in source.fields


def test_a_missing_companion_and_a_field_named_like_its_column_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", pair_samples(2))
    with pytest.raises(
        SourceError,
        match=r"no samples in 1 file; the first: 'a\.tar/x/0\.jpg': companion no does not exist; expected a file of "
        r"the same sample, such as --pair no=\{dir\}/\{stem\}\.no\.png, got \.no\.npy$",
    ):
        scan(tmp_path, companions=[Companion("no", ".no.npy")])
    write_tar(tmp_path / "a.tar", [("1.jpg", b""), ("1.depth.npy", b""), ("1.json", b'{"depth_crc32": 1}')])
    with pytest.raises(SourceError, match="--pair depth: the index needs the column name 'depth_crc32'; rename yours"):
        scan(tmp_path, companions=PAIRS[:1])


# Truncated tars, and files that are not tars


def whole_before(cut: int, path: Path) -> list[str]:
    """Return the samples whose files are all before `cut`, according to tarfile."""
    ends: dict[str, int] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            ends[member.name.split(".")[0]] = member.offset_data + member.size
    return [stem for stem, end in ends.items() if end <= cut]


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tar(tmp_path_factory.mktemp("tar") / "a.tar", tar_samples(5))


@given(share=st.floats(0, 1))
def test_complete_samples_of_a_truncated_tar_are_kept(share: float, shard: Path) -> None:
    content = shard.read_bytes()
    with tarfile.open(shard) as tar:
        begin = tar.getmembers()[3].offset  # one complete sample shows the files of the others
        end = max(member.offset_data + member.size for member in tar)
    cut = begin + int(share * (end - begin))
    place = shard.with_name("cut.tar")
    place.write_bytes(content[:cut])
    found = list_tar(str(place), "cut.tar", SourceOptions())
    expected = [f"{stem}.png" for stem in whole_before(cut, shard)]
    assert found.samples.column("path").to_pylist() == expected
    assert "earlier samples are kept" in found.rejects[-1].reason


# Joined tars


@settings(max_examples=examples(15))
@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    form=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    folders=st.sampled_from(["", "été/", LONG]),
    end=st.sampled_from([0, 1, 2, 20, 3000]),
)
def test_joined_tars_have_the_files_that_tarfile_reads(
    counts: list[int], form: int, folders: str, end: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`end` blocks of zeros follow each of them: tar writes 20 at a time."""
    folder = tmp_path_factory.getbasetemp()
    form = tarfile.PAX_FORMAT if folders == LONG else form
    content, first = b"", 0
    for count in counts:
        files = [(f"{folders}{first + n}.bin", b"%d" % n) for n in range(count)]
        tar = tar_bytes(files, form)
        content += tar[: (len(tar.rstrip(b"\0")) + 511) // 512 * 512] + bytes(512 * end)
        first += count
    (folder / "all.tar").write_bytes(content)
    with tarfile.open(folder / "all.tar", ignore_zeros=True) if first else nullcontext([]) as tar_file:
        expected = [member.name for member in tar_file]
    with open(folder / "all.tar", "rb") as file, suppress(CutShort):
        found = []
        for member in members(file):
            found += [member.name] if member is not END_MARK else []
    assert found == expected


HEADERS = st.binary(min_size=512, max_size=512)


@given(content=st.lists(st.one_of(HEADERS, st.just(bytes(512))), max_size=4), size=st.binary(min_size=12, max_size=12))
def test_any_tar_is_listed_or_refused(
    content: list[bytes], size: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    block = bytearray(tarfile.TarInfo("a.png").tobuf())
    block[124:136] = size
    block[148:156] = b"%06o\0 " % (sum(block) - sum(block[148:156]) + 256)
    path = tmp_path_factory.getbasetemp() / "any.tar"
    path.write_bytes(bytes(block) + b"".join(content))
    found = list_tar(str(path), "any.tar", SourceOptions())
    ends = found.samples.column("offset").to_numpy() + found.samples.column("source_nbytes").to_numpy()
    assert (ends <= path.stat().st_size).all()


def test_a_tar_that_the_disk_cannot_read_is_not_skipped(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", tar_samples(2))
    (tmp_path / "b.tar").symlink_to("/proc/self/mem")  # reading its start fails with EIO
    with pytest.raises(
        SourceError, match=r"^'b\.tar' in .*: it cannot be read: Input/output error; move it away to build without it$"
    ):
        scan(tmp_path, follow_links=True)
