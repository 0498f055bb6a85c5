"""Tar shards: files of one stem are one sample, whatever program wrote the tar, and whatever is wrong with it."""

from __future__ import annotations

import os
import tarfile
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from foreign import tar_bytes, tar_samples, write_tar
from listings import rejected, values
from presize.errors import PresizeWarning, SourceError
from presize.options import Companion, SourceOptions
from presize.sources.companions import source_of
from presize.sources.scan import scan
from presize.sources.tar import END_MARK, CutShort, list_tar, members

LONG = "very/long/" + "folder/" * 30


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


def test_a_sparse_file_of_posix_format_is_rejected_by_its_own_name(tmp_path: Path) -> None:
    """GNU tar gives it another one as well, with the number of its process."""
    member = tarfile.TarInfo("GNUSparseFile.28513/1.jpg")
    member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.name": "cats/1.jpg", "GNU.sparse.realsize": "9"}
    path = tmp_path / "a.tar"
    path.write_bytes(member.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    (reject,) = list_tar(str(path), "a.tar", SourceOptions()).rejects
    assert (reject.path, reject.reason) == ("a.tar/cats/1.jpg", "it is a link, or no regular file")


def test_links_are_rejected_and_folders_are_nothing(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", tar_samples(2))
    with tarfile.open(path, "a") as tar:
        for name, kind in (("3.png", tarfile.SYMTYPE), ("folder.png", tarfile.DIRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, "/etc/passwd", 700  # which it does not have
            tar.addfile(member)
    assert rejected(scan(tmp_path)) == {"a.tar/3.png": "it is a link, or no regular file"}


# Companions


PAIRS = [Companion("depth", "{dir}/{stem}.depth.npy"), Companion("mask", "{dir}/{stem}.mask.png")]


def pair_samples(count: int = 3) -> list[tuple[str, bytes]]:
    """Pictures with a depth map and a mask each, and with a file that nobody asks for."""
    return [
        (f"x/{number}.{extension}", f"{extension} of {number}".encode())
        for number in range(count)
        for extension in ("depth.npy", "jpg", "mask.png", "txt", "Other")
    ]


def test_companions_of_a_sample_are_other_files_of_it(tmp_path: Path) -> None:
    files = [file for file in pair_samples() if file[0] != "x/1.mask.png"]
    for name in ("a", "b"):  # whose samples have the same paths
        write_tar(tmp_path / f"{name}.tar", files)
    with pytest.warns(PresizeWarning, match=r"the number of samples that have it: \.other \(4\); it is left out"):
        source = scan(tmp_path, companions=PAIRS)
    expected = [file for file in files if not file[0].startswith("x/1")]
    for extension, one in (("jpg", None), *zip(("depth.npy", "mask.png"), PAIRS, strict=True)):
        found = source if one is None else source_of(source, one)
        assert values(found) == [content for name, content in expected if name.endswith(extension)] * 2
    assert rejected(source) == {f"{name}.tar/x/1.jpg": "companion mask does not exist" for name in "ab"}
    assert "txt" in source.fields and "offset:depth" not in source.fields


def test_a_companion_in_no_sample_and_a_field_with_the_name_of_its_column_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", pair_samples(2))
    with pytest.raises(
        SourceError, match=r"no samples in 1 file; the first, 'a\.tar/x/0\.jpg': companion no does not ex"
    ):
        scan(tmp_path, companions=[Companion("no", "{stem}.npy")])
    write_tar(tmp_path / "a.tar", [("1.jpg", b""), ("1.depth.npy", b""), ("1.json", b'{"depth_crc32": 1}')])
    with pytest.raises(
        SourceError, match="--pair depth: the index has a column 'depth_crc32' of its own; rename yours"
    ):
        scan(tmp_path, companions=PAIRS[:1])


# Tars that are cut short, or no tars


def whole_before(cut: int, path: Path) -> list[str]:
    """The samples that lie before `cut` with all their files, as tarfile sees them."""
    ends: dict[str, int] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            ends[member.name.split(".")[0]] = member.offset_data + member.size
    return [stem for stem, end in ends.items() if end <= cut]


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


# Tars that were joined


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
    """`end` blocks of zeros lie behind each of them: tar writes 20 at a time."""
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
