"""Batches that torch's own collate passes on as they are."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch.utils.data import default_collate

from presize.datasets.reading import shared_batches
from presize.datasets.reading.shared_batches import shared_batch
from presize.datasets.reading.whole_batches import rows_of, values_batch

BATCH = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)


@pytest.fixture(autouse=True)
def _no_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_batches, "_pieces", [])


def received(batch: torch.Tensor) -> torch.Tensor:
    copy: torch.Tensor = ForkingPickler.loads(ForkingPickler.dumps(batch))
    return copy


def test_all_rows_of_a_batch_in_their_order_are_collated_to_the_batch_itself() -> None:
    images, labels = default_collate([(image, 1) for image in rows_of(BATCH)])
    assert images is BATCH and labels.tolist() == [1, 1]
    assert default_collate(rows_of(BATCH)) is BATCH


def test_other_rows_are_stacked_as_they_are() -> None:
    first, second = rows_of(BATCH)
    for rows in ([second, first], [first], [first, first], [first, rows_of(BATCH.clone())[1]], [first, second, first]):
        stacked = default_collate(rows)
        assert type(stacked) is torch.Tensor and torch.equal(stacked, torch.stack([row + 0 for row in rows]))


def test_what_is_made_of_a_row_is_a_plain_tensor() -> None:
    row = rows_of(BATCH)[1]
    for made in (row + 1, row.clone(), row[0], row.flip(1), received(row)):
        assert type(made) is torch.Tensor
    assert torch.equal(received(row), BATCH[1])


def test_numbers_over_shared_memory_arrive_without_a_copy() -> None:
    pixels, rows = shared_batch((2, 4, 5, 3 * 4))
    values = values_batch(rows, torch.float32)
    values.copy_(BATCH)
    arrived = received(values)
    assert type(arrived) is torch.Tensor and arrived.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(arrived, BATCH)
    pixels[...] = 0
    assert (arrived == 0).all()


def test_numbers_that_are_sent_twice_arrive_twice() -> None:
    _, rows = shared_batch((2, 4, 5, 3 * 4))
    values = values_batch(rows, torch.float32)
    values.copy_(BATCH)
    assert all(torch.equal(received(values), BATCH) for _ in range(2))


def test_numbers_over_memory_that_is_not_shared_are_a_plain_tensor() -> None:
    rows = torch.zeros(2, 4, 5, 3 * 4, dtype=torch.uint8).permute(0, 3, 1, 2)
    assert type(values_batch(rows, torch.float32)) is torch.Tensor
