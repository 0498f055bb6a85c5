"""Shared memory for batches on their way from a DataLoader's worker, reused as soon as both sides have released it.

New shared memory is expensive, since the kernel clears every page: 17 ms for a batch of 19 MB that takes 50 ms to read
(2026-11-21, AMD EPYC). So a worker keeps a few pieces; a byte at the end of each says whether the process it was sent
to still uses it. The memory has no name and is not in /dev/shm.
"""

from __future__ import annotations

import mmap
import os
import weakref
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import reduce_tensor

from presize.system.files import anonymous_file

_KEPT = 8
"""Pieces that a worker keeps: prefetch_factor (2 by default), those that the consumer holds, and some to spare."""


class SharedBatch(torch.Tensor):
    """In a worker, a batch that is sent without a copy. It arrives as a plain tensor, and results computed from it are
    plain tensors, too."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    piece: _Piece | None = None


def shared_batch(shape: tuple[int, int, int, int]) -> tuple[npt.NDArray[np.uint8], SharedBatch]:
    """Uninitialised pixels of `shape` (B, height, width, channels), and the same memory as a tensor (B, channels,
    height, width) to be sent to another process, once. For one thread in each process."""
    nbytes = int(np.prod(shape))
    piece = next((piece for piece in _pieces if piece.nbytes >= nbytes and piece.is_free()), None)
    if piece is None:
        piece = _Piece(nbytes)
        _pieces.append(piece)
        del _pieces[:-_KEPT]  # one in use lives until it is released
    pixels = np.ndarray(shape, np.uint8, piece.memory)
    piece.lent = True
    weakref.finalize(pixels, piece.come_back).atexit = False
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).as_subclass(SharedBatch)
    batch.piece = piece
    return pixels, batch


class _Piece:
    """Anonymous memory of `nbytes`, and a byte after it that is 1 while another process uses it."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.fd = anonymous_file("presize-loader")
        weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, nbytes + 1)
        self.memory = mmap.mmap(self.fd, nbytes + 1)
        self.lent = False  # to this process

    def is_free(self) -> bool:
        return not self.lent and not self.memory[self.nbytes]

    def come_back(self) -> None:
        self.lent = False


_pieces: list[_Piece] = []
"""Those of this process, the oldest first."""


def _reduce(batch: SharedBatch) -> Any:
    piece = batch.piece
    if piece is None or piece.memory[piece.nbytes]:  # or sent before: the byte serves one receiver
        return reduce_tensor(batch.as_subclass(torch.Tensor))  # type: ignore[no-untyped-call]
    piece.memory[piece.nbytes] = 1
    count, channels, height, width = batch.shape
    return _receive, (DupFd(piece.fd), piece.nbytes, (count, height, width, channels))


ForkingPickler.register(SharedBatch, _reduce)


def _receive(duplicate: Any, nbytes: int, shape: tuple[int, int, int, int]) -> torch.Tensor:
    fd = duplicate.detach()
    try:
        memory = mmap.mmap(fd, nbytes + 1)
    finally:
        os.close(fd)
    pixels = np.ndarray(shape, np.uint8, memory)
    weakref.finalize(pixels, _give_back, os.getpid(), memory, nbytes).atexit = False
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def _give_back(owner: int, memory: mmap.mmap, nbytes: int) -> None:
    if os.getpid() == owner:  # in a forked child the parent still uses it
        memory[nbytes] = 0
