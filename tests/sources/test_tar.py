"""Tar shards: files of one stem are one sample, whatever program wrote the tar, and whatever is wrong with it."""

from __future__ import annotations

import io
import os
import re
import tarfile
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from foreign import FIXTURES, picture, tar_samples, write_tar
from listings import listed, rejected, values
from presize.errors import SourceError
from presize.options import SourceOptions
from presize.sources.contents import Source
from presize.sources.scan import scan
from presize.sources.tar import END_MARK, CutShort, list_tar, members


def test_images_are_those_that_tarfile_reads() -> None:
    images = []
    for name in ("shard-000000.tar", "shard-000001.tar"):
        with tarfile.open(FIXTURES / "webdataset" / name) as tar:
            images += [tar.extractfile(one).read() for one in tar if one.name.endswith(".jpg")]
    assert values(scan(FIXTURES / "webdataset")) == images


FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
NAMES = {"short": "a.png", "with a prefix": "folder/" * 20 + "0001.png", "UTF-8": "été/ü.png"}
LONG = "very/long/" + "folder/" * 30 + "0001.png"


@pytest.mark.parametrize(
    ("form", "name"),
    [(form, name) for form in FORMATS for name in NAMES.values()] + [("gnu", LONG), ("pax", LONG)],  # not in USTAR
)
def test_names_of_every_format_are_read(form: str, name: str, tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [(name, picture(1)), ("z.png", picture(2))], FORMATS[form])
    source = scan(tmp_path / "a.tar")
    assert [row["path"] for row in listed(source)] == [name, "z.png"]
    assert values(source) == [picture(1), picture(2)]


def test_a_size_of_more_than_8_gib_is_read(tmp_path: Path) -> None:
    """It is stored in binary, or in PAX headers; the file is sparse here."""
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        member = tarfile.TarInfo("big.png")
        member.size = 9 << 30
        path = tmp_path / f"{form}.tar"
        path.write_bytes(member.tobuf(form))
        os.truncate(path, path.stat().st_size + (9 << 30) + 1024)
        found = list_tar(str(path), "a.tar", SourceOptions())
        assert found.samples.column("source_nbytes").to_pylist() == [9 << 30]
        assert found.rejects == []


