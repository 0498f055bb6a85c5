"""FolderDataset: a plain folder of images, in ImageFolder's order, without torchvision."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset

from builds import SERIAL, image_folder
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.datasets import FolderDataset, LMDBDataset
from presize.errors import ImageError, OptionError, SourceError
from presize.measure.listings import common_samples, list_lmdb, list_presized, list_raw
from presize.options import BuildOptions, ImageOptions, Size
from presize.store.rejects import IMAGE_SUFFIXES, claims_to_be_an_image

NAMES = "cow/2.jpg cow/10.jpg cow/a/1.PNG cow/a-b/1.webp ant/z.bmp ant/A.gif ant/é.tiff bee/1.jpeg".split()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create pictures of many formats in three classes, and other files; read only."""
    folder = tmp_path_factory.mktemp("photos")
    for i, name in enumerate(NAMES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(smooth_image(20 + i, 30, seed=i))
        turned = Image.Exif()
        turned[0x0112] = 6  # displayed with a rotation of 90 degrees
        image.save(folder / name, **({"exif": turned} if name == "cow/10.jpg" else {}))
    (folder / "ant" / "notes.txt").touch()
    (folder / "cow" / "a" / "list.csv").touch()
    (folder / "readme.md").touch()
    return folder


def test_classes_samples_and_targets_are_those_of_image_folder(photos: Path) -> None:
    classes, samples = image_folder(photos)
    ds = FolderDataset(photos)
    assert ds.classes == classes == ["ant", "bee", "cow"]
    assert ds.class_to_idx == {"ant": 0, "bee": 1, "cow": 2}
    assert ds.samples == samples
    assert ds.targets.tolist() == [label for _, label in samples]
    assert torch.as_tensor(ds.targets).dtype == torch.int64, "without torch's warning of a read-only array"
    assert len(ds) == len(NAMES)
    assert repr(ds) == f"FolderDataset('{photos}', 8 samples, decode='pil')"


@pytest.mark.parametrize("suffix", [*sorted(IMAGE_SUFFIXES), ".JPG", ".txt", ".jpg.txt", "jpg", ""])
def test_a_file_that_is_not_an_image_is_listed_if_its_suffix_is_one_of_an_image(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "sure.png").touch()
    (tmp_path / f"a{suffix}").touch()
    assert len(FolderDataset(tmp_path)) == 1 + claims_to_be_an_image(f"a{suffix}")


@pytest.mark.parametrize("name", ["tmp", "1.txt", "2.jpg.bak", "thumbs.db"])
def test_an_image_of_any_name_is_listed_as_a_build_stores_it(name: str, tmp_path: Path) -> None:
    """Caltech-101 has BACKGROUND_Google/tmp."""
    folder = tmp_path / "photos" / "BACKGROUND_Google"
    folder.mkdir(parents=True)
    for i, file in enumerate(("image_0001.jpg", name)):
        Image.fromarray(smooth_image(20 + i, 30)).save(folder / file, "jpeg")
    (folder / "notes").write_text("not an image")
    os.mkfifo(folder / "pipe")
    build_dataset(tmp_path / "photos", tmp_path / "out", BuildOptions(ImageOptions(sizes=(Size(16, 16),))), SERIAL)
    names = [Path(path).name for path, _ in FolderDataset(tmp_path / "photos").samples]
    assert names == [Path(path).name for path, _ in LMDBDataset(tmp_path / "out").samples]
    assert names == sorted(["image_0001.jpg", name])


@pytest.mark.parametrize(
    "target", [pytest.param("../elsewhere", marks=pytest.mark.filterwarnings("ignore:.*1 folder left out")), "nowhere"]
)
def test_bench_accepts_a_folder_and_its_dataset(target: str, tmp_path: Path) -> None:
    for path in ("photos/a/1.jpg", "photos/a/tmp", "photos/b/2.jpg", "photos/b/cut.jpg", "elsewhere/3.jpg"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(20, 30)).save(tmp_path / path, "jpeg")
    (tmp_path / "photos" / "b" / "cut.jpg").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "photos" / "linked").symlink_to(target)
    image = ImageOptions(sizes=(Size(16, 16),))
    build_dataset(tmp_path / "photos", tmp_path / "lmdb", BuildOptions(image), SERIAL)
    build_dataset(tmp_path / "photos", tmp_path / "folder", BuildOptions(image, layout="folder"), SERIAL)
    listings = {
        "raw": list_raw(tmp_path / "photos"),
        "presized": list_presized(tmp_path / "folder"),
        "lmdb": list_lmdb(tmp_path / "lmdb"),
    }
    numbers = common_samples(listings)
    paths = {name: [listings[name].paths[i].as_py() for i in numbers[name].tolist()] for name in listings}
    assert all(found == ["a/1.jpg", "a/tmp", "b/2.jpg"] for found in paths.values())


