"""Memory that batches travel in: nobody's batch changes under him, and it is used again."""

from __future__ import annotations

import gc
import os
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch

from builds import SERIAL, SMALL
from presize.builder.run import build_dataset
from presize.datasets import LMDBDataset, RandomResizedCrop, make_loader
from presize.datasets.reading import shared_batches
from presize.datasets.reading.shared_batches import SharedBatch, shared_batch
from presize.datasets.reading.shared_batches import shared_batches as shared_batches_of
from presize.sources.sample import SampleOptions, make_samples

SHAPE = (3, 4, 5, 3)


@pytest.fixture(autouse=True)
def _no_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_batches, "_pieces", [])


def received(batch: torch.Tensor) -> torch.Tensor:
    """What another process would get; here it is this one, through the same pipes."""
    copy: torch.Tensor = ForkingPickler.loads(ForkingPickler.dumps(batch))
    return copy


def filled(value: int, shape: tuple[int, int, int, int] = SHAPE) -> SharedBatch:
    pixels, batch = shared_batch(shape)
    pixels[...] = value
    return batch


def test_a_batch_arrives_as_a_plain_tensor_over_the_same_memory() -> None:
    pixels, batch = shared_batch(SHAPE)
    pixels[...] = np.arange(pixels.size, dtype=np.uint8).reshape(SHAPE)
    arrived = received(batch)
    assert type(arrived) is torch.Tensor
    assert arrived.shape == (3, 3, 4, 5) and arrived.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(arrived.permute(0, 2, 3, 1).numpy(), pixels)
    pixels[0, 0, 0, 0] = 77
    assert arrived[0, 0, 0, 0] == 77


def test_memory_is_used_again_when_both_sides_have_let_go_of_it() -> None:
    batch = filled(1)
    address, arrived = batch.data_ptr(), received(batch)
    del batch
    while_received = filled(2)
    assert while_received.data_ptr() != address and (arrived == 1).all()
    del arrived
    assert filled(3).data_ptr() == address


def test_memory_is_not_used_again_while_the_sender_still_reads_it() -> None:
    view = filled(1)[0]
    assert (filled(2) == 2).all() and (view == 1).all()
    batch = filled(3)
    arrived = received(batch)
    del arrived
    assert (filled(4) == 4).all() and (batch == 3).all()


def test_a_view_of_what_was_received_keeps_all_of_it() -> None:
    image = received(filled(1))[1]
    for value in range(2, 12):
        received(filled(value))
    assert (image == 1).all()


def test_a_batch_that_is_sent_twice_arrives_twice() -> None:
    batch = filled(5)
    first, second = received(batch), received(batch)
    del first
    del batch
    filled(6)
    assert (second == 5).all()


def test_what_is_computed_from_a_batch_is_a_plain_tensor_that_can_be_sent() -> None:
    batch = filled(5)
    for computed in (batch + 1, batch.float(), batch[:2], batch.clone()):
        assert type(computed) is torch.Tensor
        assert torch.equal(received(computed), computed)


def test_a_smaller_batch_fits_into_the_memory_of_a_larger_one_and_not_the_other_way() -> None:
    address = filled(1).data_ptr()
    small = filled(2, (1, 4, 5, 3))
    assert small.data_ptr() == address and received(small).shape == (1, 3, 4, 5)
    del small
    large = filled(3, (9, 4, 5, 3))
    assert received(large).shape == (9, 3, 4, 5) and (large == 3).all()


def test_a_batch_that_is_sent_again_and_again_stays_what_it_is() -> None:
    batch = filled(1)
    arrived = [received(batch), received(batch)]
    assert all((copy == 1).all() for copy in arrived)
    del arrived
    others = [filled(9) for _ in range(3)]  # which may be in the memory that the first one has given back
    assert (received(batch) == 1).all() and len(others) == 3


def test_views_that_are_sent_again_and_again_stay_what_they_are() -> None:
    arrays, views = shared_batches_of([SHAPE, SHAPE])
    for value, pixels in enumerate(arrays):
        pixels[...] = value
    arrived = [ForkingPickler.loads(ForkingPickler.dumps(views)) for _ in range(2)]
    del arrived, pixels, arrays
    others = [filled(9, (6, *SHAPE[1:])) for _ in range(3)]
    first, second = ForkingPickler.loads(ForkingPickler.dumps(views))
    assert (first == 0).all() and (second == 1).all() and len(others) == 3


def test_few_pieces_are_kept_however_many_batches_are_held() -> None:
    held = [received(filled(value)) for value in range(30)]
    assert all((batch == value).all() for value, batch in enumerate(held))
    assert len(shared_batches._pieces) <= 8
    files = len(os.listdir("/proc/self/fd"))
    del held
    for value in range(30):
        received(filled(value))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files


@pytest.mark.parametrize(
    "context", ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))]
)
@pytest.mark.parametrize("keep", [True, False], ids=["all kept", "none kept"])
def test_batches_from_workers_are_those_read_without(keep: bool, context: str, tmp_path: Path) -> None:
    make_samples(tmp_path / "raw", SampleOptions(images=40, classes=2, long_side=90))
    build_dataset(tmp_path / "raw", tmp_path / "out", SMALL, SERIAL)
    dataset = LMDBDataset(tmp_path / "out", decode="tensor", crop=RandomResizedCrop(32), flip=0.5)
    expected = [images.clone() for images, _ in make_loader(dataset, 3, shuffle=True, seed=0, workers=0)]
    loader = make_loader(dataset, 3, shuffle=True, seed=0, workers=2, multiprocessing_context=context)
    batches = (images if keep else images.clone() for images, _ in loader)
    assert all(torch.equal(*pair) for pair in zip(list(batches), expected, strict=True))
