"""Slots of shared memory that a Loader's workers fill with batches, and which of them are free."""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections import deque
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt

from presize.errors import LoaderError
from presize.formatting import size_text
from presize.system.files import anonymous_file
from presize.system.resources import available_memory

HELD_BY_CALLER = 2
"""Slots beside those being filled: for the current batch, and for the one before it."""


class SharedSlots:
    """`count` slots of `shape`, uint8, in anonymous memory that child processes share.

    The memory has no name: it is freed when its last process ends, however that happens.

    Raises:
        LoaderError: the machine has less memory available, so that the OOM killer would strike.
    """

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.count = count
        nbytes = math.prod(shape)
        self._stride = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        available = available_memory()
        if self._stride * count > available:
            raise LoaderError(
                f"{count} batches of {size_text(nbytes)} need more than the {size_text(available)} of memory that are "
                "available; choose a smaller batch_size, fewer workers or less prefetch"
            )
        self._fd = anonymous_file("presize-loader")
        os.ftruncate(self._fd, self._stride * count)
        self._map()
        weakref.finalize(self, os.close, self._fd)

    def _map(self) -> None:
        self.memory = np.frombuffer(mmap.mmap(self._fd, self._stride * self.count), np.uint8)

    def __getitem__(self, slot: int) -> npt.NDArray[np.uint8]:
        """A new array over the memory of one slot."""
        return np.ndarray(self.shape, np.uint8, self.memory, slot * self._stride)

    def __getstate__(self) -> dict[str, Any]:
        """For a child that is being spawned; memory without a name can be passed on in no other way."""
        return {"shape": self.shape, "count": self.count, "_stride": self._stride, "fd": DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fd = state.pop("fd").detach()
        vars(self).update(state)
        self._map()


class FreeSlots:
    """Which slots are free. A slot is free again when the last reference to its batch is gone."""

    def __init__(self, shared: SharedSlots) -> None:
        self.shared = shared
        self.free = deque(range(shared.count))  # appended to by finalizers, in whichever thread they run

    def hand_over(self, slot: int, samples: int, busy: int) -> npt.NDArray[np.uint8]:
        """The first `samples` rows of `slot`, for the caller to keep.

        A copy when the caller holds so many batches that the workers, which have `busy` slots, would run out.
        """
        rows = self.shared[slot][:samples]
        if self.shared.count - len(self.free) - busy > HELD_BY_CALLER:
            copy = rows.copy()
            self.free.append(slot)
            return copy
        weakref.finalize(rows, self.free.append, slot).atexit = False
        return rows
