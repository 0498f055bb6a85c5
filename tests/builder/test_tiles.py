"""--tiles: which JPEGs are stored in tiles."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from builds import SERIAL
from commands import Ran
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.codecs.compiled import VARIABLE
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.jpeg.tiles import cut_jpeg
from presize.datasets import LMDBDataset, Loader, RandomResizedCrop
from presize.errors import BuildError
from presize.options import KEEP, BuildOptions, ImageOptions, Size, SourceOptions
from presize.store.dataset import Dataset
from presize.store.manifest import read_manifest
from presize.store.verify import verify_dataset

Presize = Callable[..., Ran]
compiled = pytest.mark.skipif(not jpeg_decoder.is_available(), reason="_jpeg_decoder.c is not compiled, or off")

ALL = BuildOptions(ImageOptions(sizes=(KEEP,), tiles="all"), shard_samples=4)
ANY_TREE = SourceOptions(labels="none")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create ten JPEGs of several kinds; the last one is progressive, which the decoder of tiles does not support."""
    folder = tmp_path_factory.mktemp("tiles")
    for number in range(10):
        image = Image.fromarray(smooth_image(90 + number, 130, seed=number))
        image.save(
            folder / f"{number}.jpg",
            quality=80 + number,
            subsampling=("4:4:4", "4:2:2", "4:2:0")[number % 3],
            optimize=number % 2 == 0,
            progressive=number == 9,
        )
    return folder


def stored(root: Path) -> dict[str, bytes]:
    """Return the stored bytes by file name."""
    data = Dataset(root)
    return {data.path(sample): data.value(sample) for sample in range(len(data))}


@compiled
@pytest.mark.parametrize("size", ["keep", "256"])
def test_unchanged_jpegs_are_stored_in_tiles(tree: Path, tmp_path: Path, size: str) -> None:
    options = BuildOptions(ImageOptions(sizes=(Size.parse(size),), tiles="all"))
    build_dataset(tree, tmp_path / "out", options, SERIAL, ANY_TREE)
    values = stored(tmp_path / "out")
    assert {name for name, value in values.items() if cut_jpeg(value, 40, 50, 16, 16) is None} == {"9.jpg"}
    for name, value in values.items():
        assert np.array_equal(simplejpeg.decode_jpeg(value), simplejpeg.decode_jpeg((tree / name).read_bytes()))
    assert verify_dataset(tmp_path / "out").problems == ()


@compiled
def test_tiles_make_a_different_dataset_with_the_same_crops(tree: Path, tmp_path: Path) -> None:
    plain = replace(ALL, image=replace(ALL.image, tiles="resized"))
    read = []
    for name, options in (("all", ALL), ("plain", plain)):
        build_dataset(tree, tmp_path / name, options, SERIAL, ANY_TREE)
        loader = Loader(LMDBDataset(tmp_path / name), 10, crop=RandomResizedCrop(48), flip=0.5, num_workers=0, seed=3)
        read.append(next(iter(loader)))
    images = [batch[0] if isinstance(batch, (tuple, list)) else batch for batch in read]
    assert np.array_equal(images[0].numpy(), images[1].numpy())
    with pytest.raises(BuildError, match=r"tiles was all, is resized"):
        build_dataset(tree, tmp_path / "all", plain, SERIAL, ANY_TREE)


def test_a_choice_is_recorded_by_name() -> None:
    recorded = [ImageOptions(tiles=tiles) for tiles in ("resized", True, "none", False, "all")]
    assert recorded[0] == recorded[1] and recorded[2] == recorded[3]
    found = [BuildOptions(image).to_json()["image"]["tiles"] for image in recorded]
    assert found == ["resized", "resized", "none", "none", "all"]
    assert [ImageOptions.from_json(BuildOptions(image).to_json()["image"]) for image in recorded] == recorded


SPELLINGS = [
    ((), "resized"), (("--tiles",), "resized"), (("--no-tiles",), "none"), (("--tiles", "--jobs", "1"), "resized"),
    (("--tiles=none",), "none"),
]  # fmt: skip


@pytest.mark.parametrize(("spelled", "recorded"), SPELLINGS, ids=[" ".join(spelled) for spelled, _ in SPELLINGS])
def test_the_former_spellings_of_the_option_work(
    presize: Presize, raw: Path, tmp_path: Path, spelled: tuple[str, ...], recorded: str
) -> None:
    out = tmp_path / "out"
    ran = presize("build", "--size", 32, *spelled, raw, out, "--backend", "sequential", "--no-report")
    assert ran.code == 0, ran.err
    assert read_manifest(out).identity["options"]["image"]["tiles"] == recorded


def test_all_is_refused_in_one_line_without_the_compiled_decoder(tree: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "presize", "build", tree, tmp_path / "out", "--labels=none", "--tiles=all"]
    environment = os.environ | {VARIABLE: "libjpeg"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 2
    lines = ran.stderr.strip().splitlines()
    assert len(lines) == 1, ran.stderr
    assert "tiles: all needs presize's own JPEG decoder, which is switched off: PRESIZE_DECODER=libjpeg" in lines[0]
    assert not (tmp_path / "out").exists()
