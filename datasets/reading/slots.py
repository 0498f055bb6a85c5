"""Slots of shared memory that a Loader's workers fill with batches, and which of them are free."""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt

from presize.errors import LoaderError
from presize.formatting import size_text
from presize.system.files import anonymous_file
from presize.system.resources import read_memory

HELD_BY_CALLER = 4
"""Slots beside those being filled: for the current batch, the one before it, and two that the caller may keep, say to
show them."""

Shape = tuple[int, ...]

_ALIGNED = 64
"""Arrays that share memory begin at multiples of a cache line."""


def packed_bytes(shapes: Sequence[Shape]) -> int:
    """The bytes of arrays_over(shapes)."""
    return sum(-(-math.prod(shape) // _ALIGNED) * _ALIGNED for shape in shapes)


def arrays_over(memory: Any, shapes: Sequence[Shape], offset: int = 0) -> list[npt.NDArray[np.uint8]]:
    """New uint8 arrays of `shapes`, one after another in `memory`, a buffer, from `offset` on."""
    arrays = []
    for shape in shapes:
        arrays.append(np.ndarray(shape, np.uint8, memory, offset))
        offset += packed_bytes([shape])
    return arrays


def when_released(objects: Sequence[object], callback: Callable[..., object], *arguments: object) -> None:
    """Call `callback` when nothing refers to any of `objects` any more, in whichever thread that happens."""
    others = [None] * (len(objects) - 1)
    for one in objects:
        weakref.finalize(one, _released, others, callback, arguments).atexit = False


def _released(others: list[None], callback: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        others.pop()  # atomic, as a counter would not be
    except IndexError:
        callback(*arguments)


class SharedSlots:
    """`count` slots in anonymous memory that child processes share. A slot is a uint8 array of each of `shapes`.

    The memory has no name: it is freed when its last process ends, however that happens.
    """

    is_pinned = False
    """True once Transfer.pin has registered the memory with a device of this process."""

    def __init__(self, count: int, shapes: Sequence[Shape]) -> None:
        self.shapes = list(shapes)
        self.count = count
        nbytes = packed_bytes(shapes)
        self._stride = max(-(-nbytes // mmap.PAGESIZE), 1) * mmap.PAGESIZE
        available = read_memory().available
        if self._stride * count > available:
            raise LoaderError(
                f"{count} batches of {size_text(nbytes)} need more than the {size_text(available)} of memory that are "
                "available; choose a smaller batch_size, num_workers or prefetch_factor"
            )
        self._fd = anonymous_file("presize-loader")
        weakref.finalize(self, os.close, self._fd)
        os.ftruncate(self._fd, self._stride * count)
        self._map()

    def _map(self) -> None:
        self.memory = np.frombuffer(mmap.mmap(self._fd, self._stride * self.count), np.uint8)

    def __getitem__(self, slot: int) -> list[npt.NDArray[np.uint8]]:
        """New arrays over the memory of one slot."""
        return arrays_over(self.memory, self.shapes, slot * self._stride)

    def __getstate__(self) -> dict[str, Any]:
        """For a child that is being spawned; memory without a name can be passed on in no other way."""
        return {"shapes": self.shapes, "count": self.count, "_stride": self._stride, "fd": DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fd = state.pop("fd").detach()
        vars(self).update(state)
        self._map()


class FreeSlots:
    """Which slots are free. A slot is free again when the last reference to its batch is gone. The one that was freed
    last is taken first, so those that nobody needs never become resident."""

    def __init__(self, shared: SharedSlots) -> None:
        self.shared = shared
        self.free = deque(range(shared.count))  # appended to by finalizers, in whichever thread they run
        self._taken: set[int] = set()  # being filled, or waiting to be handed over

    def can_take(self) -> bool:
        """Return True if a slot is free beside those that the caller holds."""
        return bool(self.free) and len(self._taken) <= self.shared.count - HELD_BY_CALLER  # one is about to be its

    def take(self) -> int:
        """A free slot, to be filled and handed over."""
        slot = self.free.pop()
        self._taken.add(slot)
        return slot

    def take_back(self) -> None:
        """Free the slots that were taken and not handed over, when nobody fills them any more."""
        self.free.extend(self._taken)
        self._taken.clear()

    def hand_over(self, slot: int, samples: int) -> list[npt.NDArray[np.uint8]]:
        """The first `samples` rows of each array of `slot`, for the caller to keep: copies when it holds so many
        batches that the workers would run out of slots."""
        self._taken.remove(slot)
        rows = [array[:samples] for array in self.shared[slot]]
        if self.shared.count - len(self.free) - len(self._taken) > HELD_BY_CALLER:
            copies = [array.copy() for array in rows]
            self.free.append(slot)
            return copies
        when_released(rows, self.free.append, slot)
        return rows
