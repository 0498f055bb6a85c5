"""Companions in a build: masks beside images, resumed, updated, checked and repaired with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builds import SERIAL, files
from paired import MASK, WITH_MASKS, make_pairs, mask_of, save_palette
from pictures import smooth_image
from presize.builder.estimate import estimate
from presize.builder.repair import repair_dataset
from presize.builder.run import build_dataset, plan_build
from presize.builder.shard_table import ShardDone
from presize.builder.update import Changes
from presize.codecs import resize
from presize.errors import BuildError, ImageError, OptionError, SourceError
from presize.options import BuildOptions, Companion, Fit, ImageOptions, RunOptions, Size, SourceOptions
from presize.store.dataset import Dataset
from presize.store.manifest import read_manifest
from presize.store.verify import verify_dataset

UPDATE = replace(SERIAL, update=True)
SITE = """
import os
from presize.builder.tasks import records

real = records.transcode_companion

def transcode(data, *rest):
    if data.endswith(b"crash"):
        os._exit(3)
    return real(data, *rest)

records.transcode_companion = transcode
"""
"""Run by every worker as it starts: a mask that ends in "crash" ends whoever decodes it."""


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return make_pairs(tmp_path / "raw")


def masks_of(root: Path, name: str = "mask") -> dict[str, np.ndarray]:
    data = Dataset(root).companion(name)
    return {data.path(position): pixels for position, pixels in data.pixels(range(len(data)))}


def rejects_of(root: Path) -> dict[str, str]:
    name = read_manifest(root).rejects.file
    return {line["path"]: line["reason"] for line in map(json.loads, (root / name).read_text().splitlines())}


def source_mask(pairs: Path, image: str) -> np.ndarray:
    return np.asarray(Image.open(pairs / "masks" / f"{Path(image).stem}.png"))


# What is stored


@pytest.mark.parametrize("fit", ["shorter", "longer", "stretch", "crop", "pad"])
def test_a_mask_is_its_source_resized_by_nearest_like_its_image(fit: Fit, pairs: Path, tmp_path: Path) -> None:
    image = replace(WITH_MASKS.image, fit=fit)
    build_dataset(pairs, tmp_path / "out", replace(WITH_MASKS, image=image), SERIAL)
    data = Dataset(tmp_path / "out")
    found = masks_of(tmp_path / "out")
    for sample in range(len(data)):
        mask = source_mask(pairs, data.path(sample))
        target = resize.target(Size(*mask.shape), Size(24, 24), fit, upscale=False)
        box = target.box
        corners = (box.left, box.top, box.left + box.width, box.top + box.height)
        small = Image.fromarray(mask).resize((target.size.width, target.size.height), Image.Resampling.NEAREST, corners)
        stored = found[data.path(sample)]
        assert stored.shape == data.shape(sample)
        top, left = ((stored.shape[k] - target.size[k]) // 2 for k in range(2))
        assert np.array_equal(stored[top : top + small.height, left : left + small.width], np.asarray(small))
        assert int((stored != 0).sum()) == int((np.asarray(small) != 0).sum())


def test_masks_of_16_bits_keep_their_numbers(pairs: Path, tmp_path: Path) -> None:
    path = pairs / "masks" / "03.png"
    height, width = np.asarray(Image.open(path)).shape
    numbers = (0, 255, 256, 30_000, 65_535)
    Image.fromarray(mask_of(height, width, 3, numbers)).save(path)
    build_dataset(pairs, tmp_path / "out", WITH_MASKS, SERIAL)
    assert Dataset(tmp_path / "out").companion("mask").manifest.depth == 16
    mask = masks_of(tmp_path / "out")["images/03.jpg"]
    assert mask.dtype == np.uint16
    assert set(np.unique(mask)) == set(numbers)


def test_each_size_has_its_masks_in_the_rows_of_their_images(pairs: Path, tmp_path: Path) -> None:
    sizes = (Size(24, 24), Size(16, 16))
    result = build_dataset(pairs, tmp_path / "out", replace(WITH_MASKS, image=ImageOptions(sizes=sizes)), SERIAL)
    stored_bytes = 0
    for size in ("24", "16"):
        data = Dataset(tmp_path / "out" / size)
        found = masks_of(data.root)
        assert [found[data.path(i)].shape for i in range(12)] == [data.shape(i) for i in range(12)]
        assert {min(mask.shape) for mask in found.values()} == {int(size)}
        (mask,) = data.manifest.companions
        assert [(file.file.replace("mask-", ""), file.rows) for file in mask.shards] == [
            (file.file, file.rows) for file in data.manifest.shards
        ]
        assert mask.bytes == data.numbers("mask_nbytes").sum()
        stored_bytes += data.manifest.bytes + mask.bytes
    assert result.bytes == stored_bytes


def test_raw_masks_are_the_same_masks(pairs: Path, tmp_path: Path) -> None:
    for format in ("png", "raw"):
        options = replace(WITH_MASKS, companions=(replace(MASK, format=format),))
        build_dataset(pairs, tmp_path / "as" / format, options, SERIAL)
    as_png, raw = masks_of(tmp_path / "as" / "png"), masks_of(tmp_path / "as" / "raw")
    assert all(np.array_equal(as_png[path], raw[path]) for path in as_png)


def test_a_second_view_is_stored_as_images_are(pairs: Path, tmp_path: Path) -> None:
    shutil.copytree(pairs / "images", pairs / "views")
    view = Companion("view", "views/{name}", format="jpeg", filter="bicubic")
    build_dataset(pairs, tmp_path / "out", replace(WITH_MASKS, companions=(view, MASK)), SERIAL)
    data = Dataset(tmp_path / "out")
    assert data.companions == ("mask", "view")
    assert [data.companion("view").value(i) for i in range(12)] == [data.value(i) for i in range(12)]


def test_a_companion_is_turned_upright_as_its_image_is(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    for name in ("images", "masks"):
        (raw / name).mkdir(parents=True)
    mask = mask_of(30, 50, 1)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Image.fromarray(mask).transpose(Image.Transpose.ROTATE_90)
    turned.save(raw / "masks" / "0.png", exif=exif)
    Image.fromarray(smooth_image(30, 50)).save(raw / "images" / "0.jpg")
    build_dataset(raw, tmp_path / "out", replace(WITH_MASKS, image=ImageOptions(sizes=(Size(64, 64),))), SERIAL)
    assert np.array_equal(masks_of(tmp_path / "out")["images/0.jpg"], mask)


def test_any_number_of_jobs_makes_the_same_bytes(pairs: Path, tmp_path: Path) -> None:
    for jobs in (1, 2):
        build_dataset(pairs, tmp_path / str(jobs), WITH_MASKS, RunOptions(jobs=jobs, report=False))
    build_dataset(pairs, tmp_path / "0", WITH_MASKS, SERIAL)
    assert files(tmp_path / "0") == files(tmp_path / "1") == files(tmp_path / "2")


def test_images_are_stored_as_they_are_without_companions(pairs: Path, tmp_path: Path) -> None:
    build_dataset(pairs, tmp_path / "with", WITH_MASKS, SERIAL)
    shutil.rmtree(pairs / "masks")
    build_dataset(pairs, tmp_path / "without", replace(WITH_MASKS, companions=()), SERIAL)
    with_masks, without = files(tmp_path / "with"), files(tmp_path / "without")
    shards = [name for name in without if name.startswith("shards/")]
    assert shards and all(with_masks[name] == without[name] for name in shards)
    manifests = [json.loads((tmp_path / out / "manifest.json").read_bytes()) for out in ("with", "without")]
    assert [manifest["version"] for manifest in manifests] == [2, 1]
    assert "companions" not in manifests[1]


# What is rejected


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "companion mask does not exist"),
        (lambda path: path.write_bytes(b""), "companion mask: the file is empty"),
        (lambda path: path.write_bytes(path.read_bytes()[:80]), "companion mask: broken PNG: "),
        (
            lambda path: save_palette(path, mask_of(20, 20)),
            "companion mask: 20 x 20 pixels, and its image has 54 x 34, upright",
        ),
        (lambda path: Image.new("RGBA", (54, 34)).save(path), "companion mask: pixels of mode RGBA; "),
    ],
    ids=["missing", "empty", "broken", "another size", "transparent"],
)
def test_a_sample_without_its_mask_is_rejected_and_nothing_else_is_lost(
    damage: Callable[[Path], object], reason: str, pairs: Path, tmp_path: Path
) -> None:
    damage(pairs / "masks" / "05.png")
    result = build_dataset(pairs, tmp_path / "out", WITH_MASKS, SERIAL)
    assert (result.stored, result.rejected) == (11, 1)
    ((path, found),) = rejects_of(tmp_path / "out").items()
    assert path == "images/05.jpg"
    assert found.startswith(reason)
    assert len(masks_of(tmp_path / "out")) == 11


def test_on_error_fail_stops_at_the_first_missing_mask(pairs: Path, tmp_path: Path) -> None:
    (pairs / "masks" / "05.png").unlink()
    with pytest.raises(ImageError, match=r"images/05\.jpg: companion mask does not exist"):
        build_dataset(pairs, tmp_path / "out", WITH_MASKS, replace(SERIAL, on_error="fail"))


@pytest.mark.slow
def test_a_mask_that_ends_its_decoder_costs_its_own_sample(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pairs / "masks" / "07.png"
    path.write_bytes(path.read_bytes() + b"crash")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    result = build_dataset(pairs, tmp_path / "out", WITH_MASKS, RunOptions(jobs=1, report=False))
    assert (result.stored, result.rejected) == (11, 1)
    assert list(rejects_of(tmp_path / "out")) == ["images/07.jpg"]


# Resuming and updating


class Stopped(Exception):
    """Stands for whatever ends a build in the middle."""


@pytest.mark.parametrize("gone", [False, True], ids=["its first shard is whole", "without its masks"])
def test_an_interrupted_build_goes_on_with_the_same_bytes(gone: bool, pairs: Path, tmp_path: Path) -> None:
    def stop(_: ShardDone) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        build_dataset(pairs, tmp_path / "out", WITH_MASKS, SERIAL, on_shard=stop)
    (masks,) = (tmp_path / "out" / "shards").glob("mask-*")
    if gone:
        masks.unlink()
    resumed = build_dataset(pairs, tmp_path / "out", WITH_MASKS, SERIAL).resumed
    assert (resumed == 0) is gone
    build_dataset(pairs, tmp_path / "whole", WITH_MASKS, SERIAL)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def with_another_mask(pairs: Path) -> None:
    mask = source_mask(pairs, "02.png")
    save_palette(pairs / "masks" / "02.png", 255 - mask)


def with_a_new_pair(pairs: Path) -> None:
    shutil.copy(pairs / "images" / "01.jpg", pairs / "images" / "99.jpg")
    shutil.copy(pairs / "masks" / "01.png", pairs / "masks" / "99.png")


def without_a_mask(pairs: Path) -> None:
    (pairs / "masks" / "04.png").unlink()


def with_a_broken_mask(pairs: Path) -> None:
    (pairs / "masks" / "04.png").write_bytes(b"\x89PNG\r\n\x1a\n")


CHANGES = {
    with_another_mask: (11, 1, 0),
    with_a_new_pair: (12, 1, 0),
    without_a_mask: (11, 0, 1),
    with_a_broken_mask: (11, 1, 0),
}
"""What each changes: images kept or copied, built, removed."""


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_an_update_equals_a_build_from_scratch(
    change: Callable[[Path], None], checksum: bool, pairs: Path, tmp_path: Path
) -> None:
    options = replace(WITH_MASKS, checksum=checksum)
    build_dataset(pairs, tmp_path / "out", options, SERIAL)
    change(pairs)
    changes = build_dataset(pairs, tmp_path / "out", options, UPDATE).changes
    assert (changes.kept + changes.copied, changes.built, changes.removed) == CHANGES[change]
    build_dataset(pairs, tmp_path / "new", options, SERIAL)
    updated, new = Dataset(tmp_path / "out"), Dataset(tmp_path / "new")
    assert len(updated) == len(new)
    for sample in range(len(new)):
        assert updated.path(sample) == new.path(sample)
        assert updated.value(sample) == new.value(sample)
        assert updated.companion("mask").value(sample) == new.companion("mask").value(sample)
    assert rejects_of(tmp_path / "out") == rejects_of(tmp_path / "new")
    assert verify_dataset(tmp_path / "out").problems == ()


def test_an_update_without_changes_builds_nothing(pairs: Path, tmp_path: Path) -> None:
    build_dataset(pairs, tmp_path / "out", WITH_MASKS, SERIAL)
    before = files(tmp_path / "out")
    assert build_dataset(pairs, tmp_path / "out", WITH_MASKS, UPDATE).changes == Changes(12, 0, 0, 0)
    assert files(tmp_path / "out") == before


def test_a_mask_that_was_broken_and_is_whole_again_brings_its_sample_back(pairs: Path, tmp_path: Path) -> None:
    whole = (pairs / "masks" / "04.png").read_bytes()
    with_a_broken_mask(pairs)
    build_dataset(pairs, tmp_path / "out", WITH_MASKS, SERIAL)
    (pairs / "masks" / "04.png").write_bytes(whole)
    assert build_dataset(pairs, tmp_path / "out", WITH_MASKS, UPDATE).stored == 12
    assert rejects_of(tmp_path / "out") == {}


def test_a_damaged_mask_is_made_again_by_an_update(pairs: Path, tmp_path: Path) -> None:
    build_dataset(pairs, tmp_path / "out", WITH_MASKS, SERIAL)
    before = masks_of(tmp_path / "out")
    next((tmp_path / "out" / "shards").glob("mask-*")).write_bytes(b"short")
    build_dataset(pairs, tmp_path / "out", WITH_MASKS, UPDATE)
    after = masks_of(tmp_path / "out")
    assert all(np.array_equal(before[path], after[path]) for path in before)
    assert verify_dataset(tmp_path / "out").problems == ()


def shards_of(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in (root / "shards").iterdir()}


def test_no_shard_of_a_companion_outlives_its_dataset(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build_dataset(pairs, out, WITH_MASKS, SERIAL)
    with_another_mask(pairs)
    build_dataset(pairs, out, WITH_MASKS, UPDATE)
    named = {file.file for file in read_manifest(out).files()}
    assert shards_of(out) == {name for name in named if name.startswith("shards/")}
    assert any(name.startswith("shards/mask-") and name.endswith("-1.lmdb") for name in named)
    build_dataset(pairs, out, replace(WITH_MASKS, companions=()), replace(SERIAL, overwrite=True))
    assert not [name for name in shards_of(out) if "mask" in name]


def test_other_companions_are_other_options(pairs: Path, tmp_path: Path) -> None:
    build_dataset(pairs, tmp_path / "out", WITH_MASKS, SERIAL)
    with pytest.raises(BuildError, match=r"mask format was png, is raw"):
        build_dataset(pairs, tmp_path / "out", replace(WITH_MASKS, companions=(replace(MASK, format="raw"),)), UPDATE)
    with pytest.raises(BuildError, match=r"mask pattern was masks/\{stem\}\.png, is the default"):
        build_dataset(pairs, tmp_path / "out", replace(WITH_MASKS, companions=()), UPDATE)


# Which files are companions


def test_a_column_of_the_table_names_masks(pairs: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("path,seg\nimages/03.jpg,masks/03.png\nimages/01.jpg,masks/01.png\nimages/02.jpg,\n")
    options = replace(WITH_MASKS, companions=(Companion("mask", column="seg"),))
    build_dataset(pairs, tmp_path / "out", options, SERIAL, SourceOptions(table))
    data = Dataset(tmp_path / "out")
    assert data.column("seg").to_pylist() == ["masks/03.png", "masks/01.png"]
    assert list(masks_of(tmp_path / "out")) and rejects_of(tmp_path / "out") == {
        "images/02.jpg": "companion mask is not named in column seg"
    }


def test_an_update_sees_that_a_column_names_another_mask(pairs: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    shutil.copy2(pairs / "masks" / "01.png", pairs / "masks" / "other.png")
    options = replace(WITH_MASKS, companions=(Companion("mask", column="seg"),))
    for mask, built in (("masks/01.png", 0), ("masks/other.png", 1), ("masks/other.png", 0)):
        table.write_text(f"path,seg\nimages/01.jpg,{mask}\nimages/02.jpg,masks/02.png\n")
        first = not (tmp_path / "out").exists()
        done = build_dataset(pairs, tmp_path / "out", options, SERIAL if first else UPDATE, SourceOptions(table))
        assert first or done.changes.built == built


def test_a_damaged_dataset_is_repaired_with_its_masks(pairs: Path, tmp_path: Path) -> None:
    options = replace(WITH_MASKS, image=ImageOptions(sizes=(Size(24, 24), Size(16, 16))))
    build_dataset(pairs, tmp_path / "out", options, SERIAL)
    whole = files(tmp_path / "out")
    shards = [tmp_path / "out" / size / "shards" for size in ("24", "16")]
    (shards[0] / "mask-00001.lmdb").unlink()
    (shards[1] / "mask-00000.lmdb").write_bytes(b"damaged")
    (shards[1] / "00000.lmdb").unlink()
    done = repair_dataset(pairs, tmp_path / "out")
    assert sorted(done.repaired) == ["16/shards/00000.lmdb", "16/shards/mask-00000.lmdb", "24/shards/mask-00001.lmdb"]
    assert done.problems == ()
    assert files(tmp_path / "out") == whole


def test_a_mask_that_has_changed_cannot_repair_a_shard(pairs: Path, tmp_path: Path) -> None:
    build_dataset(pairs, tmp_path / "out", WITH_MASKS, SERIAL)
    for shard in (tmp_path / "out" / "shards").glob("mask-*"):
        shard.unlink()
    with_another_mask(pairs)
    problems = repair_dataset(pairs, tmp_path / "out").problems
    assert [problem for problem in problems if "images/02.jpg: its mask has changed or gone" in problem.what]


def test_the_estimate_counts_masks(pairs: Path) -> None:
    alone = estimate(plan_build(pairs, replace(WITH_MASKS, companions=())), report=False)
    both = estimate(plan_build(pairs, WITH_MASKS), report=False)
    assert both.tried == 12 and both.rejects == ()
    assert both.bytes / 12 > alone.bytes / 24


def test_pairs_need_shards() -> None:
    with pytest.raises(OptionError, match="pairs are stored in shards alone"):
        BuildOptions(layout="folder", companions=(MASK,))


def test_no_sample_with_a_mask_is_no_source(pairs: Path, tmp_path: Path) -> None:
    with pytest.raises(
        SourceError,
        match=r"no sample of .* can be used; images/00\.jpg: the companion mask does not exist: 'no/00\.png'",
    ):
        build_dataset(pairs, tmp_path / "out", replace(WITH_MASKS, companions=(Companion("mask", "no/{stem}.png"),)))