def test_links_are_rejected_and_folders_are_nothing(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", tar_samples(2))
    with tarfile.open(path, "a") as tar:
        for name, kind in (("3.png", tarfile.SYMTYPE), ("folder.png", tarfile.DIRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    assert rejected(scan(tmp_path)) == {"a.tar/3.png": "it is a link, or no regular file"}


# Tars that are cut short, or no tars


def whole_before(cut: int, path: Path) -> list[str]:
    """The samples that lie before `cut` with all their files, as tarfile sees them."""
    ends: dict[str, int] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            ends[member.name.split(".")[0]] = member.offset_data + member.size
    return [stem for stem, end in ends.items() if end <= cut]


def test_a_first_sample_that_may_lack_a_file_is_rejected(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", tar_samples(1))
    with tarfile.open(path) as tar:
        os.truncate(path, tar.getmembers()[1].offset + 100)
    found = list_tar(str(path), "a.tar", SourceOptions())
    assert found.rejects[0].reason == "the tar ends before this sample does"


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tar(tmp_path_factory.mktemp("tar") / "a.tar", tar_samples(5))


@given(share=st.floats(0, 1))
def test_of_a_tar_cut_short_what_is_whole_is_kept(share: float, shard: Path) -> None:
    content = shard.read_bytes()
    with tarfile.open(shard) as tar:
        begin = tar.getmembers()[3].offset  # one sample is whole: it shows which files the others have
        end = max(member.offset_data + member.size for member in tar)
    cut = begin + int(share * (end - begin))
    place = shard.with_name("cut.tar")
    place.write_bytes(content[:cut])
    found = list_tar(str(place), "cut.tar", SourceOptions())
    expected = [f"{stem}.png" for stem in whole_before(cut, shard)]
    assert found.samples.column("path").to_pylist() == expected
    assert "what lies before is kept" in found.rejects[-1].reason


@pytest.mark.parametrize("at", [0, 3, 124, 150, 345])
def test_a_header_that_is_damaged_ends_a_tar(at: int, shard: Path, tmp_path: Path) -> None:
    content = bytearray(shard.read_bytes())
    with tarfile.open(shard) as tar:
        third = tar.getmembers()[4].offset
    content[third + at] ^= 0x55
    (tmp_path / "a.tar").write_bytes(content)
    source = scan(tmp_path / "a.tar")
    assert len(source.table) == 2
    assert rejected(source) == {"a.tar": f"byte {third:,} begins no header; what lies before is kept"}


def test_a_download_that_stopped_in_a_file_of_its_full_size_is_noticed(shard: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard.read_bytes())
    os.truncate(tmp_path / "a.tar", 3 << 20)
    (reason,) = rejected(scan(tmp_path / "a.tar")).values()
    assert "is followed by 3.1" in reason


# Tars that were joined


def tar_bytes(folder: Path, files: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    return write_tar(folder / "one.tar", files, form).read_bytes()


def joined(folder: Path, content: bytes) -> Source:
    (folder / "all.tar").write_bytes(content)
    return scan(folder / "all.tar")


@settings(max_examples=examples(15))
@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    form=st.sampled_from(list(FORMATS.values())),
    folders=st.sampled_from(["", "été/", LONG]),
    end=st.sampled_from([0, 1, 2, 20, 3000]),
)
def test_joined_tars_have_the_files_that_tarfile_reads(
    counts: list[int], form: int, folders: str, end: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`end` blocks of zeros lie behind each of them: tar writes 20 at a time."""
    folder = tmp_path_factory.getbasetemp()
    form = tarfile.PAX_FORMAT if folders == LONG else form
    content, first = b"", 0
    for count in counts:
        files = [(f"{folders}{first + n}.bin", b"%d" % n) for n in range(count)]
        tar = tar_bytes(folder, files, form)
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


@pytest.mark.parametrize("padding", [0, 512, 10240, 3 << 20])
def test_every_sample_of_joined_tars_is_listed(padding: int, tmp_path: Path) -> None:
    tars = [tar_bytes(tmp_path, tar_samples(3, first), tarfile.GNU_FORMAT) for first in (0, 3, 6)]
    source = joined(tmp_path, bytes(padding).join(tars))
    assert values(source) == [picture(n) for n in range(9)]
    assert source.table.column("label").to_pylist() == [n % 3 for n in range(9)]
    assert rejected(source) == {}


def test_a_sample_has_no_files_of_the_next_tar(tmp_path: Path) -> None:
    first = tar_bytes(tmp_path, [*tar_samples(2), ("x.png", picture(9))])
    source = joined(tmp_path, first + tar_bytes(tmp_path, [("x.cls", b"1"), *tar_samples(1, 5)]))
    assert [row["path"] for row in listed(source)] == ["000000.png", "000001.png", "000005.png"]
    assert rejected(source) == {
        "all.tar/x.png": "it has no label",
        "all.tar/x.cls": "no image among .cls; the files of a sample have to follow each other",
    }


def test_of_joined_tars_with_the_same_names_the_first_is_taken(tmp_path: Path) -> None:
    source = joined(tmp_path, 2 * tar_bytes(tmp_path, tar_samples(2)))
    assert values(source) == [picture(0), picture(1)]
    assert rejected(source) == dict.fromkeys(
        ("all.tar/000000.png", "all.tar/000001.png"), "an earlier sample of the file has its name"
    )


@pytest.mark.parametrize(
    "rest", [b"\n", b"<html>" * 1000, b"\x1f\x8b" + bytes(2000) + b"x"], ids=["line", "text", "gzip"]
)
@pytest.mark.parametrize("padding", [0, 2 << 20])
def test_what_follows_an_end_mark_and_is_no_tar_is_told_of(rest: bytes, padding: int, tmp_path: Path) -> None:
    tar = tar_bytes(tmp_path, tar_samples(2))
    source = joined(tmp_path, tar + bytes(padding) + rest)
    assert values(source) == [picture(0), picture(1)]
    ((path, reason),) = rejected(source).items()
    assert path == "all.tar"
    assert re.fullmatch(
        rf"byte {len(tar) + padding:,}, behind its end mark at byte [\d,]+, begins no header; what lies before is kept",
        reason,
    )


def test_of_a_tar_that_is_cut_short_behind_another_what_is_whole_is_kept(tmp_path: Path) -> None:
    second = tar_bytes(tmp_path, tar_samples(3, 1))
    source = joined(tmp_path, tar_bytes(tmp_path, tar_samples(1)) + second[:700])
    assert [row["path"] for row in listed(source)] == ["000000.png"]
    assert "bytes of '000001.png'; what lies before is kept" in rejected(source)["all.tar"]


@pytest.mark.parametrize("size", ["9" * 5000, "-5", "1_0"])
def test_a_size_that_is_no_number_is_not_taken(size: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("1.png")
        member.size, member.pax_headers = len(picture(1)), {"size": size}
        tar.addfile(member, io.BytesIO(picture(1)))
    assert values(scan(tmp_path)) == [picture(1)]


HEADERS = st.binary(min_size=512, max_size=512)


@given(content=st.lists(st.one_of(HEADERS, st.just(bytes(512))), max_size=4), size=st.binary(min_size=12, max_size=12))
def test_whatever_a_tar_holds_it_is_listed_or_refused(
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


def test_a_tar_that_the_disk_cannot_read_is_not_left_out(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", tar_samples(2))
    (tmp_path / "b.tar").symlink_to("/proc/self/mem")  # reading its beginning is an EIO
    with pytest.raises(
        SourceError, match=r"^'b\.tar' in .*: it cannot be read: Input/output error; move it away to build without it$"
    ):
        scan(tmp_path, follow_links=True)
