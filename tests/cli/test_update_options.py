"""presize build SRC OUT --update: the options taken from OUT, and the records that --verify reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from builds import files
from commands import Ran
from paired import make_pairs
from presize.store.manifest import read_manifest
from presize.store.verify import verify_dataset
from tampering import flip_record

JOBS = ("--jobs", "1", "--no-report")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Create images, their masks, and a table with boxes and keypoints."""
    folder = make_pairs(tmp_path / "raw")
    box, at = [[0.1, 0.2, 0.5, 0.5]], [[3, 4]]
    table = [{"path": f"images/{i:02}.jpg", "box": box, "at": at, "code": i} for i in range(12)]
    (tmp_path / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    return folder


TABLE = ("--labels", "table.jsonl")
MASK = ("--pair", "mask=masks/{stem}.png", "--pair-format", "raw")
BUILDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "image": ((), ("--size", "16x12", "--fit", "crop", "--quality", "71", "--no-tiles", "--upscale", "--depth", "8")),
    "sizes": ((), ("--size", "16", "--size", "12", "--shard-samples", "5", "--checksum")),
    "16 bits": ((), ("--size", "keep", "--format", "png", "--depth", "16", "--color", "gray")),
    "pairs": ((), ("--size", "16", *MASK)),
    "coordinates": (TABLE, ("--boxes", "box:xywh%", "--keypoints", "at", "--bad-boxes", "reject", "--size", "16")),
    "types": (TABLE, ("--column-type", "code:text", "--size", "16")),
}


@pytest.mark.parametrize("name", BUILDS)
def test_an_update_takes_the_options_that_are_not_given_from_the_dataset(
    name: str, presize: Callable[..., Ran], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    samples, options = BUILDS[name]
    assert presize("build", source, "out", *samples, *options, *JOBS).code == 0
    shutil.copy(source / "images" / "00.jpg", source / "images" / "05.jpg")
    updated = presize("build", source, "out", *samples, "--update", *JOBS)
    assert updated.code == 0, updated.err
    assert updated.err == ""
    (tmp_path / "new").mkdir()
    assert presize("build", source, "new/out", *samples, *options, *JOBS).code == 0
    for manifest in (tmp_path / "new" / "out").rglob("manifest.json"):
        now = read_manifest(tmp_path / manifest.parent.relative_to(tmp_path / "new"))
        assert now.identity == read_manifest(manifest.parent).identity


def test_a_changed_option_of_an_update_is_named(presize: Callable[..., Ran], source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert presize("build", source, out, "--size", "16", "--quality", "71", *MASK, *JOBS).code == 0
    before = files(out)
    shutil.copytree(source / "masks", source / "other")
    for given, differs in {
        ("--quality", "80"): "quality was 71, is 80",
        ("--pair", "mask=other/{stem}.png"): "mask pattern was masks/{stem}.png, is other/{stem}.png",
        ("--pair-format", "png"): "mask format was raw, is png",
        ("--size", "12"): "sizes was 16, is 12",
    }.items():
        ran = presize("build", source, out, "--update", *given, *JOBS)
        assert ran.code == 1
        assert f"differs ({differs}), which --update cannot change" in ran.err
    assert files(out) == before
    shutil.rmtree(source / "other")
    assert presize("build", source, out, "--update", "--pair", "mask=masks/{stem}.png", *JOBS).code == 0


def test_an_update_without_a_dataset_uses_the_defaults(
    presize: Callable[..., Ran], source: Path, tmp_path: Path
) -> None:
    assert presize("build", source, tmp_path / "out", "--update", *JOBS).code == 0
    assert read_manifest(tmp_path / "out").size == "256"


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], int]] = {
    "a record": (lambda out: flip_record(out / "16", 7), 1),
    "of a mask": (lambda out: flip(out / "12" / "shards" / "mask-00001.lmdb", -100), 1),
    "structure": (lambda out: flip(out / "16" / "shards" / "00001.lmdb", 4096 * 2 + 18), 4),
    "the file alone": (lambda out: flip(out / "16" / "shards" / "00001.lmdb", 4000), 0),
    "cut": (lambda out: (out / "16" / "shards" / "00001.lmdb").write_bytes(b""), 4),
    "nothing": (lambda _: None, 0),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_an_update_with_verify_rebuilds_damaged_records(
    name: str, presize: Callable[..., Ran], source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    build = ("build", source, out, "--size", "16", "--size", "12", "--shard-samples", "5", *MASK, *JOBS)
    assert presize(*build).code == 0
    whole = files(out)
    damage, damaged = DAMAGE[name]
    damage(out)
    found = [verify_dataset(out / size).problems for size in ("16", "12")]
    assert any(found) == (name != "nothing")
    dry = json.loads(presize("build", source, out, "--update", "--verify", "--dry-run", "--json").out)
    ran = presize("build", source, out, "--update", "--verify", *JOBS)
    assert ran.code == 0, ran.err
    assert dry["damaged"] == damaged
    again = f"{damaged} damaged image{'s' if damaged != 1 else ''} rebuilt"
    assert f"  verified: {again if damaged else 'all kept records are intact'}" in ran.out.splitlines()
    assert f"built {damaged}, removed 0, damaged {damaged}" in ran.out
    assert [verify_dataset(out / size).problems for size in ("16", "12")] == [(), ()]
    assert (files(out) == whole) == (name == "nothing")
