"""A Loader whose batches go to a simulated device, and crops that grow between epochs.

MUTANTS are faults in presize.datasets.reading.transfer that the simulated device must detect: otherwise it proves
nothing."""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from accelerators import Accelerator
from builds import build_images
from presize.datasets import CenterCrop, LMDBDataset, Loader, RandomResizedCrop, make_loader
from presize.datasets.reading import transfer
from presize.errors import OptionError, PresizeWarning
from presize.options import BuildOptions, Companion, Coordinates, ImageOptions, Size
from processes import fork

NORMALIZE = ((0.5,) * 3, (0.2,) * 3)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    return Accelerator(monkeypatch)


@pytest.fixture(params=[0, 2], ids=["this thread", "processes"])
def how(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"num_workers": request.param}


def thirds(image: Any) -> Any:
    return {"small": torch.tensor(np.asarray(image)[::3] / 255.0), "mean": float(np.asarray(image).mean())}


SEED: dict[str, Any] = {"shuffle": True, "seed": 5}


def same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-7)  # floats: a device multiplies, while the CPU divides


KINDS: dict[str, dict[str, Any]] = {
    "uint8": {},
    "threads": {"mode": "threads"},
    "normalized": {"normalize": NORMALIZE},
    "views": {"crop": [RandomResizedCrop(24), RandomResizedCrop(12)]},
    "a transform": {"transform": thirds},
    "a transform of normalized images": {"transform": torch.neg, "normalize": NORMALIZE},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_batches_on_a_device_equal_those_on_the_cpu(
    kind: dict[str, Any], how: dict[str, Any], cuda: Accelerator, dataset: Path
) -> None:
    options: dict[str, Any] = {"crop": RandomResizedCrop(24), "flip": 0.5, **SEED, **kind}
    data = LMDBDataset(dataset)
    with Loader(data, 8, device="cuda", **options, **how) as loader:
        found = list(loader)  # keeping them would reveal reused memory
        assert sum(cuda.pinned.values()) and cuda.copies >= 7 and loader.pin_memory
    same(found, list(Loader(data, 8, **options, num_workers=0)))
    del found
    gc.collect()
    assert cuda.problems == [] and not cuda.pinned


def grown(loader: Loader, other: Loader, crop: Any, epoch: int) -> list[Any]:
    """Read an epoch of `loader` with another crop, and compare it with `other`, which was created with that crop."""
    loader.crop = crop
    other.set_epoch(epoch)
    batches = list(loader)
    same(batches, list(other))
    return batches


CROPS: list[Any] = [RandomResizedCrop(40), [RandomResizedCrop(48), CenterCrop(12)], RandomResizedCrop(20)]


@pytest.mark.parametrize(
    "options", [{}, {"normalize": NORMALIZE}, {"transform": thirds}], ids=["uint8", "float", "rest"]
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_crop_grows_and_shrinks_between_epochs(
    device: str, options: dict[str, Any], how: dict[str, Any], cuda: Accelerator, dataset: Path
) -> None:
    data = LMDBDataset(dataset).subset(range(20))
    options = {"flip": 0.5, **SEED, **options}
    with Loader(data, 8, crop=RandomResizedCrop(24), device=device, **options, **how) as loader:
        kept = list(loader)
        for epoch, crop in enumerate(CROPS, 1):
            grown(loader, Loader(data, 8, crop=crop, num_workers=0, **options), crop, epoch)
        same(kept, list(Loader(data, 8, crop=RandomResizedCrop(24), num_workers=0, **options)))
    del kept, loader
    gc.collect()
    assert cuda.problems == [] and not cuda.pinned


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build 12 images with a mask and two boxes."""
    rng = np.random.default_rng(0)
    names = [f"{number}.png" for number in range(12)]
    images = {name: np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((8, 8, 1))).astype(np.uint8) for name in names}
    images |= {f"masks/{name}": images[name][:, :, 0] // 64 for name in names}
    rows = [{"path": name, "label": 0, "bbox": [[4, 8, 30, 20], [20, 20, 40, 40]]} for name in names]
    options = BuildOptions(
        ImageOptions(sizes=(Size(64, 64),)),
        boxes=(Coordinates("bbox", "xywh"),),
        companions=(Companion("mask", "masks/{name}"),),
    )
    return build_images(tmp_path_factory.mktemp("objects"), images, options, rows)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_boxes_and_companions_follow_a_growing_crop(
    device: str, how: dict[str, Any], cuda: Accelerator, objects: Path
) -> None:
    data = LMDBDataset(objects, target={"boxes": "bbox", "label": "label"})
    options: dict[str, Any] = {"flip": 0.5, **SEED}
    with Loader(data, 4, crop=RandomResizedCrop(16), device=device, **options, **how) as loader:
        for number, ((image, mask), target) in enumerate(loader):
            assert image.shape[2:] == mask.shape[1:] == (16, 16)
            assert max(boxes.max().item() for boxes in target["boxes"] if len(boxes)) <= 16
            if number == 1:
                loader.crop = RandomResizedCrop(48)  # for the next epoch
        for epoch, side in ((1, 48), (2, 32)):
            crop = RandomResizedCrop(side)
            found = grown(loader, Loader(data, 4, crop=crop, num_workers=0, **options), crop, epoch)
            assert {batch[0][1].shape[1:] for batch in found} == {(side, side)}
    assert cuda.problems == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_epoch_continues_with_its_initial_crop(
    device: str, how: dict[str, Any], cuda: Accelerator, dataset: Path
) -> None:
    data = LMDBDataset(dataset)
    with Loader(data, 8, crop=RandomResizedCrop(24), device=device, **SEED, **how) as loader:
        batches = iter(loader)
        found = [next(batches)]
        for side in (64, 8, 40):
            loader.crop = RandomResizedCrop(side)
            found.append(next(batches))
        found += batches
        same(found, list(Loader(data, 8, crop=RandomResizedCrop(24), num_workers=0, **SEED)))
        assert next(iter(loader))[0].shape == (8, 3, 40, 40)
    assert cuda.problems == []


OBJECTS: dict[str, Any] = {"target": {"boxes": "bbox", "label": "label"}}


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_images_companions_and_targets_are_the_same_on_every_kind_of_device(
    kind: str, how: dict[str, Any], objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, data = Accelerator(monkeypatch, kind), LMDBDataset(objects, **OBJECTS)
    options: dict[str, Any] = {"crop": RandomResizedCrop(16), "flip": 0.5, **SEED}
    with Loader(data, 4, device=kind, **options, **how) as loader:
        assert loader.device == torch.device(kind, 0) and loader.pin_memory == (kind != "mps")
        expected = Loader(data, 4, num_workers=0, **options)
        for _ in range(2):  # epochs
            same(list(loader), list(expected))
    assert device.problems == []
    assert device.pageable == (0 if kind != "mps" else device.pageable) and (device.copies > 0) == (kind != "mps")


def train(device: Accelerator, data: LMDBDataset) -> None:
    """Train an epoch whose steps are slower than its copies; `device.problems` lists wrong batches."""
    device.gate.clear()
    with Loader(data, 8, device=device.kind, num_workers=2, **SEED) as loader:
        for got, want in zip(loader, Loader(data, 8, num_workers=0, **SEED), strict=True):
            if not all(map(torch.equal, got, want)):
                device.problems.append("a batch is wrong")
            device.step(got[0])
            del got
        device.finish()
    if device.most_waiting > 5:
        device.problems.append("memory grows with the steps that wait")


def train_with_slow_copies(device: Accelerator, data: LMDBDataset) -> None:
    device.copy_s = 0.03
    train(device, data)


def close_in_mid_copy(device: Accelerator, data: LMDBDataset) -> None:
    device.copy_s = 0.2
    loader = Loader(data, 8, device=device.kind, num_workers=2)
    batches = iter(loader)
    next(batches)
    time.sleep(0.2)  # lets the workers make more batches
    next(batches)
    del batches
    loader.close()
    time.sleep(0.4)


def take_in_inference_mode(device: Accelerator, data: LMDBDataset) -> None:
    batches = iter(Loader(data, 8, device=device.kind, num_workers=2))
    with torch.inference_mode():
        next(batches)
        time.sleep(0.2)  # lets the workers make more batches
        next(batches)
    if next(batches)[0].is_inference():
        device.problems.append("a batch outside of inference mode is of it")


def leave_in_a_child(device: Accelerator, data: LMDBDataset) -> None:
    batches: Any = iter(Loader(data, 8, device=device.kind, num_workers=0))
    next(batches)

    def leave() -> int:
        batches.close()
        return 0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads
        _, status = os.waitpid(fork(leave), 0)
    if status:
        device.problems.append("a forked child used the device")


Scenario = Callable[[Accelerator, LMDBDataset], None]

MUTANTS: dict[str, tuple[str, str, Scenario]] = {
    "hands over before it arrived": ("        event.synchronize()\n", "", train),
    "does not keep the source": (
        "return to_device(source, self.device), source,", "return to_device(source, self.device), None,",
        train_with_slow_copies,
    ),
    "does not tell the allocator": ("tensor.record_stream(", "id(", train),
    "copies on the stream of the caller": ("inference_mode(False), stream:", "inference_mode(False):", train),
    "uses staging memory again at once": ("))] * _COPIES", "))]", train_with_slow_copies),
    "lets the caller run ahead": ("if len(steps) > _STEPS_AHEAD", "if False", train),
    "leaves copies on their way": ("self._stream.synchronize()", "pass", close_in_mid_copy),
    "is in the caller's inference mode": ("torch.inference_mode(False), stream", "stream", take_in_inference_mode),
    "waits in a child": ("os.getpid() == owner:  # a forked", "True:  #", leave_in_a_child),
}  # fmt: skip


@pytest.mark.parametrize("scenario", sorted({mutant[2] for mutant in MUTANTS.values()}, key=lambda each: each.__name__))
@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_training_on_a_device_is_correct(
    kind: str, scenario: Scenario, data: LMDBDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Accelerator(monkeypatch, kind)
    scenario(device, data)
    gc.collect()
    assert device.problems == [] and not device.pinned


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=list(MUTANTS))
def test_the_simulated_device_detects_a_fault_in_the_transfer(
    mutant: tuple[str, str, Scenario], cuda: Accelerator, data: LMDBDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong, scenario = mutant
    source = Path(str(transfer.__file__)).read_text()
    assert source.count(right) == 1
    faulty = ModuleType("faulty_transfer")
    exec(source.replace(right, wrong), vars(faulty))
    monkeypatch.setattr("presize.datasets.loader.Transfer", faulty.Transfer)
    scenario(cuda, data)
    gc.collect()
    assert cuda.problems


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.usefixtures("cuda")
def test_a_batch_released_by_the_caller_is_freed(device: str, how: dict[str, Any], data: LMDBDataset) -> None:
    with Loader(data, 8, device=device, **how) as loader:
        for images, _ in loader:
            gone = weakref.ref(images)
            del images, _
            assert gone() is None


@pytest.mark.usefixtures("cuda")
def test_a_batch_does_not_wait_for_the_next_one(dataset: Path) -> None:
    calls, gate = [0], threading.Event()

    def transform(image: Any) -> Any:
        calls[0] += 1
        if calls[0] > 9:  # the second batch: one more call determines the shape
            assert gate.wait(10), "the first batch was not handed over"
        return torch.from_numpy(np.array(image))

    how: dict[str, Any] = {"num_workers": 1, "mode": "threads"}
    with Loader(
        LMDBDataset(dataset), 8, crop=RandomResizedCrop(24), transform=transform, device="cuda", **how
    ) as loader:
        batches = iter(loader)
        next(batches)
        gate.set()
        assert len(list(batches)) == 6


COUNTED: list[object] = []
"""Not in a closure of `counted`: a changed transform gets new memory."""


def counted(image: Any) -> Any:
    COUNTED.append(image)
    return torch.from_numpy(np.array(image))


@pytest.mark.slow
def test_slots_are_pinned_after_the_first_request_and_once_for_many_early_breaks(
    cuda: Accelerator, dataset: Path
) -> None:
    COUNTED.clear()
    at_register: list[int] = []
    cuda.on_register = lambda: at_register.append(len(COUNTED))
    loader = Loader(
        LMDBDataset(dataset), 8, crop=RandomResizedCrop(24), transform=counted, device="cuda", num_workers=0
    )
    for _ in range(3):
        next(iter(loader))
        gc.collect()
    assert at_register[0] >= 8
    assert cuda.registered.count(max(cuda.registered)) == 1
    loader.close()
    gc.collect()
    assert not cuda.pinned and cuda.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["processes", "threads"])
def test_memory_kept_over_an_early_break_has_room_for_whole_epochs(mode: Any, data: LMDBDataset) -> None:
    with Loader(data, 8, num_workers=2, mode=mode, **SEED) as loader:
        for _ in range(5):
            kept = next(iter(loader))
            gc.collect()
        before = kept[0].clone()
        loader.set_epoch(0)
        same(list(loader), list(Loader(data, 8, num_workers=0, **SEED)))
        assert torch.equal(kept[0], before)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_memory_that_cannot_be_pinned_is_a_warning(
    kind: str, how: dict[str, Any], data: LMDBDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Accelerator(monkeypatch, kind)
    device.refuses = 2
    with Loader(data, 8, device=kind, **SEED, **how) as loader:
        with pytest.warns(PresizeWarning, match="cannot pin .* raise ulimit -l"):
            found = list(loader)
        found += list(loader)  # does not warn again
    assert len(found) == 14 and device.copies == 0 and device.problems == []
    same(found[:7], list(Loader(data, 8, num_workers=0, **SEED)))


def test_an_epoch_follows_one_whose_copy_failed(how: dict[str, Any], cuda: Accelerator, data: LMDBDataset) -> None:
    with Loader(data, 8, device="cuda", **SEED, **how) as loader:
        batches = iter(loader)
        next(batches)
        cuda.out_of_memory_in = 3
        with pytest.raises(torch.OutOfMemoryError):
            list(batches)
        cuda.out_of_memory_in = None
        del batches
        loader.set_epoch(0)
        same(list(loader), list(Loader(data, 8, num_workers=0, **SEED)))
    assert cuda.problems == []


def test_two_loaders_take_turns(how: dict[str, Any], cuda: Accelerator, data: LMDBDataset) -> None:
    how = {"device": "cuda", **SEED, **how}
    with Loader(data, 8, **how) as one, Loader(data, 8, **how) as other:
        both = [batch for batches in zip(one, other, strict=True) for batch in batches]
    want = list(Loader(data, 8, num_workers=0, **SEED))
    same(both[::2], want)
    same(both[1::2], want)
    assert cuda.problems == []


@pytest.mark.parametrize(("kind", "pins"), [("cuda", True), ("xpu", True), ("mps", False), (None, False)])
def test_make_loader_pins_for_devices_that_copy_from_pinned_memory(
    kind: str | None, pins: bool, data: LMDBDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is not None:
        Accelerator(monkeypatch, kind)
    elif torch.accelerator.is_available():
        pytest.skip("on a machine without an accelerator")
    assert make_loader(data, 8).pin_memory is pins


@pytest.mark.parametrize("device", ["cuda:3", "xpu", "mps", "hpu", "xla", "nowhere"])
@pytest.mark.usefixtures("cuda")
def test_a_missing_device_is_refused_in_one_line(device: str, data: LMDBDataset) -> None:
    with pytest.raises(OptionError, match=r"^device: [^\n]*got '[^\n]*$"):
        Loader(data, 8, device=device)


@pytest.fixture
def default_device() -> Iterator[None]:
    """Set torch's default device to "meta", whose values cannot be read."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def of_numbers(image: Any) -> Any:
    return {"pixels": np.asarray(image)[::3], "mean": float(np.asarray(image).mean())}


READERS: dict[str, Callable[[LMDBDataset, dict[str, Any]], Any]] = {
    "a sample": lambda data, _: [data[0]],
    "a list of samples": lambda data, _: data.__getitems__([0, 1]),
    "Loader": lambda data, how: list(Loader(data, 8, **SEED, **how)),
    "Loader normalized": lambda data, how: list(Loader(data, 8, normalize=NORMALIZE, **SEED, **how)),
    "Loader with a transform": lambda data, how: list(Loader(data, 8, transform=of_numbers, **SEED, **how)),
    "make_loader": lambda data, how: list(make_loader(data, 8, **SEED, **how)),
}


@pytest.mark.parametrize("read", READERS.values(), ids=list(READERS))
def test_batches_are_in_memory_for_any_default_device_of_torch(
    read: Callable[..., Any], how: dict[str, Any], objects: Path, request: pytest.FixtureRequest
) -> None:
    data = LMDBDataset(objects, crop=CenterCrop(24), decode="tensor", **OBJECTS)
    want = read(data, how)
    request.getfixturevalue("default_device")
    found = read(data, how)
    torch.set_default_device(None)
    same(found, want)
    assert {tensor.device.type for tensor in transfer.tensors_of(found)} == {"cpu"}
