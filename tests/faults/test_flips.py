"""Files of a dataset damaged in every way: verify finds and locates the damage; readers raise, and never crash.

By default it flips some of the bits; PRESIZE_FAULTS=all flips every one (make torture).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builds import REPORTED
from effort import EFFORT
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.options import BuildOptions, ImageOptions, Layout, Size
from presize.store.data_files import DataFile
from presize.store.manifest import read_manifest
from processes import run_python
from tampering import manifest_values, write_manifest

pytestmark = pytest.mark.slow

SOME = "all" if os.environ.get("PRESIZE_FAULTS") == "all" else str(40 * EFFORT)
SUPPORT = Path(__file__).parents[1] / "support"


def small_dataset(place: Path, layout: Layout, seed: int = 0) -> Path:
    """Build four images and a reject; in two shards, each with one record large enough for its own page."""
    for i in range(4):
        path = place / "raw" / f"class-{i % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(seed + i).integers(0, 256, (32, 32, 3), np.uint8)
        Image.fromarray(noise if i < 2 else smooth_image(32, 32, seed + i)).save(path)
    (place / "raw" / "class-0" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    options = BuildOptions(ImageOptions(sizes=(Size(32, 32),)), layout, shard_samples=3)
    build_dataset(place / "raw", place / "out", options, REPORTED)
    return place / "out"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset(tmp_path_factory.mktemp("sound"), "lmdb")


# --- flips ---

FLIPS = "import sys; sys.path.insert(0, sys.argv[1]); import flips; flips.main(*sys.argv[2:])"


def flipped(root: Path) -> dict[str, dict[str, int]]:
    """Return the outcomes of flips in each file, and assert that no unexpected error was raised."""
    found = [json.loads(line) for line in run_python(FLIPS, SUPPORT, root, SOME, timeout_s=10**5).splitlines()]
    assert [(line["file"], note) for line in found for note in line["notes"]] == []
    return {line["file"]: line["counts"] for line in found}


def test_every_flip_in_a_dataset_is_found_and_yields_no_other_samples(sound: Path) -> None:
    for file, counts in flipped(sound).items():
        assert counts["found"] == counts["tried"], file
        assert "checked wrong" not in counts, file
        assert counts.get("checked refused", 0) > 0 or file in ("rejects.jsonl", "report.html"), file


def test_every_flip_in_a_folder_is_found_and_crashes_no_reader(tmp_path: Path) -> None:
    for file, counts in flipped(small_dataset(tmp_path, "folder")).items():
        assert counts["found"] == counts["tried"], file


# --- pages and files ---

OUTCOMES = """
import json, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import flips
expected = flips.samples(Path(sys.argv[2]), True)
for root, file in json.load(sys.stdin):
    signal.alarm(60)
    print(json.dumps(flips.outcome(Path(root), file, expected)))
"""


def outcomes(sound: Path, damaged: list[tuple[Path, str]]) -> list[set[str]]:
    """Return what verify reports about the damaged file of each dataset, and what readers with and without checks
    return."""
    asked = json.dumps([(str(root), file) for root, file in damaged])
    return [set(json.loads(line)) for line in run_python(OUTCOMES, SUPPORT, sound, stdin=asked).splitlines()]


REFUSED = {"found", "checked refused", "unchecked refused"}


def pages(sound: Path, place: Path) -> Iterator[tuple[Path, DataFile, int]]:
    """Yield a copy of the dataset for each page of its shards, and the offset of that page."""
    for file in read_manifest(sound).shards:
        for begin in range(0, file.bytes, 4096):
            yield Path(shutil.copytree(sound, place / f"{Path(file.file).stem}-{begin}")), file, begin


@pytest.mark.parametrize("manifest_agrees", [False, True])
def test_a_shard_that_ends_at_any_page_is_refused(manifest_agrees: bool, sound: Path, tmp_path: Path) -> None:
    damaged = []
    for root, file, begin in pages(sound, tmp_path):
        os.truncate(root / file.file, begin)
        if manifest_agrees:
            values = manifest_values(root)
            next(shard for shard in values["shards"] if shard["file"] == file.file).update(bytes=begin)
            write_manifest(root, values)
        damaged.append((root, file.file))
    assert outcomes(sound, damaged) == [REFUSED] * len(damaged)


FIRST = "shards/00000.lmdb"


def swapped(root: Path, _: Path) -> None:
    first, second = (root / file.file for file in read_manifest(root).shards)
    first.rename(root / "other")
    second.rename(first)
    (root / "other").rename(second)


def named_in_another_order(root: Path, _: Path) -> None:
    values = manifest_values(root)
    values["shards"].reverse()
    write_manifest(root, values)


CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "swapped": swapped,
    "repeated": lambda root, _: shutil.copy(root / read_manifest(root).shards[1].file, root / FIRST),
    "missing": lambda root, _: (root / FIRST).unlink(),
    "foreign": lambda root, other: shutil.copy(other / FIRST, root / FIRST),
    "empty": lambda root, _: (root / FIRST).write_bytes(b""),
    "a folder": lambda root, _: ((root / FIRST).unlink(), (root / FIRST).mkdir()),
    "named in another order": named_in_another_order,
}


def test_a_shard_that_differs_from_the_build_is_found_and_refused(sound: Path, tmp_path: Path) -> None:
    other = small_dataset(tmp_path / "other", "lmdb", seed=100)
    damaged = []
    for name, change in CHANGES.items():
        damaged.append((Path(shutil.copytree(sound, tmp_path / name)), FIRST))
        change(damaged[-1][0], other)
    for change, found in zip(CHANGES, outcomes(sound, damaged), strict=True):
        # Without checks, readers accept other records of the same length.
        assert {"found", "checked refused"} <= found or change == "named in another order", change
        assert "checked refused" in found and not found - REFUSED - {"unchecked wrong"}, change


def test_a_file_of_another_dataset_is_found(sound: Path, tmp_path: Path) -> None:
    other = small_dataset(tmp_path / "other", "lmdb", seed=100)
    damaged = []
    for file in ("index.arrow", "rejects.jsonl", "report.html"):
        damaged.append((Path(shutil.copytree(sound, tmp_path / file)), file))
        shutil.copy(other / file, damaged[-1][0] / file)
    for found in outcomes(sound, damaged):
        assert "found" in found and "checked wrong" not in found
