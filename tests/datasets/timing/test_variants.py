"""Variants of a benchmark: the same samples, labels and crops from a raw folder, a presized folder and LMDB."""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from builds import SERIAL, SMALL
from presize.builder.run import build_dataset
from presize.datasets.crops import CenterCrop, RandomResizedCrop
from presize.datasets.sampler import Visit
from presize.datasets.timing.bench_run import measure, prove
from presize.datasets.timing.epochs import Budget
from presize.datasets.timing.variants import Chosen, CroppedFolder, load_variant, open_variant
from presize.errors import BenchError, DatasetError, ImageError, LoaderError
from presize.measure.bench_options import READS, VARIANTS, Run, Variant
from presize.measure.listings import LISTERS, common_samples, list_lmdb, list_presized, list_raw

CPU = torch.device("cpu")
RUN = Run(
    variant="raw", model="none", device="cpu", workers=0, pin_memory=False, cold=False, prefetch=1, batch=16, crop=48,
    epochs=2, steps=None, seed=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build `raw` at 64 px into a folder; read only."""
    out = tmp_path_factory.mktemp("folder") / "64"
    build_dataset(raw, out, replace(SMALL, layout="folder"), SERIAL)
    return out


@pytest.fixture(scope="module")
def roots(raw: Path, folder: Path, dataset: Path) -> dict[str, str]:
    return {"raw": str(raw), "presized": str(folder), "lmdb": str(dataset)}


@pytest.fixture(scope="module")
def numbers(roots: dict[str, str]) -> dict[str, Any]:
    return common_samples({name: LISTERS[name](root) for name, root in roots.items()})


@pytest.fixture
def run_of(roots: dict[str, str], numbers: dict[str, Any], tmp_path: Path) -> Callable[..., Run]:
    """Return a function that makes a Run of a variant."""

    def run(variant: Variant, numbers: dict[str, Any] = numbers, **changes: Any) -> Run:
        np.save(tmp_path / "numbers.npy", numbers[READS[variant]])
        places = {"root": roots[READS[variant]], "numbers": str(tmp_path / "numbers.npy")}
        return replace(RUN, variant=variant, **places, **changes)

    return run


@pytest.fixture
def batches(roots: dict[str, str], numbers: dict[str, Any]) -> Callable[..., list[Any]]:
    """Return a function that reads a variant."""

    def read(variant: Variant, workers: int = 0) -> list[Any]:
        dataset = open_variant(variant, roots[READS[variant]], RandomResizedCrop(48), 0.5)
        order = Chosen(numbers[READS[variant]], len(dataset), 7)
        loader = load_variant(variant, dataset, order, replace(RUN, workers=workers), CPU)
        return [[part.clone() for part in batch] for batch in loader]

    return read


# Samples


def test_all_variants_have_the_stored_samples_or_as_many_of_them_drawn_at_random(
    roots: dict[str, str],
) -> None:
    listings = {name: LISTERS[name](root) for name, root in roots.items()}
    assert (len(listings["raw"]), len(listings["lmdb"])) == (60, 56)  # four images are broken
    drawn = [common_samples(listings, *how) for how in ((), (20, 1), (20, 1), (20, 2))]
    for numbers in drawn:
        paths = {tuple(listings[name].paths.take(numbers[name].tolist()).to_pylist()) for name in listings}
        assert len(paths) == 1
    assert len(drawn[0]["raw"]) == 56 and 16 <= len(drawn[1]["raw"]) <= 20
    assert drawn[1]["raw"].tolist() == drawn[2]["raw"].tolist() != drawn[3]["raw"].tolist()


def test_files_of_samples_are_those_that_are_read(folder: Path, dataset: Path) -> None:
    found = list_presized(folder).files_of(np.arange(5))
    assert len(found) == 5 and all(file.exists() for file in found)
    assert list_lmdb(dataset).files_of(np.arange(5)) == sorted((dataset / "shards").iterdir())


def a_good_one(folder: Path) -> Path:
    return max(folder.rglob("*.jpg"), key=lambda path: path.stat().st_size)


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("inner"))
    folder.mkdir()
    folder.with_name("inner").rename(folder / "inner")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another folder": (moved, r"was not built from .*: it lacks all 60 samples, such as"),
    "one more": (
        lambda raw: shutil.copy(a_good_one(raw), next(raw.iterdir()) / "zzz.jpg"),
        r"the variants have different samples: .* lacks 1 of .*zzz\.jpg; update it",
    ),
    "one less": (
        lambda raw: a_good_one(raw).unlink(),
        r"different samples: .* lacks 1 of .*\d+\.jpg; is it the source of",
    ),
    "another size": (
        lambda raw: a_good_one(raw).write_bytes(a_good_one(raw).read_bytes() + b"\0"),
        r"\d+\.jpg has \d+ bytes in .*, and had \d+ when .* --update",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_source_is_named(change: str, dataset: Path, raw: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(raw, tmp_path / "changed"))
    make, message = CHANGES[change]
    make(source)
    with pytest.raises(BenchError, match=message):
        common_samples({"raw": list_raw(source), "lmdb": list_lmdb(dataset)})


def test_different_labels_are_named(dataset: Path, raw: Path) -> None:
    other = list_raw(raw)
    assert other.labels is not None
    swapped = {"raw": replace(other, labels=other.labels[::-1].copy()), "lmdb": list_lmdb(dataset)}
    said = r"different labels: 0-red-disc/.* is '2-violet-square' in .* and '0-red-disc' in"
    with pytest.raises(BenchError, match=said):
        common_samples(swapped)


def test_a_folder_is_not_a_dataset_and_vice_versa(dataset: Path, folder: Path, raw: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="expected an LMDB dataset, got layout folder"):
        list_lmdb(folder)
    with pytest.raises(DatasetError, match="expected a folder that presize build --to folder made"):
        list_presized(dataset)
    with pytest.raises(DatasetError, match=str(raw)):
        list_presized(raw)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    a_good_one(copy).unlink()
    with pytest.raises(DatasetError, match="has 55 images, not the 56 that its manifest lists"):
        list_presized(copy)


# Crops and labels


def test_equal_images_are_cropped_equally_and_labels_are_the_same_in_every_variant(
    batches: Callable[..., Any],
) -> None:
    pil, raw, presized, lmdb, loader = (batches(variant, int(variant == "presized")) for variant in VARIANTS)
    assert [len(labels) for _, labels in loader] == [16, 16, 16, 8]
    for other in (pil, raw, presized, lmdb):
        assert [labels.tolist() for _, labels in other] == [labels.tolist() for _, labels in loader]
    for a, b, c in zip(presized, lmdb, loader, strict=True):
        assert a[0].shape[1:] == (3, 48, 48)
        assert torch.equal(b[0], c[0])
        assert (a[0].int() - b[0].int()).abs().max() <= 1


def test_pillow_yields_the_crops_of_the_raw_folder(roots: dict[str, str]) -> None:
    pil, raw = (open_variant(variant, roots["raw"], RandomResizedCrop(48), 0.5) for variant in ("pil", "raw"))
    compared = 0
    for sample in [Visit(sample, 5, 1, sample) for sample in range(len(raw))]:
        with suppress(ImageError, OSError), Image.open(Path(roots["raw"], raw.path(sample))) as file:
            if file.getexif().get(ExifTags.Base.Orientation, 1) != 1:
                continue
            (image, label), (expected, same) = pil[sample], raw[sample]
            assert image.dtype == torch.uint8 and label == same
            assert (image.int() - expected.int()).abs().max() <= 3
            compared += 1
    assert compared >= 30


def test_an_image_that_cannot_be_cropped_is_named(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    with pytest.raises(ImageError, match=r"broken\.jpg: Pillow cannot decode it: OSError$"):
        open_variant("pil", str(tmp_path), RandomResizedCrop(48), 0.5)[0]
    with pytest.raises(DatasetError, match="is too small for CenterCrop"):
        CroppedFolder(raw, CenterCrop(4000), 0.0)[0]


def test_a_variant_is_checked_to_yield_every_sample_once(run_of: Callable[..., Run], numbers: dict[str, Any]) -> None:
    proofs = [prove(run_of(variant)) for variant in VARIANTS]
    assert {(found["samples"], found["labels"]) for found in proofs} == {(56, proofs[0]["labels"])}
    assert proofs[0]["labels"] is not None
    twice = {name: np.append(values, values[-1]) for name, values in numbers.items()}
    with pytest.raises(BenchError, match="raw gave sample 55 not once but 2 times in an epoch"):
        prove(run_of("raw", twice))


def test_the_order_of_chosen_samples_ends_at_its_length() -> None:
    order = Chosen(np.array([9, 7, 5, 3]), 10, seed=1, most=2)
    given = {epoch: order.samples(epoch, np.arange(len(order))).tolist() for epoch in range(20)}
    assert all(len(samples) == 2 == len(set(samples)) for samples in given.values())
    assert {sample for samples in given.values() for sample in samples} == {9, 7, 5, 3}


def test_batches_of_a_folder_too_large_for_shared_memory_are_one_error(
    raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = CroppedFolder(raw, CenterCrop(32), 0.0)
    pages = 2 * 2 * -(-8 * (3 * 32 * 32 + 8) // mmap.PAGESIZE)  # workers, prefetch, batch
    need = (pages + 4 * (2 + 2)) * mmap.PAGESIZE  # and semaphores

    def load(free: int) -> int:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        order = Chosen(np.arange(len(data)), len(data))
        return len(load_variant("raw", data, order, replace(RUN, batch=8, workers=2, prefetch=2), CPU))

    with pytest.raises(LoaderError, match=r"4 batches of .* need .* there"):
        load(need - 1)
    assert load(need) > 0


# Runs


def test_a_run_has_epochs_and_with_a_model_the_step_without_the_loader(
    run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measure(run_of("raw"))
    assert [epoch["images"] for epoch in found["epochs"]] == [48, 48]  # the last batch is not full
    assert found["resident_s"] is None is found["model_of"]
    monkeypatch.setattr("presize.datasets.timing.epochs.STEP_BUDGET", Budget(1, 0.0))
    for variant in ("lmdb", "loader"):
        found = measure(run_of(variant, model="small", epochs=1, steps=2))
        assert found["epochs"][0]["images"] == 32
        assert found["resident_s"] == found["copied_s"] > 0  # nothing is copied on the CPU
        assert found["model_of"] == "presize"


@pytest.mark.parametrize(
    "error",
    [RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), torch.OutOfMemoryError("x")],
)
def test_a_model_that_does_not_fit_says_what_to_make_smaller(
    error: Exception, run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("presize.datasets.timing.models.TrainingStep.__call__", fail)
    reason = r"training model 'small' with batches of 16 images of 48 px does not fit .* --batch"
    with pytest.raises(BenchError, match=reason):
        measure(run_of("lmdb", model="small"))
