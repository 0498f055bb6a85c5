"""Companions in a build: masks stored with images, resumed, updated, verified and repaired with them."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

from builds import OVERWRITE, SERIAL, UPDATE, Builder, Stopped, stop
from foreign import write_tar
from paired import MASK, WITH_MASKS, make_pairs, mask_of, save_palette
from pictures import saved, smooth_image
from presize.builder.derive import DeriveOptions, derive_dataset
from presize.builder.repair import repair_dataset
from presize.builder.reuse import Changes
from presize.codecs import resize
from presize.codecs.arrays import decode_array
from presize.errors import BuildError, ImageError, OptionError, PresizeWarning, SourceError
from presize.options import (
    KEEP,
    BuildOptions,
    Companion,
    ErrorBudget,
    Fit,
    ImageOptions,
    RunOptions,
    Size,
    SourceOptions,
)
from presize.store.dataset import Dataset
from presize.store.export import export_dataset
from presize.store.manifest import read_manifest
from presize.store.verify import verify_dataset

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
"""Run by every worker as it starts. A mask that ends in "crash" kills its decoding process."""


@pytest.fixture
def build(tmp_path: Path) -> Builder:
    return Builder(make_pairs(tmp_path / "raw"), WITH_MASKS)


def masks_of(root: Path) -> dict[str, np.ndarray]:
    data = Dataset(root).companion("mask")
    return {data.path(position): pixels for position, pixels in data.pixels(range(len(data)))}


def rejects_of(root: Path) -> dict[str, str]:
    name = read_manifest(root).rejects.file
    return {line["path"]: line["reason"] for line in map(json.loads, (root / name).read_text().splitlines())}


def source_mask(pairs: Path, image: str) -> np.ndarray:
    return np.asarray(Image.open(pairs / "masks" / f"{Path(image).stem}.png"))


# Stored masks


@pytest.mark.parametrize("fit", ["shorter", "longer", "stretch", "crop", "pad"])
def test_a_mask_is_resized_by_nearest_to_the_size_of_its_image(fit: Fit, build: Builder) -> None:
    build(options=replace(WITH_MASKS, image=replace(WITH_MASKS.image, fit=fit)))
    data, found = build.data(), masks_of(build.out)
    for sample in range(len(data)):
        mask = source_mask(build.source, data.path(sample))
        target = resize.target(Size(*mask.shape), Size(24, 24), fit, upscale=False)
        box = target.box
        corners = (box.left, box.top, box.left + box.width, box.top + box.height)
        small = Image.fromarray(mask).resize((target.size.width, target.size.height), Image.Resampling.NEAREST, corners)
        stored = found[data.path(sample)]
        assert stored.shape == data.shape(sample)
        top, left = ((stored.shape[k] - target.size[k]) // 2 for k in range(2))
        assert np.array_equal(stored[top : top + small.height, left : left + small.width], np.asarray(small))
        assert int((stored != 0).sum()) == int((np.asarray(small) != 0).sum())


def test_masks_of_16_bits_keep_their_numbers(build: Builder) -> None:
    height, width = source_mask(build.source, "03").shape
    numbers = (0, 255, 256, 30_000, 65_535)
    Image.fromarray(mask_of(height, width, 3, numbers)).save(build.source / "masks" / "03.png")
    build()
    assert build.data().companion("mask").manifest.depth == 16
    mask = masks_of(build.out)["images/03.jpg"]
    assert mask.dtype == np.uint16
    assert set(np.unique(mask)) == set(numbers)


def test_each_size_has_its_masks_in_the_rows_of_their_images(build: Builder) -> None:
    result = build(options=replace(WITH_MASKS, image=ImageOptions(sizes=(Size(24, 24), Size(16, 16)))))
    stored_bytes = 0
    for size in ("24", "16"):
        data = Dataset(build.out / size)
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


def test_a_second_view_is_stored_like_an_image(build: Builder) -> None:
    shutil.copytree(build.source / "images", build.source / "views")
    view = Companion("view", "views/{name}", format="jpeg", filter="bicubic")
    build(options=replace(WITH_MASKS, companions=(view, MASK)))
    data = build.data()
    assert data.companions == ("mask", "view")
    assert [data.companion("view").value(i) for i in range(12)] == [data.value(i) for i in range(12)]


def test_a_companion_is_rotated_like_its_image(tmp_path: Path) -> None:
    build = Builder(tmp_path / "raw", replace(WITH_MASKS, image=ImageOptions(sizes=(Size(64, 64),))))
    for name in ("images", "masks"):
        (build.source / name).mkdir(parents=True)
    mask, exif = mask_of(30, 50, 1), Image.Exif()
    exif[0x0112] = 6
    turned = Image.fromarray(mask).transpose(Image.Transpose.ROTATE_90)
    turned.save(build.source / "masks" / "0.png", exif=exif)
    Image.fromarray(smooth_image(30, 50)).save(build.source / "images" / "0.jpg")
    build()
    assert np.array_equal(masks_of(build.out)["images/0.jpg"], mask)


def test_images_are_stored_the_same_without_companions(build: Builder) -> None:
    build("with")
    shutil.rmtree(build.source / "masks")
    build("without", replace(WITH_MASKS, companions=()))
    with_masks, without = build.files("with"), build.files("without")
    shards = [name for name in without if name.startswith("shards/")]
    assert shards and all(with_masks[name] == without[name] for name in shards)
    manifests = [json.loads((build.out.with_name(out) / "manifest.json").read_bytes()) for out in ("with", "without")]
    assert [manifest["version"] for manifest in manifests] == [2, 1]
    assert "companions" not in manifests[1]


# Rejects


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "companion mask does not exist"),
        (lambda path: path.write_bytes(b""), "companion mask: the file is empty"),
        (lambda path: path.write_bytes(path.read_bytes()[:80]), "companion mask: broken PNG: "),
        (
            lambda path: save_palette(path, mask_of(20, 20)),
            "companion mask: 20 x 20 pixels, but its image has 54 x 34, upright",
        ),
        (lambda path: Image.new("RGBA", (54, 34)).save(path), "companion mask: pixels of mode RGBA; "),
    ],
    ids=["missing", "empty", "broken", "another size", "transparent"],
)
def test_only_a_sample_without_its_mask_is_rejected(
    damage: Callable[[Path], object], reason: str, build: Builder
) -> None:
    damage(build.source / "masks" / "05.png")
    result = build()
    assert (result.stored, result.rejected) == (11, 1)
    ((path, found),) = rejects_of(build.out).items()
    assert path == "images/05.jpg"
    assert found.startswith(reason)
    assert len(masks_of(build.out)) == 11
    if "exist" in reason:
        with pytest.raises(ImageError, match=r"images/05\.jpg: companion mask does not exist"):
            build("strict", run=replace(SERIAL, on_error="fail"))


@pytest.mark.parametrize("strict", [{"on_error": "fail"}, {"max_errors": ErrorBudget(0)}], ids=["fail", "--max-errors"])
def test_a_file_that_is_not_an_image_needs_no_mask(strict: dict[str, Any], build: Builder) -> None:
    (build.source / "images" / "notes.txt").write_text("not named like an image")
    result = build(run=replace(SERIAL, **strict))
    assert (result.stored, result.skipped, result.rejected) == (12, 1, 0)
    (build.source / "masks" / "05.png").unlink()
    with pytest.raises((ImageError, BuildError), match=r"images/05\.jpg: companion mask does not exist"):
        build("strict", run=replace(SERIAL, **strict))


@pytest.mark.slow
def test_a_mask_that_crashes_its_decoder_rejects_only_its_sample(
    build: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.source / "masks" / "07.png"
    path.write_bytes(path.read_bytes() + b"crash")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    result = build(run=RunOptions(jobs=1, report=False))
    assert (result.stored, result.rejected) == (11, 1)
    assert list(rejects_of(build.out)) == ["images/07.jpg"]


def test_a_shard_without_its_masks_is_not_finished(build: Builder) -> None:
    with pytest.raises(Stopped):
        build(on_shard=stop)
    (masks,) = (build.out / "shards").glob("mask-*")
    masks.unlink()
    assert build().resumed == 0
    build("whole")
    assert build.files() == build.files("whole")


# Resuming and updating


def with_another_mask(pairs: Path) -> None:
    mask = source_mask(pairs, "02.png")
    save_palette(pairs / "masks" / "02.png", 255 - mask)


def with_a_new_pair(pairs: Path) -> None:
    shutil.copy(pairs / "images" / "01.jpg", pairs / "images" / "99.jpg")
    shutil.copy(pairs / "masks" / "01.png", pairs / "masks" / "99.png")


CHANGES: dict[str, tuple[Callable[[Path], object], tuple[int, int, int]]] = {
    "another mask": (with_another_mask, (11, 1, 0)),
    "a new pair": (with_a_new_pair, (12, 1, 0)),
    "no mask": (lambda pairs: (pairs / "masks" / "04.png").unlink(), (11, 0, 1)),
    "a broken mask": (lambda pairs: (pairs / "masks" / "04.png").write_bytes(b"\x89PNG\r\n\x1a\n"), (11, 1, 0)),
}
"""Effect of each change: images kept or copied, built, removed."""


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_an_update_equals_a_build_from_scratch(change: str, checksum: bool, build: Builder) -> None:
    build.options = replace(WITH_MASKS, checksum=checksum)
    build()
    before = build.files()
    assert build(run=UPDATE).changes == Changes(12, 0, 0, 0)
    assert build.files() == before
    CHANGES[change][0](build.source)
    changes = build(run=UPDATE).changes
    assert (changes.kept + changes.copied, changes.built, changes.removed) == CHANGES[change][1]
    build("new")
    updated, new = build.data(), build.data("new")
    assert len(updated) == len(new)
    for sample in range(len(new)):
        assert updated.path(sample) == new.path(sample)
        assert updated.value(sample) == new.value(sample)
        assert updated.companion("mask").value(sample) == new.companion("mask").value(sample)
    assert rejects_of(build.out) == rejects_of(build.out.with_name("new"))
    assert verify_dataset(build.out).problems == ()


def test_an_update_rebuilds_a_damaged_mask(build: Builder) -> None:
    build()
    before = masks_of(build.out)
    next((build.out / "shards").glob("mask-*")).write_bytes(b"short")
    build(run=UPDATE)
    after = masks_of(build.out)
    assert all(np.array_equal(before[path], after[path]) for path in before)
    assert verify_dataset(build.out).problems == ()


def test_no_companion_shard_outlives_its_dataset(build: Builder) -> None:
    def shards(names: object) -> set[str]:
        return {name for name in map(str, names) if name.startswith("shards/")}  # type: ignore[call-overload]

    build()
    with_another_mask(build.source)
    build(run=UPDATE)
    named = shards(file.file for file in build.manifest().files())
    assert shards(build.files()) == named
    assert any(name.startswith("shards/mask-") and name.endswith("-1.lmdb") for name in named)
    build(options=replace(WITH_MASKS, companions=()), run=OVERWRITE)
    assert not [name for name in build.files() if "mask" in name]


def test_other_companions_mean_other_options(build: Builder) -> None:
    build()
    with pytest.raises(BuildError, match=r"mask format was png, is raw"):
        build(options=replace(WITH_MASKS, companions=(replace(MASK, format="raw"),)), run=UPDATE)
    with pytest.raises(BuildError, match=r"mask pattern was masks/\{stem\}\.png, is the default"):
        build(options=replace(WITH_MASKS, companions=()), run=UPDATE)


# Choosing companions


def test_a_column_of_the_table_names_masks(build: Builder, tmp_path: Path) -> None:
    build.options = replace(WITH_MASKS, companions=(Companion("mask", column="seg"),))
    build.samples = SourceOptions(tmp_path / "table.csv")
    shutil.copy2(build.source / "masks" / "01.png", build.source / "masks" / "other.png")
    for first, built in (("masks/01.png", None), ("masks/other.png", 1), ("masks/other.png", 0)):
        rows = f"images/03.jpg,masks/03.png\nimages/01.jpg,{first}\nimages/02.jpg,\n"
        (tmp_path / "table.csv").write_text(f"path,seg\n{rows}")
        changes = build(run=SERIAL if built is None else UPDATE).changes
        assert built is None or changes.built == built
        assert build.data().column("seg").to_pylist() == ["masks/03.png", first]
        assert len(masks_of(build.out)) == 2
        assert rejects_of(build.out) == {"images/02.jpg": "companion mask is not named in column seg"}


@pytest.mark.parametrize("checksum", [False, True])
def test_a_mask_in_another_unicode_normalization_belongs_to_its_image(checksum: bool, build: Builder) -> None:
    build.options = replace(WITH_MASKS, checksum=checksum)
    (build.source / "images" / "05.jpg").rename(build.source / "images" / "\xe9.jpg")
    (build.source / "masks" / "05.png").rename(build.source / "masks" / "e\u0301.png")
    assert build().stored == 12 and rejects_of(build.out) == {}
    assert build(run=UPDATE).changes == Changes(12, 0, 0, 0)
    before = build.files()
    shard = next((build.out / "shards").glob("mask-*"))
    shard.write_bytes(shard.read_bytes()[:4096])
    assert repair_dataset(build.source, build.out).repaired == (f"shards/{shard.name}",)
    assert build.files() == before


def test_a_changed_mask_cannot_repair_a_shard(build: Builder) -> None:
    build()
    for shard in (build.out / "shards").glob("mask-*"):
        shard.unlink()
    with_another_mask(build.source)
    problems = repair_dataset(build.source, build.out).problems
    assert [problem for problem in problems if "images/02.jpg: its mask has changed or is missing" in problem.what]


def test_pairs_need_shards_and_a_mask(build: Builder) -> None:
    with pytest.raises(OptionError, match="companions are stored only in shards"):
        BuildOptions(layout="folder", companions=(MASK,))
    said = r"no sample of .* can be used; images/00\.jpg: the companion mask does not exist: 'no/00\.png'"
    with pytest.raises(SourceError, match=said):
        build(options=replace(WITH_MASKS, companions=(Companion("mask", "no/{stem}.png"),)))


# Arrays

DEPTH = Companion("depth", "{dir}/{stem}.depth.npy")
VECTOR = Companion("vector", "{dir}/{stem}.vector.npy")
WITH_ARRAYS = replace(WITH_MASKS, companions=(DEPTH, VECTOR), shard_samples=5)


def npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def array_files(count: int = 12) -> list[tuple[str, bytes]]:
    """Return samples of a picture, a depth map of its size in the other byte order, and a vector."""
    files = []
    for number in range(count):
        pixels = smooth_image(30 + number, 40, number)
        values = {"png": pixels, "depth.npy": pixels[:, :, 0].astype(">f4"), "vector.npy": np.full(3, number)}
        files += [(f"cats/{number:02}.{suffix}", value) for suffix, value in values.items()]
    return [
        (name, saved(Image.fromarray(value), "PNG") if name.endswith("png") else npy(value)) for name, value in files
    ]


def as_folder(source: Path, files: list[tuple[str, bytes]]) -> Builder:
    for name, content in files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    return Builder(source, WITH_ARRAYS)


def with_array(source: Path, content: bytes) -> Builder:
    """Return builds of three samples, one of them with this depth map."""
    return as_folder(source, [(n, content if n == "cats/01.depth.npy" else whole) for n, whole in array_files(3)])


@pytest.fixture(params=["folder", "tars"])
def arrays(request: pytest.FixtureRequest, tmp_path: Path) -> Builder:
    """Return builds of samples with arrays, from a folder or from two tars."""
    source, files = tmp_path / "raw", array_files()
    if request.param == "folder":
        return as_folder(source, files)
    write_tar(source / "a.tar", files[:18])
    write_tar(source / "b.tar", files[18:])
    return Builder(source, WITH_ARRAYS)


def stored_arrays(root: Path) -> dict[str, list[np.ndarray]]:
    data = Dataset(root)
    found = {name: dict(data.companion(name).pixels(range(len(data)))) for name in data.companions}
    return {Path(data.path(i)).stem: [found[name][i] for name in data.companions] for i in range(len(data))}


def test_arrays_are_resized_like_masks_or_stay_unchanged(arrays: Builder) -> None:
    assert arrays().stored == 12
    manifest = json.loads((arrays.out / "manifest.json").read_bytes())
    assert manifest["version"] == 3 and [each["format"] for each in manifest["companions"]] == ["npy", "npy"]
    for stem, (depth, vector) in stored_arrays(arrays.out).items():
        pixels = smooth_image(30 + int(stem), 40, int(stem))[:, :, 0]
        expected = np.asarray(Image.fromarray(pixels).resize(depth.shape[::-1], Image.Resampling.NEAREST))
        assert min(depth.shape) == 24
        assert depth.dtype == np.float32 and np.array_equal(depth, expected)
        assert vector.tolist() == [int(stem)] * 3
    assert verify_dataset(arrays.out).problems == ()


@pytest.mark.parametrize("checksum", [False, True])
def test_an_update_rebuilds_samples_with_changed_arrays(checksum: bool, arrays: Builder) -> None:
    arrays.options = replace(WITH_ARRAYS, checksum=checksum)
    arrays()
    assert arrays(run=UPDATE).changes == Changes(12, 0, 0, 0)
    files = [(name, npy(np.zeros(5)) if name == "cats/11.vector.npy" else content) for name, content in array_files()]
    if (arrays.source / "b.tar").exists():
        write_tar(arrays.source / "b.tar", files[18:])
    else:
        (arrays.source / "cats" / "11.vector.npy").write_bytes(npy(np.zeros(5)))
    changes = arrays(run=UPDATE).changes
    assert changes.built == (1 if checksum or not (arrays.source / "b.tar").exists() else 6)
    assert stored_arrays(arrays.out)["11"][1].tolist() == [0] * 5
    assert verify_dataset(arrays.out).problems == ()


def test_a_derived_dataset_has_arrays_of_the_new_size(arrays: Builder) -> None:
    arrays()
    derive_dataset([arrays.out], arrays.out.with_name("small"), DeriveOptions(size=Size(12, 12)))
    data = Dataset(arrays.out.with_name("small"))
    for stem, (depth, vector) in stored_arrays(data.root).items():
        large = stored_arrays(arrays.out)[stem][0]
        assert depth.shape == data.shape(int(stem)) != large.shape
        assert set(np.unique(depth)) <= set(np.unique(large)) and vector.tolist() == [int(stem)] * 3


def test_exported_arrays_can_be_built_again(arrays: Builder) -> None:
    arrays()
    out = arrays.out
    for layout in ("tar", "parquet", "folder"):
        export_dataset(out, out.with_name(layout), layout=layout)  # type: ignore[arg-type]
    table = pyarrow.parquet.read_table(out.with_name("parquet"))
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert "depth" not in features and features["image"] == {"_type": "Image"}
    rows = {Path(row["path"]).stem: decode_array(row["bytes"]) for row in table.column("depth").to_pylist()}
    in_folders = [Companion("depth", "depth/{dir}/{stem}.npy"), Companion("vector", "vector/{dir}/{stem}.npy")]
    kept = replace(WITH_ARRAYS, image=ImageOptions(sizes=(KEEP,)))
    tables = {"tar": None, "folder": out.with_name("images.csv")}
    names = [Dataset(out).path(i).removesuffix(".png") for i in range(12)]
    (out.with_name("images.csv")).write_text(
        "path,depth,vector\n" + "".join(f"image/{n}.jpg,depth/{n}.npy,vector/{n}.npy\n" for n in names)
    )
    by_column = tuple(replace(each, pattern=None, column=each.name, format="npy") for each in in_folders)
    for layout, companions in (("tar", kept.companions), ("folder", by_column)):
        again = Builder(out.with_name(layout), replace(kept, companions=companions), SourceOptions(tables[layout]))
        again(f"from-{layout}")
        found = stored_arrays(again.out.with_name(f"from-{layout}"))
        for stem, values in stored_arrays(out).items():
            assert all(np.array_equal(one, other) for one, other in zip(values, found[stem], strict=True))
            assert np.array_equal(rows[stem], values[0])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x93NUMPY\1\0", "companion depth: not a .npy file: wrong first bytes"),
        (npy(np.array([{}])), "companion depth: an array of Python objects; expected numbers of up to 64 bits"),
        (npy(np.zeros((1, 2, 3, 4))), "companion depth: an array of shape (1, 2, 3, 4); expected 1 to 3 axes"),
        (b"", "companion depth: the file is empty"),
    ],
)
def test_a_sample_without_a_valid_array_is_rejected(content: bytes, reason: str, tmp_path: Path) -> None:
    build = with_array(tmp_path / "raw", content)
    build()
    ((path, found),) = rejects_of(build.out).items()
    assert path == "cats/01.png" and found.startswith(reason)


def test_arrays_that_differ_from_their_images_in_shape_give_a_warning_if_others_fit(tmp_path: Path) -> None:
    build = with_array(tmp_path / "raw", npy(np.zeros((9, 9))))
    with pytest.warns(PresizeWarning, match="depth: stored 1 of 3 arrays unchanged, because the shape does not match"):
        build()
    assert stored_arrays(build.out)["01"][0].shape == (9, 9)


def test_masks_refuse_arrays_and_name_the_option_for_them(build: Builder) -> None:
    (build.source / "masks" / "05.png").write_bytes(npy(np.zeros(3)))
    build()
    said = "companion mask: an array, not an image; --pair-format npy stores it as a companion"
    assert rejects_of(build.out) == {"images/05.jpg": said}
