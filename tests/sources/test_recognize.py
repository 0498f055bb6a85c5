"""What a source is: a folder of images, containers, or something that no build can start from."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from foreign import image_column, picture, tar_samples, text_recognition, write_parquet, write_tar
from presize.errors import OptionError, PresizeWarning, SourceError
from presize.options import SourceOptions
from presize.sources.recognize import kind_of, recognize
from presize.sources.scan import scan, scan_images


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


def test_an_image_makes_a_folder_one_of_images(tmp_path: Path) -> None:
    write_tar(tmp_path / "annotations.tar", tar_samples(1))
    (tmp_path / "1.png").write_bytes(picture(1))
    assert recognize(tmp_path) is None
    assert scan(tmp_path).containers == ()


def test_an_image_at_any_depth_does_but_for_keys(tmp_path: Path) -> None:
    write_tar(tmp_path / "b" / "1.tar", tar_samples(1))
    write_tar(tmp_path / "0.tar", tar_samples(1))
    for keys in (False, True):
        found = recognize(tmp_path, keys)
        assert found is not None
        assert found.paths == ("0.tar", "b/1.tar")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "1.png").write_bytes(picture(1))
    assert recognize(tmp_path) is None
    found = recognize(tmp_path, among_images=True)
    assert found is not None
    assert found.paths == ("0.tar", "b/1.tar")


def test_with_a_table_a_folder_is_one_of_images(tmp_path: Path) -> None:
    (tmp_path / "0001").write_bytes(picture(1))  # no suffix tells that it is an image
    write_parquet(tmp_path / "labels.parquet", {"path": ["0001"], "label": ["cat"]})
    source = scan(tmp_path, SourceOptions(labels=tmp_path / "labels.parquet"))
    assert source.table.column("path").to_pylist() == ["0001"]


def test_hidden_folders_hold_no_containers(tmp_path: Path) -> None:
    write_tar(tmp_path / ".cache" / "1.tar", tar_samples(1))
    write_tar(tmp_path / "1.tar", tar_samples(1))
    found = recognize(tmp_path)
    assert found is not None
    assert found.paths == ("1.tar",)


def test_containers_of_several_kinds_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "1.tar", tar_samples(1))
    write_parquet(tmp_path / "1.parquet", {"image": image_column([picture(1)])})
    with pytest.raises(SourceError, match=r"holds files of several kinds \(parquet, tar\); give a folder of one"):
        scan(tmp_path)


def test_a_link_out_of_the_source_needs_leave(tmp_path: Path) -> None:
    write_tar(tmp_path / "blobs" / "x", tar_samples(2))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.tar").symlink_to(tmp_path / "blobs" / "x")
    with pytest.raises(SourceError, match=r"'1\.tar': it is a link out of the source; use --follow-links"):
        scan(tmp_path / "source")
    assert len(scan(tmp_path / "source", follow_links=True).table) == 2


@pytest.mark.parametrize("url", ["hf://datasets/x", "ftp://example.org/a.tar", "gs:/bucket/x"])
def test_a_url_is_refused_with_what_to_do(url: str) -> None:
    with pytest.raises(SourceError, match=r"is a URL; download it, or mount it, and give the local folder$"):
        scan(url)


def test_a_folder_whose_name_looks_like_a_url_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "x").mkdir(parents=True)
    (tmp_path / "s3:" / "x" / "1.png").write_bytes(picture(1))
    assert len(scan("s3:/x").table) == 1


def test_a_zip_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("1.png", picture(1))
    with pytest.raises(SourceError, match=r"a\.zip' is a zip; unpack it, and give the folder$"):
        scan(tmp_path / "a.zip")


def test_a_dataset_of_presize_is_refused_with_what_to_do(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "OUT").mkdir()
    (tmp_path / "OUT" / "64").symlink_to(dataset)
    for place in (dataset, tmp_path / "OUT"):
        with pytest.raises(
            SourceError, match=r"is a presize dataset, .*; build from the raw images, or .*presize derive$"
        ):
            scan(place)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(1))
    with pytest.raises(SourceError, match="is a file; expected a folder of images"):
        scan(tmp_path / "a.png")


def test_options_for_containers_need_them(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(picture(1))
    with pytest.raises(SourceError, match=r"--keys needs an LMDB, tar shards or Parquet files; source .* has none"):
        scan(tmp_path, SourceOptions(keys="jpg"))
    write_tar(tmp_path / "a" / "1.tar", tar_samples(1))
    with pytest.raises(SourceError, match="--label-keys is for LMDBs"):
        scan(tmp_path / "a", SourceOptions(keys="png", label_keys="label-{}"))
    with pytest.raises(SourceError, match="--classes needs labels, and the samples have none"):
        write_tar(tmp_path / "b.tar", [("1.png", picture(1))])
        scan(tmp_path / "b.tar", SourceOptions(classes=["a"]))


def test_label_keys_need_keys() -> None:
    with pytest.raises(OptionError, match="label_keys: it needs --keys"):
        SourceOptions(label_keys="label-{}")
    with pytest.raises(OptionError, match="label_keys: --keys lsun has its own"):
        SourceOptions(keys="lsun", label_keys="label-{}")
    with pytest.raises(OptionError, match="keys: expected a text such as image-"):
        SourceOptions(keys="")


def test_a_reader_of_image_files_refuses_containers(tmp_path: Path) -> None:
    write_tar(tmp_path / "1.tar", tar_samples(1))
    with pytest.raises(SourceError, match=r"holds no image files but '1\.tar'"):
        scan_images(tmp_path)


def test_splits_are_those_of_the_files(tmp_path: Path) -> None:
    for name in ("train-000000.tar", "train-000001.tar", "val_0.tar"):
        write_tar(tmp_path / "data" / name, tar_samples(1, first=len(list(tmp_path.rglob("*.tar")))))
    assert scan(tmp_path, SourceOptions(split="folders")).table.column("split").to_pylist() == ["train", "train", "val"]


def test_splits_are_the_folders_of_files_that_name_none(tmp_path: Path) -> None:
    for first, name in enumerate(("train/0.tar", "val/0.tar")):
        write_tar(tmp_path / name, tar_samples(1, first))
    assert scan(tmp_path, SourceOptions(split="folders")).table.column("split").to_pylist() == ["train", "val"]
    write_tar(tmp_path / "0.tar", tar_samples(1, 7))
    with pytest.raises(SourceError, match=r"--split folders: '0\.tar' lies in no folder of the source"):
        scan(tmp_path, SourceOptions(split="folders"))


def test_splits_by_share_work_for_containers(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", tar_samples(40))
    splits = scan(tmp_path, SourceOptions(split="train=0.5,val=0.5")).table.column("split").to_pylist()
    assert set(splits) == {"train", "val"}


def test_a_name_that_is_not_utf_8_is_left_out(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", tar_samples(1))
    (tmp_path / "0.tar").rename(tmp_path / "\udcff.tar")
    write_tar(tmp_path / "1.tar", tar_samples(2))
    with pytest.warns(PresizeWarning, match="its name is not UTF-8"):
        assert len(scan(tmp_path).table) == 2
