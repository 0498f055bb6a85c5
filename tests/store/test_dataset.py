"""A dataset without torch: records and pixels by sample number, and checks before their use."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from zlib_ng import zlib_ng

import presize.store.dataset
import presize.store.index
import presize.store.shard_reader
from builds import SERIAL
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.errors import DatasetError, OptionError
from presize.options import BuildOptions, Color, Format, ImageOptions, RunOptions, Size
from presize.store.data_files import DataFile
from presize.store.dataset import Dataset, OnDamage
from presize.store.index import open_settled, read_index
from presize.store.manifest import Manifest
from presize.store.verify import VerifyResult, verify_dataset
from presize.system.resources import Memory
from processes import fork
from tampering import flip_record, read_table, with_value, write_table


def read_all(data: Dataset) -> list[bytes]:
    return [data.value(i) for i in range(len(data))]


# --- records ---


def test_values_come_in_disk_order_with_their_positions(dataset: Path) -> None:
    data = Dataset(dataset)
    shards, rows = data.numbers("shard"), data.numbers("row")
    wanted = [40, 3, 17, 3, 55, 0]
    found = [(position, bytes(view)) for position, view in data.values(wanted)]
    places = [(shards[wanted[position]], rows[wanted[position]], position) for position, _ in found]
    assert places == sorted(places)
    assert dict(found) == {k: data.value(i) for k, i in enumerate(wanted)}
    assert [*data.values([]), *data.pixels([])] == []


def test_each_value_and_path_matches_the_index(dataset: Path) -> None:
    data = Dataset(dataset)
    values = read_all(data)
    assert [len(value) for value in values] == data.numbers("nbytes").tolist()
    assert [zlib.crc32(value) for value in values] == data.numbers("crc32").tolist()
    assert [data.path(i) for i in range(len(data))] == data.column("path").to_pylist()


def test_numbers_are_read_only_and_in_the_mapped_file(dataset: Path) -> None:
    before = pa.total_allocated_bytes()
    numbers = Dataset(dataset).numbers("label")
    assert pa.total_allocated_bytes() <= before
    assert numbers.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        numbers[0] = 1


def test_a_missing_or_non_numeric_column_is_named(dataset: Path) -> None:
    with pytest.raises(DatasetError, match=r"has no column 'boxes'; it has path, shard, row, .*, label"):
        Dataset(dataset).column("boxes")
    with pytest.raises(DatasetError, match=r"column 'path' of .* is not numeric, or has nulls"):
        Dataset(dataset).numbers("path")


@pytest.mark.parametrize("readahead", [None, True, False])
def test_readahead_is_as_requested_or_chosen_and_kept_by_a_pickle(dataset: Path, readahead: bool | None) -> None:
    for data in (Dataset(dataset, readahead), pickle.loads(pickle.dumps(Dataset(dataset, readahead)))):
        assert data.readahead is (readahead is not False)  # this dataset fits into any memory
        assert {shard.readahead for shard in data.shards} == {data.readahead}


def test_the_window_is_that_of_the_disk_with_the_shards(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = (copied / "shards").rename(tmp_path.resolve() / "elsewhere")
    (copied / "shards").symlink_to(elsewhere)

    def window_bytes(path: Path) -> int:
        return 1 << 40 if path.resolve().is_relative_to(elsewhere) else 0

    monkeypatch.setattr(presize.store.dataset, "read_memory", lambda: Memory(None, None, 0, None, None))
    monkeypatch.setattr(presize.store.dataset, "window_bytes", window_bytes)
    assert not (data := Dataset(copied)).readahead
    assert data.value(0), "shards may be links to another disk"


@pytest.mark.parametrize("max_pixels", [0, 2**40 + 1])
def test_max_pixels_below_1_or_above_a_trillion_is_refused(max_pixels: int, dataset: Path) -> None:
    with pytest.raises(OptionError, match=rf"max_pixels: expected a whole number from 1 to {2**40}, got {max_pixels}"):
        Dataset(dataset, max_pixels=max_pixels)
    nearest = min(max(max_pixels, 1), 2**40)
    assert Dataset(dataset, max_pixels=nearest).max_pixels == nearest


def test_a_relative_path_means_the_same_from_anywhere(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(dataset.parent)
    data = Dataset(dataset.name)
    monkeypatch.chdir("/")
    pickled = pickle.dumps(data)
    assert len(pickled) < 200 + len(str(dataset)), "of its path"
    assert read_all(pickle.loads(pickled)) == read_all(Dataset(dataset))


FORMATS: list[Format] = ["jpeg", "png", "webp", "raw"]
COLORS: list[Color] = ["rgb", "gray", "keep"]
KINDS = [(format, color) for format in FORMATS for color in COLORS if (format, color) != ("webp", "keep")]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a colour and a grey picture, 20×24."""
    folder = tmp_path_factory.mktemp("mixed")
    Image.fromarray(smooth_image(20, 24)).save(folder / "color.png")
    Image.fromarray(smooth_image(20, 24)[:, :, 0]).save(folder / "gray.png")
    return folder


