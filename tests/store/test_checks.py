"""What readers compare before they use it: the SHA-256 of the index, the CRC-32 of each record."""

from __future__ import annotations

import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from zlib_ng import zlib_ng

import presize.store.index
from presize.errors import DatasetError, OptionError
from presize.store.dataset import Dataset
from presize.store.index import read_index
from presize.store.manifest import read_manifest
from processes import fork
from tampering import flip_record, read_table


@pytest.fixture
def copied(dataset: Path, tmp_path: Path) -> Path:
    """A copy of `dataset`, to be changed at will."""
    return Path(shutil.copytree(dataset, tmp_path / "copied"))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the records whose CRC-32 was computed."""
    found: list[int] = []
    real = zlib_ng.crc32

    def crc32(value: memoryview) -> int:
        found.append(len(value))
        return real(value)

    monkeypatch.setattr(zlib_ng, "crc32", crc32)
    return found


def pixels_of(data: Dataset, sample: int) -> np.ndarray:
    ((_, pixels),) = data.pixels([sample])
    return pixels


# --- the index ---


def with_other_label(root: Path) -> None:
    """Change one label in place: the index keeps its size."""
    labels = read_table(root)["label"].to_numpy()
    content = (root / "index.arrow").read_bytes()
    assert content.count(labels.tobytes()) == 1
    other = labels.copy()
    other[7] ^= 1
    (root / "index.arrow").write_bytes(content.replace(labels.tobytes(), other.tobytes()))


def test_a_changed_index_is_refused_when_it_is_opened(copied: Path) -> None:
    with_other_label(copied)
    with pytest.raises(DatasetError, match=r"index\.arrow is damaged: its SHA-256 differs from the manifest; copy or"):
        Dataset(copied)
    with pytest.raises(DatasetError, match="SHA-256"):
        read_index(copied, read_manifest(copied))


def test_without_checks_a_changed_index_gives_other_labels(copied: Path, dataset: Path) -> None:
    with_other_label(copied)
    changed = Dataset(copied, check=False).numbers("label") != Dataset(dataset).numbers("label")
    assert np.flatnonzero(changed).tolist() == [7]


@pytest.mark.parametrize(("below", "is_hashed"), [(0, True), (1, False)])
def test_an_index_above_the_limit_is_left_to_verify(
    below: int, is_hashed: bool, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_other_label(copied)
    monkeypatch.setattr(presize.store.index, "HASHED_BYTES", (copied / "index.arrow").stat().st_size - below)
    if is_hashed:
        with pytest.raises(DatasetError, match="SHA-256"):
            Dataset(copied)
    else:
        assert len(Dataset(copied)) == 56


# --- records ---


def test_a_flipped_bit_in_a_record_is_an_error(copied: Path) -> None:
    flip_record(copied, 5)
    data = Dataset(copied)
    message = rf"sample 5 \({data.path(5)}\) of .* is damaged: its CRC-32 differs from the index; presize verify lists"
    for _ in range(2):  # a record that failed is not taken for a checked one
        with pytest.raises(DatasetError, match=message):
            data.value(5)
    with pytest.raises(DatasetError, match=message):
        list(data.pixels(range(56)))
    assert len(list(data.values([3, 4, 6]))) == 3, "the others can be read"


def test_without_checks_a_flipped_bit_gives_other_pixels(copied: Path, dataset: Path) -> None:
    flip_record(copied, 5)
    unchecked, sound = Dataset(copied, check=False), Dataset(dataset)
    assert not np.array_equal(pixels_of(unchecked, 5), pixels_of(sound, 5))
    assert np.array_equal(pixels_of(unchecked, 6), pixels_of(sound, 6))


def test_damaged_records_can_be_left_out(copied: Path) -> None:
    flip_record(copied, 5)
    flip_record(copied, 9)
    data, errors = Dataset(copied), {}
    found = {position for position, _ in data.values([3, 5, 7, 9], errors.__setitem__)}
    assert found == {0, 2}
    assert {position: f"sample {sample} " in str(errors[position]) for position, sample in ((1, 5), (3, 9))} == {
        1: True,
        3: True,
    }


def test_a_record_is_checked_once(dataset: Path, computed: list[int]) -> None:
    data = Dataset(dataset)
    for _ in range(3):
        list(data.values(range(56)))
        assert len(computed) == 56
    assert sum(computed) == data.manifest.bytes


def test_without_checks_nothing_is_computed(dataset: Path, computed: list[int]) -> None:
    list(Dataset(dataset, check=False).values(range(56)))
    assert computed == []


def test_a_pickle_keeps_the_choice_and_no_marks(dataset: Path, computed: list[int]) -> None:
    data = Dataset(dataset)
    data.value(9)
    again = pickle.loads(pickle.dumps(data))
    again.value(9)
    assert len(computed) == 2
    assert not pickle.loads(pickle.dumps(Dataset(dataset, check=False))).check


def test_threads_that_read_at_once_find_the_same_damage(copied: Path) -> None:
    for sample in (0, 13, 55):
        flip_record(copied, sample)
    data = Dataset(copied)

    def damaged(seed: int) -> set[int]:
        order = np.random.default_rng(seed).permutation(56).tolist()
        found: set[int] = set()
        read = [order[position] for position, _ in data.values(order, lambda at, _: found.add(order[at]))]
        assert len(read) + len(found) == 56
        return found

    with ThreadPoolExecutor(8) as pool:
        assert all(found == {0, 13, 55} for found in pool.map(damaged, range(32)))


def test_a_forked_child_checks_what_its_parent_has_not_read(copied: Path) -> None:
    flip_record(copied, 5)
    data = Dataset(copied)
    data.value(4)

    def read() -> int:
        data.value(4)
        with pytest.raises(DatasetError):
            data.value(5)
        return 7

    child = fork(read)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_check_is_true_or_false(dataset: Path) -> None:
    with pytest.raises(OptionError, match="check: expected"):
        Dataset(dataset, check="yes")  # type: ignore[arg-type]
