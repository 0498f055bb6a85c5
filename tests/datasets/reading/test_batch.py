"""Shared memory of batches: a batch never changes while someone holds it, and memory is reused afterwards."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from presize.datasets.reading.memory import BatchMemory, TensorFormat, new_batch, rows_of

FORMAT = TensorFormat((3, 4, 5), channels_last=True)
FORMATS = {
    "uint8": FORMAT,
    "uint16": TensorFormat((3, 4, 5), torch.uint16, channels_last=True),
    "float32": TensorFormat((3, 4, 5), torch.float32, channels_last=True),
    "bfloat16": TensorFormat((1, 4, 5), torch.bfloat16, channels_last=True),
    "mask": TensorFormat((4, 5)),
    "mask of 16 bits": TensorFormat((4, 5), torch.uint16),
    "array of one axis": TensorFormat((7,), torch.float64),
}
BATCH = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)


@pytest.fixture
def memory() -> BatchMemory:
    return BatchMemory()


def received(sent: Any) -> Any:
    """Return what another process would receive, through the same pipes in this process."""
    return ForkingPickler.loads(ForkingPickler.dumps(sent))


def filled(memory: BatchMemory, value: int, samples: int = 3, views: int = 1) -> tuple[torch.Tensor, ...]:
    arrays, tensors = memory.batch([FORMAT] * views, samples)
    for number, rows in enumerate(arrays):
        rows[...] = value + number
    return tensors


@pytest.mark.parametrize("format", FORMATS.values(), ids=list(FORMATS))
def test_a_batch_arrives_as_a_plain_tensor_over_the_same_memory(format: TensorFormat, memory: BatchMemory) -> None:
    (rows,), (tensor,) = memory.batch([format], 3)
    rows[...] = 1
    expected = tensor.clone()
    assert tensor.shape == (3, *format.shape)
    arrived = received(tensor)
    assert type(arrived) is torch.Tensor and arrived.dtype == format.dtype
    assert arrived.stride() == tensor.stride() and torch.equal(arrived, expected)
    assert not format.channels_last or arrived.is_contiguous(memory_format=torch.channels_last)
    rows[...] = 2
    assert not torch.equal(arrived, expected)
    assert new_batch([format], 3)[1][0].shape == tensor.shape


def test_memory_is_reused_when_both_sides_have_released_it(memory: BatchMemory) -> None:
    (batch,) = filled(memory, 1)
    address, arrived = batch.data_ptr(), received(batch)
    del batch
    (while_received,) = filled(memory, 2)
    assert while_received.data_ptr() != address and (arrived == 1).all()
    del arrived
    assert filled(memory, 3)[0].data_ptr() == address


def test_memory_is_not_reused_while_the_sender_still_reads_it(memory: BatchMemory) -> None:
    view = filled(memory, 1)[0][0]
    assert (filled(memory, 2)[0] == 2).all() and (view == 1).all()
    (batch,) = filled(memory, 3)
    arrived = received(batch)
    del arrived
    assert (filled(memory, 4)[0] == 4).all() and (batch == 3).all()


def test_each_received_view_keeps_its_memory(memory: BatchMemory) -> None:
    sent = filled(memory, 10, views=3)
    addresses = {view.data_ptr() for view in sent}
    kept = received(sent)[2][1]
    del sent
    for value in range(20, 30):
        views = filled(memory, value, views=3)
        assert not addresses & {view.data_ptr() for view in views}
        received(views)
    assert (kept == 12).all()


@pytest.mark.parametrize("views", [1, 3])
def test_a_batch_that_is_sent_repeatedly_stays_unchanged(views: int, memory: BatchMemory) -> None:
    batch = filled(memory, 1, views=views)
    arrived = [received(batch), received(batch)]
    assert all((view == 1 + number).all() for copy in arrived for number, view in enumerate(copy))
    second = arrived.pop()
    del arrived
    others = [filled(memory, 9, views=views) for _ in range(3)]  # perhaps in the memory that the first one released
    for each in (second, received(batch)):
        assert all((view == 1 + number).all() for number, view in enumerate(each)) and len(others) == 3


def test_results_computed_from_a_batch_are_plain_tensors_that_can_be_sent(memory: BatchMemory) -> None:
    (batch,) = filled(memory, 5)
    for computed in (batch + 1, batch.float(), batch[:2], batch.clone()):
        assert type(computed) is torch.Tensor
        assert torch.equal(received(computed), computed)


def test_few_pieces_are_kept_for_any_number_of_held_batches(memory: BatchMemory) -> None:
    files = len(os.listdir("/proc/self/fd"))
    held = [received(filled(memory, value))[0] for value in range(30)]
    assert all((batch == value).all() for value, batch in enumerate(held))
    del held
    for value in range(30):
        received(filled(memory, value))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files + 2 * 8 + 1  # two per piece, and one of the object that sends them


def test_all_rows_of_a_batch_in_their_order_are_collated_to_the_batch_itself() -> None:
    images, labels = default_collate([(image, 1) for image in rows_of(BATCH)])
    assert images is BATCH and labels.tolist() == [1, 1]
    assert default_collate(rows_of(BATCH)) is BATCH


def test_other_rows_are_stacked_unchanged() -> None:
    first, second = rows_of(BATCH)
    for rows in ([second, first], [first], [first, first], [first, rows_of(BATCH.clone())[1]], [first, second, first]):
        stacked = default_collate(rows)
        assert type(stacked) is torch.Tensor and torch.equal(stacked, torch.stack([row + 0 for row in rows]))


def test_results_computed_from_a_row_are_plain_tensors() -> None:
    row = rows_of(BATCH)[1]
    for made in (row + 1, row.clone(), row[0], row.flip(1), received(row)):
        assert type(made) is torch.Tensor
    assert torch.equal(received(row), BATCH[1])


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda row: pickle.loads(pickle.dumps(row))])
def test_a_copy_of_a_row_is_a_plain_tensor_without_its_batch(copied: Callable[[torch.Tensor], torch.Tensor]) -> None:
    row = copied(rows_of(BATCH.clone())[1])
    assert type(row) is torch.Tensor and torch.equal(row, BATCH[1])
    assert row.untyped_storage().nbytes() == BATCH[1].nbytes
