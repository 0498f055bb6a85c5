"""Shared memory for batches on their way from a DataLoader's worker, reused as soon as both sides have released it.

New shared memory is expensive, since the kernel clears every page: 17 ms for a batch of 19 MB that takes 50 ms to read
(2026-11-21, AMD EPYC). So a worker keeps a few pieces; a byte at the end of each says whether the process it was sent
to still uses it. The memory has no name and is not in /dev/shm.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import reduce_tensor

from presize.datasets.reading.slots import Shape, arrays_over, packed_bytes, when_released
from presize.system.files import anonymous_file

_KEPT = 8
"""Pieces that a worker keeps: prefetch_factor (2 by default), those that the consumer holds, and some to spare."""


def as_images(batches: Sequence[npt.NDArray[np.uint8]]) -> tuple[torch.Tensor, ...]:
    """uint8 (B, height, width, channels) -> tensors (B, channels, height, width) over the same memory."""
    return tuple(torch.from_numpy(batch).permute(0, 3, 1, 2) for batch in batches)


class SharedBatch(torch.Tensor):
    """In a worker, a batch that is sent without a copy. It arrives as a plain tensor, and results computed from it are
    plain tensors, too."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    piece: _Piece | None = None


class SharedBatches(tuple[torch.Tensor, ...]):
    """In a worker, the batches of several views in one piece of memory, sent together without a copy. They arrive as a
    plain tuple."""

    piece: _Piece | None = None


def shared_batch(shape: Shape) -> tuple[npt.NDArray[np.uint8], SharedBatch]:
    """Uninitialised pixels of `shape` (B, height, width, channels), and the same memory as a tensor (B, channels,
    height, width) to be sent to another process, once. For one thread in each process."""
    (pixels,), piece = _lend([shape])
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).as_subclass(SharedBatch)
    batch.piece = piece
    return pixels, batch


def shared_batches(shapes: Sequence[Shape]) -> tuple[list[npt.NDArray[np.uint8]], tuple[torch.Tensor, ...]]:
    """As shared_batch for each of `shapes`. Several must be sent together."""
    if len(shapes) == 1:
        pixels, batch = shared_batch(shapes[0])
        return [pixels], (batch,)
    arrays, piece = _lend(shapes)
    batches = SharedBatches(as_images(arrays))
    batches.piece = piece
    return arrays, batches


def _lend(shapes: Sequence[Shape]) -> tuple[list[npt.NDArray[np.uint8]], _Piece]:
    nbytes = packed_bytes(shapes)
    piece = next((piece for piece in _pieces if piece.nbytes >= nbytes and piece.is_free()), None)
    if piece is None:
        piece = _Piece(nbytes)
        _pieces.append(piece)
        del _pieces[:-_KEPT]  # one in use lives until it is released
    arrays = arrays_over(piece.memory, shapes)
    piece.lent = True
    when_released(arrays, piece.come_back)
    return arrays, piece


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
    piece, batch.piece = batch.piece, None  # the byte serves one receiver: a batch that is sent again is copied
    if piece is None:
        return reduce_tensor(batch.as_subclass(torch.Tensor))  # type: ignore[no-untyped-call]
    piece.memory[piece.nbytes] = 1
    return _receive, (DupFd(piece.fd), piece.nbytes, [_shape(batch)])


def _reduce_all(batches: SharedBatches) -> Any:
    piece, batches.piece = batches.piece, None
    if piece is None:
        return tuple, (list(batches),)
    piece.memory[piece.nbytes] = 1
    return _receive_all, (DupFd(piece.fd), piece.nbytes, [_shape(batch) for batch in batches])


ForkingPickler.register(SharedBatch, _reduce)
ForkingPickler.register(SharedBatches, _reduce_all)


def _shape(batch: torch.Tensor) -> Shape:
    count, channels, height, width = batch.shape
    return count, height, width, channels


def _receive(duplicate: Any, nbytes: int, shapes: Sequence[Shape]) -> torch.Tensor:
    return _receive_all(duplicate, nbytes, shapes)[0]


def _receive_all(duplicate: Any, nbytes: int, shapes: Sequence[Shape]) -> tuple[torch.Tensor, ...]:
    fd = duplicate.detach()
    try:
        memory = mmap.mmap(fd, nbytes + 1)
    finally:
        os.close(fd)
    arrays = arrays_over(memory, shapes)
    when_released(arrays, _give_back, os.getpid(), memory, nbytes)
    return as_images(arrays)


def _give_back(owner: int, memory: mmap.mmap, nbytes: int) -> None:
    if os.getpid() == owner:  # in a forked child the parent still uses it
        memory[nbytes] = 0