@pytest.mark.parametrize(("format", "color"), KINDS)
def test_pixels_have_the_colours_of_the_build(mixed: Path, tmp_path: Path, format: Format, color: Color) -> None:
    options = ImageOptions(sizes=(Size(16, 16),), format=format, color=color, quality=95)
    build_dataset(mixed, tmp_path / "OUT", BuildOptions(options), SERIAL)
    data = Dataset(tmp_path / "OUT")
    colored, gray = (pixels for _, pixels in sorted(data.pixels([0, 1])))
    assert colored.shape == ((16, 19) if color == "gray" else (16, 19, 3))
    assert gray.shape == ((16, 19) if color in ("gray", "keep") else (16, 19, 3))
    for pixels in (colored, gray):
        assert pixels.dtype == np.uint8
        assert pixels.flags.writeable, "they belong to the caller"
        assert pixels.flags.c_contiguous
    if format != "raw":
        stored = Image.open(BytesIO(data.value(0)))
        assert (stored.format, stored.size) == (format.upper(), (19, 16)), "an ordinary image"
        by_pillow = np.asarray(stored.convert("L" if color == "gray" else "RGB"), int)
        assert np.abs(colored - by_pillow).max() <= 8, "decoders may smooth colours their own way"


def test_damaged_records_can_be_skipped(copied: Path) -> None:
    flip_record(copied, 5)
    flip_record(copied, 9)
    data, errors = Dataset(copied), dict[int, DatasetError]()
    assert {position for position, _ in data.values([3, 5, 7, 9], errors.__setitem__)} == {0, 2}
    assert [str(errors[position]).partition(" (")[0] for position in (1, 3)] == ["sample 5", "sample 9"]
    with pytest.raises(DatasetError, match="its CRC-32 differs"):  # a record that failed does not count as checked
        data.value(5)


# --- checks: the SHA-256 of the index, the CRC-32 of each record ---


def with_other_label(root: Path) -> None:
    """Change one label in place: the size of the index stays the same."""
    labels = read_table(root)["label"].to_numpy()
    content = (root / "index.arrow").read_bytes()
    assert content.count(labels.tobytes()) == 1
    other = labels.copy()
    other[7] ^= 1
    (root / "index.arrow").write_bytes(content.replace(labels.tobytes(), other.tobytes()))


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


def test_without_checks_flipped_bits_yield_other_pixels_and_labels(copied: Path, dataset: Path) -> None:
    flip_record(copied, 5)
    with_other_label(copied)
    unchecked, sound = Dataset(copied, check=False), Dataset(dataset)
    assert np.flatnonzero(unchecked.numbers("label") != sound.numbers("label")).tolist() == [7]
    pixels, expected = dict(unchecked.pixels(range(56))), dict(sound.pixels(range(56)))
    assert [i for i in range(56) if not np.array_equal(pixels[i], expected[i])] == [5]