def test_only_files_without_an_image_suffix_are_opened(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("presize.sources.scan.starts_like_an_image", lambda _, path: bool(opened.append(path)))
    assert len(FolderDataset(photos)) == len(NAMES)
    assert opened == ["ant/notes.txt", "cow/a/list.csv"]


@pytest.mark.parametrize("i", range(len(NAMES)))
def test_images_are_upright_rgb_in_every_form(photos: Path, i: int) -> None:
    pil, array, tensor = (FolderDataset(photos, decode=decode)[i][0] for decode in ("pil", "numpy", "tensor"))
    path, _ = FolderDataset(photos).samples[i]
    with Image.open(path) as image:
        shape = (image.height, image.width) if "10.jpg" not in path else (image.width, image.height)
    assert (pil.mode, pil.size) == ("RGB", shape[::-1])
    assert (array.shape, array.dtype) == ((*shape, 3), np.uint8)
    assert array.flags.writeable
    assert (tuple(tensor.shape), tensor.dtype) == ((3, *shape), torch.uint8)
    assert np.array_equal(np.asarray(pil), array)
    assert np.array_equal(tensor.permute(1, 2, 0).numpy(), array)


def test_transforms_get_the_image_and_the_class_number(photos: Path) -> None:
    plain, ds = FolderDataset(photos, decode="bytes"), FolderDataset(photos, len, str, decode="bytes")
    assert list(plain) == [(Path(path).read_bytes(), label) for path, label in plain.samples]
    assert list(ds) == [(os.path.getsize(path), str(label)) for path, label in ds.samples]
    assert {type(label) for _, label in plain} == {type(label) for _, label in plain.samples} == {int}


@pytest.mark.parametrize("kind", [int, np.int64, torch.tensor])
def test_an_index_works_like_that_of_a_list(photos: Path, kind: Callable[[int], Any]) -> None:
    ds = FolderDataset(photos, decode="bytes")
    assert [ds[kind(i)] for i in range(-8, 8)] == list(ds) * 2
    for i in (-1000, -9, 8):
        with pytest.raises(IndexError, match=rf"sample {i} of .*: expected from -8 to 7"):
            ds[kind(i)]


def test_a_folder_without_class_folders_has_only_images(photos: Path, tmp_path: Path) -> None:
    ds = FolderDataset(photos / "ant", decode="numpy")
    assert ds[0].shape == (25, 30, 3)
    assert (ds.classes, ds.class_to_idx, ds.samples[0]) == (None, {}, (str(photos / "ant" / "A.gif"), None))
    assert not hasattr(ds, "targets")
    options = BuildOptions(ImageOptions(sizes=(Size(16, 16),)), layout="folder")
    build_dataset(photos / "ant", tmp_path / "folder", options, SERIAL)
    assert len(FolderDataset(tmp_path / "folder")) == 3


def test_links_are_followed_as_image_folder_does(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    for name in ("ant", "cow"):
        (tmp_path / "linked" / name).symlink_to(photos / name)
    assert FolderDataset(tmp_path / "linked").samples == image_folder(tmp_path / "linked")[1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"\xff\xd8\xff\xe0 cut short", ""),
        (b"<html>", "an HTML page, not an image"),
        (None, "No such file or directory"),
    ],
)
def test_an_unreadable_image_is_named(photos: Path, tmp_path: Path, content: bytes | None, words: str) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    ds = FolderDataset(tmp_path / "photos")
    file = tmp_path / "photos" / "bee" / "1.jpeg"
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(ImageError, match=rf"/photos/bee/1\.jpeg: .*{words}"):
        ds[3]


def test_paths_that_are_not_a_folder_of_images_are_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for root in (photos / "nowhere", photos / "bee" / "1.jpeg"):
        with pytest.raises(SourceError, match=root.name):
            FolderDataset(root)
    with pytest.raises(SourceError, match=r"holds no images$"):
        FolderDataset(tmp_path)
    with pytest.raises(OptionError, match="decode: expected one of pil, numpy, tensor, bytes, got 'jpeg'"):
        FolderDataset(photos, decode="jpeg")  # type: ignore[arg-type]


def test_a_presized_folder_has_the_samples_of_its_source(photos: Path, tmp_path: Path) -> None:
    image = ImageOptions(sizes=(Size(16, 16),), format="png")
    build_dataset(photos, tmp_path / "folder", BuildOptions(image, layout="folder"), SERIAL)
    build_dataset(photos, tmp_path / "lmdb", BuildOptions(image), SERIAL)
    files, packed = FolderDataset(tmp_path / "folder", decode="numpy"), LMDBDataset(tmp_path / "lmdb", decode="numpy")
    assert files.classes == packed.classes
    assert files.targets.tolist() == packed.targets.tolist()
    assert all(np.array_equal(a, b) for (a, _), (b, _) in zip(files, packed, strict=True))


def test_a_relative_path_means_the_same_from_anywhere(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos.parent)
    ds = FolderDataset(photos.name, decode="bytes")
    assert ds.samples[0][0] == f"{photos.name}/ant/A.gif"
    monkeypatch.chdir("/")
    assert ds[0] == FolderDataset(photos, decode="bytes")[0]


def test_there_is_no_python_object_per_file(photos: Path) -> None:
    values = vars(FolderDataset(photos)).values()
    assert not [value for value in values if isinstance(value, list | dict | tuple) and len(value) > 3]
    assert {type(value) for value in values} >= {pa.LargeStringArray, np.ndarray}


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_copies_and_parts_yield_the_same_samples(photos: Path, method: str) -> None:
    ds = FolderDataset(photos, len, decode="bytes")
    loader = DataLoader(ds, batch_size=3, num_workers=1, multiprocessing_context=method)
    found = [pair for sizes, labels in loader for pair in zip(sizes.tolist(), labels.tolist(), strict=True)]
    assert found == list(ds) == list(pickle.loads(pickle.dumps(ds)))
    assert [Subset(ds, [3, 1])[i] for i in (0, 1)] == [ds[3], ds[1]]
