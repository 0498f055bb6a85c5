"""What a source is: a folder of images, containers, or something that no build can start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from foreign import image_column, picture, tar_samples, text_recognition, write_parquet, write_tar
from listings import make
from presize.errors import SourceError
from presize.sources.containers import kind_of, recognize
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
    with pytest.raises(SourceError, match=r"holds no image files but '1\.tar'"):
        scan_images(tmp_path / "b")
