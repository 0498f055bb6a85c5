"""A batch: the images of many samples in one piece of memory, which a DataLoader's worker shares with its consumer.

Copying a batch of 128 float images in a worker, into new shared memory, takes longer than reading it. New shared memory
is expensive, too, since the kernel clears every page: 17 ms for a batch of 19 MB that takes 50 ms to read (2026-11-21,
AMD EPYC). So a worker keeps a few pieces of memory; bytes at the end of each say whether the process it was sent to
still uses it. The memory has no name and is not in /dev/shm.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data
from torch.multiprocessing.reductions import reduce_storage, reduce_tensor
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from presize.datasets.reading.slots import arrays_over, packed_bytes, when_released
from presize.system.files import anonymous_file

_KEPT = 8
"""Pieces that a worker keeps: prefetch_factor (2 by default), those that the consumer holds, and some to spare."""

Rows = npt.NDArray[np.uint8]
Batch = tuple[list[Rows], tuple[torch.Tensor, ...]]
"""For each format uint8 (B, *row_shape), to be filled, and the same memory as tensors."""


class TensorFormat(NamedTuple):
    """The form of one tensor of each sample: its shape, and the type of its numbers.

    With `channels_last` an image (channels, height, width) lies in memory as (height, width, channels).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.uint8
    channels_last: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorFormat:
        channels_last = tensor.ndim == 3 and not tensor.is_contiguous() and tensor.permute(1, 2, 0).is_contiguous()
        return cls(tuple(tensor.shape), tensor.dtype, channels_last)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a tensor as bytes, in their order in memory."""
        *outer, inner = (*self.shape[1:], self.shape[0]) if self.channels_last else self.shape or (1,)
        return *outer, inner * self.dtype.itemsize

    def tensor(self, rows: Rows) -> torch.Tensor:
        """Return `rows`, (B, *row_shape), as a tensor (B, *shape) over the same memory."""
        values = torch.from_numpy(rows).view(self.dtype)
        return values.permute(0, 3, 1, 2) if self.channels_last else values.reshape(len(rows), *self.shape)


def tensors_over(formats: Sequence[TensorFormat], rows: Sequence[Rows]) -> tuple[torch.Tensor, ...]:
    return tuple(format.tensor(array) for format, array in zip(formats, rows, strict=True))


class RowImage(torch.Tensor):
    """An image that is row `row` of `batch`, from which torch's own collate makes `batch` again without a copy. What is
    computed from it is a plain tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    batch: torch.Tensor | None = None
    row = 0

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__deepcopy__(None).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]  # a view takes all along


def rows_of(batch: torch.Tensor) -> list[RowImage]:
    """Return the images of a batch, for default_collate to make `batch` of again."""
    images = []
    for row, view in enumerate(batch.unbind()):
        image = view.as_subclass(RowImage)
        image.batch, image.row = batch, row
        images.append(image)
    return images


def _collate_rows(images: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    batch: torch.Tensor | None = getattr(images[0], "batch", None)
    if batch is not None and len(batch) == len(images):
        if all(isinstance(at, RowImage) and at.batch is batch and at.row == row for row, at in enumerate(images)):
            images[0].batch = None  # type: ignore[attr-defined]  # a sample may hold its image twice
            return batch
    plain = [image.as_subclass(torch.Tensor) for image in images]
    stacked: torch.Tensor = collate_tensor_fn(plain, collate_fn_map=collate_fn_map)
    return stacked


def _reduce_row(row: RowImage) -> Any:
    """A row that is sent by itself takes none of its batch along."""
    return reduce_tensor(row.__deepcopy__(None))  # type: ignore[no-untyped-call]


default_collate_fn_map[RowImage] = _collate_rows  # as documented for types of one's own
ForkingPickler.register(RowImage, _reduce_row)


class _Piece:
    """Anonymous memory of `nbytes`, followed by `flags` bytes, each 1 while another process uses an array."""

    def __init__(self, nbytes: int, flags: int) -> None:
        self.nbytes, self.flags = nbytes, flags
        self.fd = anonymous_file("presize-loader")
        weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, nbytes + flags)
        self.memory = mmap.mmap(self.fd, nbytes + flags)
        self.is_lent = False  # to this process

    def is_free(self) -> bool:
        return not self.is_lent and not any(self.memory[self.nbytes :])

    def lend(self, shapes: Sequence[tuple[int, ...]]) -> list[Rows]:
        """Return arrays over this memory, which can be sent as tensors, each of them once."""
        rows = arrays_over(self.memory, shapes)
        addresses = [array.ctypes.data for array in rows]
        for number, address in enumerate(addresses):
            _loans[address] = self, number, address - addresses[0]
        self.is_lent = True
        when_released(rows, self._come_back, addresses)
        return rows

    def _come_back(self, addresses: Sequence[int]) -> None:
        for address in addresses:
            _loans.pop(address, None)
        self.is_lent = False

    def __reduce__(self) -> Any:
        return _Received, (DupFd(self.fd), self.nbytes, self.flags)


