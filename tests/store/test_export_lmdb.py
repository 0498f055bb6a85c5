"""Exported LMDBs contain the stored bytes at the keys of other programs, and can be built again by build --keys.

The readers of these tests copy LmdbDataset of clovaai/deep-text-recognition-benchmark (e2117f2) and of baudm/parseq
(1902db0), paired_paths_from_lmdb and LmdbBackend of BasicSR (8d56e3a) and of MMEngine (2543429). The original classes
were run once, by hand, on such exports of 300 images, and returned their pixels and labels. torchvision's LSUN is run
if installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from PIL import Image

from builds import SERIAL, files
from captioned import captioned
from commands import Ran
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.datasets import LMDBDataset
from presize.errors import DatasetError, OptionError
from presize.options import KEEP, BuildOptions, ImageOptions, SourceOptions
from presize.store.dataset import Dataset
from presize.store.export import export_dataset
from torchvisions import torchvision_or_skip

COUNT = 300
"""More than one read's worth."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a dataset with text, labels and integers, in several shards; read only."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "raw" / "words").mkdir(parents=True)
    rows = [
        {"path": f"words/{i:03}.png", "text": f"wörd {i}", "label": "ab"[i % 2], "grade": i, "some": "x" if i else None}
        for i in range(COUNT)
    ]
    for i, row in enumerate(rows):
        Image.fromarray(smooth_image(20 + i % 40, 40, seed=i)).save(folder / "raw" / str(row["path"]))
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = BuildOptions(ImageOptions((KEEP,), format="png"), shard_samples=64)
    build_dataset(folder / "raw", folder / "out", options, SERIAL, SourceOptions(folder / "table.jsonl"))
    return folder / "out"


def export(root: Path, out: Path, keys: str, label_keys: str | None = None) -> dict[bytes, bytes]:
    """Return all records of an export, opened as those programs do."""
    counted: list[None] = []
    samples = len(Dataset(root))
    assert (
        export_dataset(root, out, "lmdb", keys=keys, label_keys=label_keys, on_image=lambda: counted.append(None))
        == len(counted)
        == samples
    )
    with lmdb.open(str(out), readonly=True, lock=False, readahead=False, meminit=False) as env, env.begin() as txn:
        return {bytes(key): bytes(value) for key, value in txn.cursor()}


def values(root: Path) -> list[bytes]:
    data = Dataset(root)
    return [data.value(i) for i in range(len(data))]


@pytest.mark.parametrize(
    ("keys", "label_keys", "column"),
    [
        ("text-recognition", None, "text"),
        ("image-%09d", "text=label-%09d", "text"),
        ("image-{:09d}", "label-{:09d}", "label"),
        ("image-{:09d}", "grade=label-{:09d}", "grade"),
    ],
)
def test_text_recognition_reads_image_and_label_from_1(
    keys: str, label_keys: str | None, column: str, texts: Path, tmp_path: Path
) -> None:
    records = export(texts, tmp_path / "there", keys, label_keys)
    count = int(records.pop(b"num-samples"))
    assert count == COUNT
    read = [(records.pop(b"image-%09d" % i), records.pop(b"label-%09d" % i).decode()) for i in range(1, count + 1)]
    assert not records
    data = Dataset(texts)
    labels = [str(value) for value in data.column(column).to_pylist()]
    if column == "label":
        labels = [(data.manifest.classes or ())[int(label)] for label in labels]
    assert read == list(zip(values(texts), labels, strict=True))


def test_basicsr_reads_each_name_of_meta_info(texts: Path, tmp_path: Path) -> None:
    records = export(texts, tmp_path / "there.lmdb", "basicsr")
    lines = (tmp_path / "there.lmdb" / "meta_info.txt").read_text().splitlines()
    assert [records[line.split(".")[0].encode("ascii")] for line in lines] == values(texts)
    data = Dataset(texts)
    assert len(records) == len(lines) == COUNT
    heights, widths = data.numbers("height").tolist(), data.numbers("width").tolist()
    for i, line in enumerate(lines):
        height, width = heights[i], widths[i]
        assert line == f"words/{i:03}.png ({height},{width},3) 1"


def test_lsun_reads_every_key(texts: Path, tmp_path: Path) -> None:
    records = export(texts, tmp_path / "there", "lsun")
    assert records == dict(zip((f"words/{i:03}.png".encode() for i in range(COUNT)), values(texts), strict=True))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # about the list of keys, which it does not close
