"""Slots of shared memory: which are free, and when a caller gets a copy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from presize.datasets.reading.memory import HELD_BY_CALLER, FreeSlots, SharedSlots

SHAPE = (3, 4, 5, 3)
"""A batch of three images."""


@pytest.fixture
def slots() -> FreeSlots:
    """Two slots for workers, and those for the caller."""
    return FreeSlots(SharedSlots(2 + HELD_BY_CALLER, [SHAPE]))


def filled(slots: FreeSlots, value: int) -> list[np.ndarray]:
    """A batch of `value`, handed over while a worker fills another."""
    slot, _ = slots.take(), slots.take()
    slots.shared[slot][0][:] = value
    batch = slots.hand_over(slot, 3)
    slots.take_back()
    return batch


def shares_memory(slots: FreeSlots, batch: list[np.ndarray]) -> bool:
    return np.shares_memory(batch[0], slots.shared.memory)


def test_a_caller_that_holds_many_gets_copies_which_stay_what_they_are(slots: FreeSlots) -> None:
    held = [filled(slots, value) for value in range(20)]
    assert [shares_memory(slots, batch) for batch in held] == [True] * HELD_BY_CALLER + [False] * (20 - HELD_BY_CALLER)
    assert all((batch[0] == value).all() for value, batch in enumerate(held))


def test_batches_that_are_let_go_of_are_no_reason_for_copies(slots: FreeSlots) -> None:
    held = [filled(slots, value) for value in range(20)]
    del held[1:]
    assert all(shares_memory(slots, filled(slots, 20 + number)) for number in range(20))


def test_only_slots_that_are_needed_are_ever_written_to(slots: FreeSlots) -> None:
    before: list[np.ndarray] = []
    for _ in range(20):
        before = filled(slots, 1)  # held while the next one is filled
    assert len(before) == 1
    written = [slot for slot in range(slots.shared.count) if slots.shared[slot][0].any()]
    assert len(written) <= 3  # of these two, and of the worker


def test_the_slots_of_the_caller_are_not_filled_ahead(slots: FreeSlots) -> None:
    busy = []
    while slots.can_take():
        busy.append(slots.take())
    assert len(busy) == 3  # two that workers fill, and one that is due
    assert len(slots.free) == HELD_BY_CALLER - 1


def test_an_image_of_a_batch_keeps_its_slot(slots: FreeSlots) -> None:
    image = torch.from_numpy(filled(slots, 7)[0])[1]
    for value in range(20):
        filled(slots, value)
    assert (image == 7).all()
