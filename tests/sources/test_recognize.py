"""What a source is: a folder of images, containers, or something that no build can start from."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from foreign import image_column, picture, tar_samples, text_recognition, write_parquet, write_tar
from listings import make, paths
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


def test_an_image_at_any_depth_makes_a_folder_one_of_images_but_for_keys(tmp_path: Path) -> None:
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


def test_with_a_table_a_folder_is_one_of_images(tmp_path: Path) -> None:
    make(tmp_path, "0001")  # no suffix tells that it is an image
    write_parquet(tmp_path / "labels.parquet", {"path": ["0001"], "label": ["cat"]})
    assert paths(scan(tmp_path, SourceOptions(labels=tmp_path / "labels.parquet"))) == ["0001"]


def test_a_link_out_of_the_source_needs_leave(tmp_path: Path) -> None:
    write_tar(tmp_path / "blobs" / "x", tar_samples(2))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.tar").symlink_to(tmp_path / "blobs" / "x")
    with pytest.raises(SourceError, match=r"'1\.tar': it is a link out of the source; use --follow-links"):
        scan(tmp_path / "source")
    assert len(scan(tmp_path / "source", follow_links=True).table) == 2


def test_a_folder_whose_name_looks_like_a_url_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "s3:" / "x", "1.png")
    assert len(scan("s3:/x").table) == 1


LOCAL = "is a URL; download it, or mount it, and give the local folder"
NO_SOURCE = [
    ("hf://datasets/x", SourceOptions(), LOCAL),
    ("ftp://example.org/a.tar", SourceOptions(), LOCAL),
    ("gs:/bucket/x", SourceOptions(), LOCAL),
    ("a.zip", SourceOptions(), "a.zip' is a zip; unpack it, and give the folder"),
    ("OUT", SourceOptions(), "is a presize dataset, whose images are resized; build from the raw images, or make"),
    ("OUT/64", SourceOptions(), "or make another dataset of it with presize derive"),
    ("images/1.png", SourceOptions(), "is a file; expected a folder of images"),
    ("images", SourceOptions(keys="jpg"), "--keys is for Parquet files, LMDBs, tar shards, not for folders; source '"),
    ("both", SourceOptions(), "holds files of several kinds (parquet, tar); give a folder of one"),
    (
        "both/1.tar",
        SourceOptions(keys="png", label_keys="label-{}"),
        "--label-keys is for LMDBs, not for tar shards; source '",
    ),
    ("both/1.parquet", SourceOptions(classes=["a"]), "--classes needs labels, and the samples have none"),
]


@pytest.mark.parametrize(("name", "options", "said"), NO_SOURCE)
def test_what_no_build_can_start_from_is_refused_with_what_to_do(
    name: str, options: SourceOptions, said: str, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "images/1.png", f"OUT/64 -> {dataset}")
    write_tar(tmp_path / "both" / "1.tar", tar_samples(1))
    write_parquet(tmp_path / "both" / "1.parquet", {"image": image_column([picture(1)])})
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("1.png", picture(1))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError) as caught:
        scan(name, options)
    assert said in str(caught.value)


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


@pytest.mark.parametrize(
    ("names", "split", "expected"),
    [
        (("data/train-000000.tar", "data/train-000001.tar", "data/val_0.tar"), "folders", ["train", "train", "val"]),
        (("train/0.tar", "val/0.tar"), "folders", ["train", "val"]),
        (("0.tar", "1.tar", "2.tar"), "all=1", ["all"] * 3),
    ],
)
def test_splits_are_those_of_the_files_or_their_folders_or_shares(
    names: tuple[str, ...], split: str, expected: list[str], tmp_path: Path
) -> None:
    for first, name in enumerate(names):
        write_tar(tmp_path / name, tar_samples(1, first))
    assert scan(tmp_path, SourceOptions(split=split)).table.column("split").to_pylist() == expected
    if split == "folders":
        write_tar(tmp_path / "0.tar", tar_samples(1, 7))
        with pytest.raises(SourceError, match=r"--split folders: '0\.tar' lies in no folder of the source"):
            scan(tmp_path, SourceOptions(split="folders"))


def test_a_name_that_is_not_utf_8_is_left_out(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", tar_samples(1)).rename(tmp_path / "\udcff.tar")
    write_tar(tmp_path / "1.tar", tar_samples(2))
    with pytest.warns(PresizeWarning, match="its name is not UTF-8"):
        assert len(scan(tmp_path).table) == 2
