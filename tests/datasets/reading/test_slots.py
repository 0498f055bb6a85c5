"""Slots of shared memory: free slots, and copies for the caller."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from presize.datasets.reading.memory import HELD_BY_CALLER, FreeSlots, SharedSlots

SHAPE = (3, 4, 5, 3)
"""A batch of three images."""


@pytest.fixture
def slots() -> FreeSlots:
    """Return two slots for workers, and the caller's slots."""
    return FreeSlots(SharedSlots(2 + HELD_BY_CALLER, [SHAPE]))


def filled(slots: FreeSlots, value: int) -> list[np.ndarray]:
    """Hand over a batch of `value` while a worker fills another slot."""
    slot, _ = slots.take(), slots.take()
    slots.shared[slot][0][:] = value
    batch = slots.hand_over(slot, 3)
    slots.take_back()
    return batch


def shares_memory(slots: FreeSlots, batch: list[np.ndarray]) -> bool:
    return np.shares_memory(batch[0], slots.shared.memory)


def test_a_caller_that_holds_many_gets_copies_that_stay_unchanged(slots: FreeSlots) -> None:
    held = [filled(slots, value) for value in range(20)]
    assert [shares_memory(slots, batch) for batch in held] == [True] * HELD_BY_CALLER + [False] * (20 - HELD_BY_CALLER)
    assert all((batch[0] == value).all() for value, batch in enumerate(held))


def test_released_batches_cause_no_copies(slots: FreeSlots) -> None:
    held = [filled(slots, value) for value in range(20)]
    del held[1:]
    assert all(shares_memory(slots, filled(slots, 20 + number)) for number in range(20))


def test_only_needed_slots_are_ever_written(slots: FreeSlots) -> None:
    before: list[np.ndarray] = []
    for _ in range(20):
        before = filled(slots, 1)  # held while the next one is filled
    assert len(before) == 1
    written = [slot for slot in range(slots.shared.count) if slots.shared[slot][0].any()]
    assert len(written) <= 3  # these two, and the worker's


def test_the_slots_of_the_caller_are_not_filled_ahead(slots: FreeSlots) -> None:
    busy = []
    while slots.can_take():
        busy.append(slots.take())
    assert len(busy) == 3  # two that workers fill, and the next one due
    assert len(slots.free) == HELD_BY_CALLER - 1


def test_an_image_of_a_batch_keeps_its_slot(slots: FreeSlots) -> None:
    image = torch.from_numpy(filled(slots, 7)[0])[1]
    for value in range(20):
        filled(slots, value)
    assert (image == 7).all()
