"""A dataset that is replaced while it is read: a reader gets the bytes that it opened, or one DatasetError."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch.utils.data

from builds import SERIAL
from effort import EFFORT
from presize.builder.run import build_dataset
from presize.datasets import CenterCrop, LMDBDataset, Loader
from presize.errors import DatasetError
from presize.options import BuildOptions, ImageOptions
from processes import fork

pytestmark = pytest.mark.slow

SAMPLES = 24
OPTIONS = BuildOptions(ImageOptions(format="raw"), shard_samples=2)
"""Every shard has the same size for any content: only the records reveal another dataset."""


def write_photos(folder: Path, version: int, every: int = 1) -> None:
    """Write photos: the pixels of sample i of a version are i + SAMPLES * version."""
    for i in range(0, SAMPLES, every):
        path = folder / "ab"[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), np.full((16, 16, 3), i + SAMPLES * version, np.uint8))
        os.utime(path, (version + 1, version + 1))


def overwritten(folder: Path, version: int) -> None:
    write_photos(folder / "photos", version)
    build_dataset(folder / "photos", folder / "out", OPTIONS, replace(SERIAL, overwrite=True))


def updated(folder: Path, version: int) -> None:
    write_photos(folder / "photos", version)
    build_dataset(folder / "photos", folder / "out", OPTIONS, replace(SERIAL, update=True))


def updated_in_part(folder: Path, version: int) -> None:
    write_photos(folder / "photos", version, every=5)
    (folder / "photos" / "b" / "01.png").unlink()
    build_dataset(folder / "photos", folder / "out", OPTIONS, replace(SERIAL, update=True))


def built_anew(folder: Path, version: int) -> None:
    shutil.rmtree(folder / "out")
    overwritten(folder, version)


WAYS = [overwritten, updated, updated_in_part, built_anew]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_photos(tmp_path / "photos", 0)
    build_dataset(tmp_path / "photos", tmp_path / "out", OPTIONS, SERIAL)
    return tmp_path


def outcome(data: LMDBDataset, i: int) -> int | str:
    try:
        return int(data[i][0][0, 0, 0])
    except DatasetError:
        return "DatasetError"


@pytest.mark.parametrize("way", WAYS)
def test_an_open_dataset_is_read_or_raises_an_error(way: Callable[[Path, int], None], folder: Path) -> None:
    first = LMDBDataset(folder / "out", decode="numpy")
    expected = [outcome(first, i) for i in range(SAMPLES)]
    data = LMDBDataset(folder / "out", decode="numpy")
    for i in range(0, SAMPLES, 5):
        assert outcome(data, i) == expected[i]
    way(folder, 1)
    found = [outcome(data, i) for i in range(SAMPLES)]
    assert all(one in ("DatasetError", wanted) for one, wanted in zip(found, expected, strict=True)), found
    assert "DatasetError" not in {found[i] for i in range(0, SAMPLES, 5)}, "their shards are open"


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("kind", ["Loader", "DataLoader"])
@pytest.mark.parametrize("way", WAYS if EFFORT > 1 else [overwritten, updated_in_part])
def test_workers_that_start_later_read_nothing_else(
    way: Callable[[Path, int], None], kind: str, context: str, folder: Path
) -> None:
    data = LMDBDataset(folder / "out", crop=CenterCrop(16), decode="tensor")
    way(folder, 1)
    loader: Any = (
        Loader(data, 4, num_workers=1, multiprocessing_context=context)
        if kind == "Loader"
        else torch.utils.data.DataLoader(data, 4, num_workers=1, multiprocessing_context=context)
    )
    with pytest.raises(DatasetError):
        list(loader)


def gives_one_version_each(deadline: float, root: Path, seed: int) -> bool:
    """Return True if every dataset opened until `deadline` has images of one version."""
    draw = random.Random(seed)
    while time.monotonic() < deadline:
        try:
            data = LMDBDataset(root, decode="numpy")
            order = draw.sample(range(SAMPLES), SAMPLES)
            places = [int(Path(data.samples[i][0]).stem) for i in order]
        except DatasetError:
            continue
        versions = set()
        for i, place in zip(order, places, strict=True):
            value = outcome(data, i)
            if isinstance(value, int):
                versions.add((value - place) / SAMPLES)
        if len(versions) > 1:
            return False
    return True


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_readers_of_a_dataset_that_is_replaced_repeatedly_see_one_version_each(folder: Path) -> None:
    ways = [overwritten, updated, built_anew]
    deadline = time.monotonic() + 10 + 10 * EFFORT
    readers = [partial(gives_one_version_each, deadline, folder / "out", seed) for seed in range(4)]
    children = [fork(lambda read=read: 0 if read() else 2) for read in readers]
    version = 0
    while time.monotonic() < deadline:
        version += 1
        ways[version % len(ways)](folder, version % 10)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * 4
    assert version > 2