_loans: dict[int, tuple[_Piece, int, int]] = {}
"""By its address, an array that was not sent yet: its piece, its number, and where it begins in the piece."""


class BatchMemory:
    """Pieces of memory for batches that are sent to another process. For one thread."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []  # the oldest first

    def batch(self, formats: Sequence[TensorFormat], samples: int) -> Batch:
        """Return an uninitialised batch, whose tensors can be sent without a copy, each of them once."""
        send_without_descriptors()
        shapes = [(samples, *format.row_shape) for format in formats]
        rows = self._free(packed_bytes(shapes), len(shapes)).lend(shapes)
        return rows, tensors_over(formats, rows)

    def _free(self, nbytes: int, flags: int) -> _Piece:
        for piece in self._pieces:
            if piece.nbytes >= nbytes and piece.flags >= flags and piece.is_free():
                return piece
        piece = _Piece(nbytes, flags)
        self._pieces.append(piece)
        del self._pieces[:-_KEPT]  # one in use lives until it is released
        return piece


_of_worker = BatchMemory()


def new_batch(formats: Sequence[TensorFormat], samples: int, *, travels: bool = False) -> Batch:
    """Return an uninitialised batch; in shared memory if it `travels`, and this is a DataLoader's worker."""
    if travels and torch.utils.data.get_worker_info() is not None:
        return _of_worker.batch(formats, samples)
    rows = [np.empty((samples, *format.row_shape), np.uint8) for format in formats]
    return rows, tensors_over(formats, rows)


class OutputRows:
    """Lends memory for the tensors that a transform makes of the samples of a batch: rows of batches, which torch's
    collate passes on without a copy.

    They have the formats of those of the batch before; the first one, and images that differ, have memory of their own.
    """

    def __init__(self) -> None:
        self.formats: tuple[TensorFormat, ...] = ()

    def of_batch(self, samples: int) -> LentRows:
        return LentRows(self, samples)


class LentRows:
    """The rows of one batch. For one thread."""

    def __init__(self, outputs: OutputRows, samples: int) -> None:
        self._outputs, self._row = outputs, -1
        batches = new_batch(outputs.formats, samples, travels=True)[1] if outputs.formats else ()
        self._rows = list(map(rows_of, batches))
        self._made: list[TensorFormat] = []

    def next_sample(self) -> None:
        if self._row == 0:
            self._outputs.formats = tuple(self._made)
        self._row += 1
        self._made.clear()

    def tensor(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return an uninitialised float32 tensor of the sample."""
        number = len(self._made)
        self._made.append(TensorFormat(shape, torch.float32))
        if number < len(self._rows) and (row := self._rows[number][self._row]).shape == shape:
            return row
        return torch.empty(shape, device="cpu")


class _Received:
    """A piece of memory in the process that it was sent to, mapped once for all tensors that are sent together."""

    def __init__(self, fd: Any, nbytes: int, flags: int) -> None:
        self._memory, self._nbytes = _mapped(fd, nbytes + flags), nbytes

    def storage(self, number: int, first: int, nbytes: int) -> torch.UntypedStorage:
        rows = self._memory[first : first + nbytes]
        when_released([rows], _give_back, os.getpid(), self._memory, self._nbytes + number)
        return torch.from_numpy(rows).untyped_storage()


def _give_back(owner: int, memory: npt.NDArray[np.uint8], flag: int) -> None:
    if os.getpid() == owner:  # in a forked child the parent still uses it
        memory[flag] = 0


def _mapped(fd: Any, nbytes: int) -> npt.NDArray[np.uint8]:
    """The memory of a file that another process sends. No descriptor stays open, of which a process has few: a batch
    may be kept. mmap.mmap would duplicate it."""
    descriptor = fd.detach()
    try:
        memory = torch.from_file(f"/proc/self/fd/{descriptor}", shared=True, size=nbytes, dtype=torch.uint8)
        return memory.numpy()
    finally:
        os.close(descriptor)


def send_without_descriptors() -> None:
    """Have all tensors that this DataLoader's worker sends arrive without a descriptor."""
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type != "cpu" or storage.nbytes() == 0:
        return reduce_storage(storage)  # type: ignore[no-untyped-call]
    loan = _loans.pop(storage.data_ptr(), None)  # a flag serves one receiver: what is sent again is copied
    if loan is not None:
        piece, number, first = loan
        piece.memory[piece.nbytes + number] = 1
        return _Received.storage, (piece, number, first, storage.nbytes())
    if torch.multiprocessing.get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]
        return reduce_storage(storage)  # type: ignore[no-untyped-call]
    descriptor, nbytes = storage._share_fd_cpu_()
    return _storage, (DupFd(descriptor), nbytes)


def _storage(fd: Any, nbytes: int) -> torch.UntypedStorage:
    """The storage that _reduce_storage() sent: over the memory of an array, so that it can be sent once more."""
    return torch.from_numpy(_mapped(fd, nbytes)).untyped_storage()