def test_torchvisions_lsun_gives_the_images(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision_or_skip()
    from torchvision.datasets import LSUN

    export_dataset(texts, tmp_path / "bedroom_train_lmdb", layout="lmdb", keys="lsun")
    monkeypatch.chdir(tmp_path)  # it writes a list of keys there
    found = LSUN(str(tmp_path), classes=["bedroom_train"])
    expected = [image for image, _ in LMDBDataset(texts, target="path")]  # in the order of their paths
    assert [image.tobytes() for image, _ in found] == [image.tobytes() for image in expected]
    found.dbs[0].env.close()


@pytest.mark.parametrize("keys", ["text-recognition", "basicsr", "lsun", "image-{:09d}"])
def test_out_and_back_gives_equal_records(keys: str, texts: Path, tmp_path: Path) -> None:
    for name in ("there", "again"):
        export(texts, tmp_path / name, keys)
    assert files(tmp_path / "there") == files(tmp_path / "again"), "the same bytes every time"
    options = BuildOptions(ImageOptions((KEEP,), format="png"))
    build_dataset(tmp_path / "there", tmp_path / "back", options, SERIAL, SourceOptions(keys=keys))
    new, old = Dataset(tmp_path / "back"), Dataset(texts)
    if keys == "lsun":  # in the order of the file
        paths = [Dataset(root).column("path").to_pylist() for root in (tmp_path / "back", texts)]
        found, expected = (dict(zip(p, values(d.root), strict=True)) for p, d in zip(paths, (new, old), strict=True))
        assert found == expected
        return
    assert values(tmp_path / "back") == values(texts)
    if keys == "text-recognition":
        assert new.column("text").to_pylist() == old.column("text").to_pylist()
    elif keys == "basicsr":
        assert new.column("path").to_pylist() == old.column("path").to_pylist()


@pytest.mark.parametrize(
    ("keys", "label_keys", "message"),
    [
        ("image-{:09d}", "caption=label-{:09d}", "no column 'caption' for the labels"),
        ("image-{:09d}", "some=label-{:09d}", "'words/000.png' has no 'some', which readers need"),
        ("image-{:09d}", "text=image-{:09d}", "the key 'image-000000001' occurs twice"),
        ("x" * 500 + "{:012d}", None, "has more than 511 bytes"),
        ("text-recognition", "label-{:09d}", "takes no --label-keys"),
        ("image", None, "expected a pattern with one number"),
        ("image-{:09d}", "=label-{:09d}", "expected a column before ="),
    ],
)
def test_unsupported_columns_are_refused_before_anything_is_written(
    keys: str, label_keys: str | None, message: str, texts: Path, tmp_path: Path
) -> None:
    with pytest.raises((DatasetError, OptionError), match=re.escape(message)):
        export_dataset(texts, tmp_path / "there", layout="lmdb", keys=keys, label_keys=label_keys)
    assert not (tmp_path / "there").exists()


def test_names_that_basicsr_would_cut_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"got 'cats/a.png.jpg'"):
        export_dataset(captioned(tmp_path), tmp_path / "there", layout="lmdb", keys="basicsr")


def test_raw_pixels_and_companions_are_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="raw pixels; build with --format png"):
        export_dataset(captioned(tmp_path, "raw"), tmp_path / "there", layout="lmdb", keys="lsun")
    with pytest.raises(DatasetError, match=r"companions \(mask\); choose --to folder"):
        export_dataset(small / "masks", tmp_path / "there", layout="lmdb", keys="lsun")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(("layout", "keys"), [("lmdb", None), ("tar", "lsun")])
def test_keys_require_lmdb(layout: str, keys: str | None, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--to lmdb"):
        export_dataset(texts, tmp_path / "there", layout=layout, keys=keys)  # type: ignore[arg-type]


def test_the_command_takes_keys_and_label_keys(presize: Callable[..., Ran], texts: Path, tmp_path: Path) -> None:
    options = ("--to", "lmdb", "--keys", "image-{:09d}", "--label-keys", "text=label-{:09d}")
    ran = presize("export", texts, tmp_path / "command", *options)
    assert (ran.code, ran.out) == (0, f"{tmp_path / 'command'}: {COUNT} images\n")
    export(texts, tmp_path / "function", "text-recognition")
    assert files(tmp_path / "command") == files(tmp_path / "function")