def test_a_record_is_checked_once_and_again_by_a_pickle(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, computed, crc32 = Dataset(dataset), list[int](), zlib_ng.crc32
    monkeypatch.setattr(zlib_ng, "crc32", lambda value: computed.append(len(value)) or crc32(value))
    for _ in range(3):
        list(data.values(range(56)))
        assert len(computed) == 56
    assert sum(computed) == data.manifest.bytes
    pickle.loads(pickle.dumps(data)).value(9)
    assert len(computed) == 57
    list(pickle.loads(pickle.dumps(Dataset(dataset, check=False))).values(range(56)))
    assert len(computed) == 57, "without checks no CRC-32 is computed"


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


@pytest.fixture
def two_sources(small: Path) -> tuple[Path, Path]:
    """Create two folders of 3 pictures."""
    return small / "raw" / "class-0", small / "raw" / "class-1"


THIRDS = BuildOptions(ImageOptions(sizes=(Size(32, 32),)), shard_samples=1)


def test_an_overwritten_dataset_still_reads_its_open_shards(two_sources: tuple[Path, Path], tmp_path: Path) -> None:
    build_dataset(two_sources[0], tmp_path / "OUT", THIRDS, SERIAL)
    old, unread = Dataset(tmp_path / "OUT"), Dataset(tmp_path / "OUT")
    before = read_all(old)
    build_dataset(two_sources[1], tmp_path / "OUT", THIRDS, RunOptions(engine="sequential", overwrite=True))
    new = Dataset(tmp_path / "OUT")
    after = read_all(new)
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert read_all(old) == before
    with pytest.raises(DatasetError, match="OUT was updated, replaced or removed since it was opened; open it again"):
        list(unread.values(range(3)))


@pytest.mark.parametrize("format", ["jpeg", "raw"])  # shards of different and of equal sizes
@pytest.mark.parametrize("on_damage", [None, lambda _position, _error: None])
def test_images_of_another_build_are_never_returned(
    on_damage: OnDamage | None, format: Format, two_sources: tuple[Path, Path], tmp_path: Path
) -> None:
    options = replace(THIRDS, image=replace(THIRDS.image, format=format))
    build_dataset(two_sources[0], tmp_path / "OUT", options, SERIAL)
    old = Dataset(tmp_path / "OUT")
    shutil.rmtree(tmp_path / "OUT")
    build_dataset(two_sources[1], tmp_path / "OUT", options, SERIAL)
    with pytest.raises(DatasetError, match="OUT was updated, replaced or removed since it was opened; open it again"):
        list(old.values(range(3), on_damage))
    assert len(read_all(Dataset(tmp_path / "OUT"))) == 3


def test_a_dataset_replaced_while_it_is_opened_is_opened_in_its_new_state(
    two_sources: tuple[Path, Path], tmp_path: Path
) -> None:
    build_dataset(two_sources[0], tmp_path / "OUT", THIRDS, SERIAL)
    sources = list(two_sources)

    def read(manifest: Manifest) -> pa.RecordBatch:
        if len(sources) > 1:
            build_dataset(sources.pop(), tmp_path / "OUT", THIRDS, RunOptions(engine="sequential", overwrite=True))
        return read_index(tmp_path / "OUT", manifest)

    assert open_settled(tmp_path / "OUT", read).equals(Dataset(tmp_path / "OUT").index)
    (tmp_path / "OUT" / "index-1.arrow").unlink()
    with pytest.raises(DatasetError, match=r"index-1.arrow: .*the dataset is incomplete"):
        open_settled(tmp_path / "OUT", read)


def test_an_abandoned_iterator_releases_its_shard(dataset: Path) -> None:
    data = Dataset(dataset)

    def begin() -> Iterator[tuple[int, memoryview]]:
        values = data.values(range(56))
        next(values)
        return values

    before = sum(shard.readers for shard in presize.store.shard_reader.open_shards.values())
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(begin).result()
    assert sum(shard.readers for shard in presize.store.shard_reader.open_shards.values()) == before + 1
    del begun  # in another thread than the one that started it
    assert sum(shard.readers for shard in presize.store.shard_reader.open_shards.values()) == before


OLD = Path(__file__).parents[1] / "fixtures" / "format-1"  # made once, by tools/make_fixture.py
OLD_SAMPLES = [  # path, label, shape, CRC-32 of the stored value and of the pixels
    ("ant/10.png", 0, (24, 32, 3), 2996754091, 2541507666),
    ("ant/9.png", 0, (24, 30, 3), 695579394, 46382490),
    ("ant/sub/0.png", 0, (24, 30, 3), 2754334953, 1172073558),
    ("bee/1.png", 1, (24, 29, 3), 2923108930, 1374940380),
    ("cow/été.png", 2, (24, 28, 3), 938221713, 3622413442),
    ("cow/ü/2.png", 2, (24, 27, 3), 908864887, 3896722923),
]


def test_a_dataset_of_format_1_is_read_the_same_in_every_release() -> None:
    data = Dataset(OLD)
    for i, pixels in data.pixels(range(6)):
        found = (data.path(i), data.numbers("label").item(i), pixels.shape)
        assert (*found, zlib.crc32(data.value(i)), zlib.crc32(pixels.tobytes())) == OLD_SAMPLES[i]
    manifest = data.manifest
    assert (len(data), manifest.classes, manifest.size) == (6, ("ant", "bee", "cow"), "24")
    assert (manifest.format, manifest.color, manifest.engine) == ("jpeg", "rgb", "0.9")
    shards = [(shard.file, shard.rows) for shard in manifest.shards]
    assert shards == [("shards/00000.lmdb", 2), ("shards/00001.lmdb", 4)]
    assert manifest.left_out["rejected"] == 1
    assert verify_dataset(OLD, jobs=1) == VerifyResult(6)


class Copying:
    """An origin that copies shards from a folder."""

    max_bytes: int | None = 1 << 40

    def __init__(self, source: Path, root: Path) -> None:
        self._source, self._root = source, root

    def provide(self, files: Sequence[DataFile]) -> None:
        for file in files:
            if not (self._root / file.file).exists():
                shutil.copy(self._source / file.file, self._root / file.file)

    def fetch_ahead(self, groups: Sequence[Sequence[DataFile]]) -> None:
        pass


def test_a_record_damaged_at_its_origin_is_reported_at_its_position(dataset: Path, copied: Path) -> None:
    write_table(copied, with_value(read_table(copied), "crc32", 4, 1))
    data = Dataset(copied, origin=Copying(dataset, copied))
    data.check_order(by_shards=False)  # any order is accepted if the cache holds everything
    damaged: list[tuple[int, str]] = []
    found = sorted(at for at, _ in data.values([3, 5, 4], lambda at, error: damaged.append((at, str(error)))))
    assert found == [0, 1]
    assert [at for at, _ in damaged] == [2]
    assert damaged[0][1].startswith("sample 4 ")
    with pytest.raises(DatasetError, match=r"^sample 4 .* its CRC-32 differs from the index"):
        list(data.values([3, 5, 4]))


def test_a_shard_renewed_by_another_thread_is_read_again(
    dataset: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Dataset(dataset).value(5)
    for path in (copied / "shards").iterdir():
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content.replace(record, bytes(len(record))))
    data = Dataset(copied, origin=Copying(dataset, copied))
    crc32, first, others = zlib_ng.crc32, iter([True]), list[bytes]()

    def meanwhile(value: memoryview) -> int:
        if next(first, False):
            thread = threading.Thread(target=lambda: others.append(data.value(5)))
            thread.start()
            thread.join()
        return crc32(value)

    monkeypatch.setattr(zlib_ng, "crc32", meanwhile)
    assert data.value(5) == record
    assert others == [record]
