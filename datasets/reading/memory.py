"""Anonymous shared memory for batches, freed when its last process ends.

A Loader's workers fill slots of one piece. A DataLoader worker keeps a few pieces, one a batch, since new ones are
expensive (17 ms for a batch of 19 MB that takes 50 ms to read; 2026-11-21, AMD EPYC). Bytes at the end of each tell
whether the receiving process still uses it.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data
from torch.multiprocessing.reductions import reduce_storage, reduce_tensor
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from presize.errors import LoaderError
from presize.formatting import size_text
from presize.system.files import anonymous_file
from presize.system.resources import read_memory

HELD_BY_CALLER = 4
"""Slots besides those being filled: for the current batch, the one before it, and two that the caller may keep."""

Shape = tuple[int, ...]
Rows = npt.NDArray[np.uint8]

_ALIGNED = 64
"""Alignment in bytes of arrays that share memory: a cache line."""


def packed_bytes(shapes: Sequence[Shape]) -> int:
    return sum(-(-math.prod(shape) // _ALIGNED) * _ALIGNED for shape in shapes)


def arrays_over(memory: Any, shapes: Sequence[Shape], offset: int = 0) -> list[Rows]:
    """Return uint8 arrays of `shapes`, one after another in the buffer `memory`, from byte `offset` on."""
    arrays = []
    for shape in shapes:
        arrays.append(np.ndarray(shape, np.uint8, memory, offset))
        offset += packed_bytes([shape])
    return arrays


def when_released(objects: Sequence[object], callback: Callable[..., object], *arguments: object) -> None:
    """Call `callback` once nothing refers to any of `objects`, in the thread that drops the last reference."""
    others = [None] * (len(objects) - 1)
    for one in objects:
        weakref.finalize(one, _released, others, callback, arguments).atexit = False


def _released(others: list[None], callback: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        others.pop()  # atomic, unlike a counter
    except IndexError:
        callback(*arguments)


class SharedSlots:
    """Anonymous memory that child processes share: `count` slots, each with a uint8 array of each of `shapes`."""

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
                f"{count} batches of {size_text(nbytes)} need more than the {size_text(available)} of memory that is "
                "available; choose a smaller batch_size, num_workers or prefetch_factor"
            )
        self._fd = anonymous_file("presize-loader")
        weakref.finalize(self, os.close, self._fd)
        os.ftruncate(self._fd, self._stride * count)
        self._map()

    def _map(self) -> None:
        self.memory = np.frombuffer(mmap.mmap(self._fd, self._stride * self.count), np.uint8)

    def __getitem__(self, slot: int) -> list[Rows]:
        return arrays_over(self.memory, self.shapes, slot * self._stride)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a spawned child, which gets anonymous memory by its file descriptor."""
        return {"shapes": self.shapes, "count": self.count, "_stride": self._stride, "fd": DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fd = state.pop("fd").detach()
        vars(self).update(state)
        self._map()


class FreeSlots:
    """Slots that no batch uses. The slot that was freed last is taken first."""

    def __init__(self, shared: SharedSlots) -> None:
        self.shared = shared
        self.free = deque(range(shared.count))  # finalizers append to it, in any thread
        self._taken: set[int] = set()  # being filled, or filled and not yet returned

    def can_take(self) -> bool:
        return bool(self.free) and len(self._taken) <= self.shared.count - HELD_BY_CALLER  # one becomes the caller's

    def take(self) -> int:
        slot = self.free.pop()
        self._taken.add(slot)
        return slot

    def take_back(self) -> None:
        self.free.extend(self._taken)
        self._taken.clear()

    def hand_over(self, slot: int, samples: int) -> list[Rows]:
        """Return the first `samples` rows of each array of `slot`; copies if the caller holds too many batches."""
        self._taken.remove(slot)
        rows = [array[:samples] for array in self.shared[slot]]
        if self.shared.count - len(self.free) - len(self._taken) > HELD_BY_CALLER:
            copies = [array.copy() for array in rows]
            self.free.append(slot)
            return copies
        when_released(rows, self.free.append, slot)
        return rows


# ---- batches that a DataLoader worker sends ----

_KEPT = 8
"""Pieces that a worker keeps: prefetch_factor (2 by default), those that the consumer holds, and spares."""

Batch = tuple[list[Rows], tuple[torch.Tensor, ...]]
"""A uint8 array (B, *row_shape) to fill for each format, and tensors over the same memory."""


class TensorFormat(NamedTuple):
    """Shape, type and layout of one tensor of each sample. With `channels_last` an image (channels, height, width) is
    stored as (height, width, channels)."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.uint8
    channels_last: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorFormat:
        channels_last = tensor.ndim == 3 and not tensor.is_contiguous() and tensor.permute(1, 2, 0).is_contiguous()
        return cls(tuple(tensor.shape), tensor.dtype, channels_last)

    @property
    def row_shape(self) -> tuple[int, ...]:
        *outer, inner = (*self.shape[1:], self.shape[0]) if self.channels_last else self.shape or (1,)
        return *outer, inner * self.dtype.itemsize

    def tensor(self, rows: Rows) -> torch.Tensor:
        """Return `rows`, (B, *row_shape), as a tensor (B, *shape) over the same memory."""
        values = torch.from_numpy(rows).view(self.dtype)
        return values.permute(0, 3, 1, 2) if self.channels_last else values.reshape(len(rows), *self.shape)


def tensors_over(formats: Sequence[TensorFormat], rows: Sequence[Rows]) -> tuple[torch.Tensor, ...]:
    return tuple(format.tensor(array) for format, array in zip(formats, rows, strict=True))


class RowImage(torch.Tensor):
    """Row `row` of `batch`. torch's collate returns `batch` for all of its rows in order, without a copy."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    batch: torch.Tensor | None = None
    row = 0

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__deepcopy__(None).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]  # a view would pickle the whole batch


def rows_of(batch: torch.Tensor) -> list[RowImage]:
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
            images[0].batch = None  # type: ignore[attr-defined]  # a second batch must not share its memory
            return batch
    plain = [image.as_subclass(torch.Tensor) for image in images]
    stacked: torch.Tensor = collate_tensor_fn(plain, collate_fn_map=collate_fn_map)
    return stacked


def _reduce_row(row: RowImage) -> Any:
    """Pickle a row without the rest of its batch."""
    return reduce_tensor(row.__deepcopy__(None))  # type: ignore[no-untyped-call]


default_collate_fn_map[RowImage] = _collate_rows  # the documented way to collate a new type
ForkingPickler.register(RowImage, _reduce_row)


class _Piece:
    """Memory of `nbytes`, followed by a byte for each of `flags` arrays: 1 while another process uses the array."""

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
        """Return arrays over this memory. Each can be sent once."""
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
"""Piece, number in it and byte offset of each array that was not sent yet, by address."""


class BatchMemory:
    def __init__(self) -> None:
        self._pieces: list[_Piece] = []  # oldest first

    def batch(self, formats: Sequence[TensorFormat], samples: int) -> Batch:
        """Return an uninitialized batch, whose tensors can be sent without a copy, each once."""
        send_without_descriptors()
        shapes = [(samples, *format.row_shape) for format in formats]
        nbytes, flags = packed_bytes(shapes), len(shapes)
        fits = (piece for piece in self._pieces if piece.nbytes >= nbytes and piece.flags >= flags and piece.is_free())
        piece = next(fits, None)
        if piece is None:
            piece = _Piece(nbytes, flags)
            self._pieces.append(piece)
            del self._pieces[:-_KEPT]  # a piece in use lives until it is released
        rows = piece.lend(shapes)
        return rows, tensors_over(formats, rows)


_of_worker = BatchMemory()


def new_batch(formats: Sequence[TensorFormat], samples: int, *, travels: bool = False) -> Batch:
    """Return an uninitialized batch; in shared memory if it `travels` and this is a DataLoader worker."""
    if travels and torch.utils.data.get_worker_info() is not None:
        return _of_worker.batch(formats, samples)
    rows = [np.empty((samples, *format.row_shape), np.uint8) for format in formats]
    return rows, tensors_over(formats, rows)


class LentRows:
    """Rows of batches for the tensors that a transform makes of a batch's samples, so that torch's collate need not
    copy them. Takes `formats` from the batch before, and replaces them by this batch's. For one thread."""

    def __init__(self, formats: list[TensorFormat], samples: int) -> None:
        self._formats, self._row = formats, -1
        batches = new_batch(tuple(formats), samples, travels=True)[1] if formats else ()
        self._rows = list(map(rows_of, batches))
        self._made: list[TensorFormat] = []

    def next_sample(self) -> None:
        if self._row == 0:
            self._formats[:] = self._made
        self._row += 1
        self._made.clear()

    def tensor(self, shape: tuple[int, ...]) -> torch.Tensor:
        number = len(self._made)
        self._made.append(TensorFormat(shape, torch.float32))
        if number < len(self._rows) and (row := self._rows[number][self._row]).shape == shape:
            return row
        return torch.empty(shape, device="cpu")


class _Received:
    """A piece of memory in the receiving process, mapped once for all tensors that are sent together."""

    def __init__(self, fd: Any, nbytes: int, flags: int) -> None:
        self._memory, self._nbytes = _mapped(fd, nbytes + flags), nbytes

    def storage(self, number: int, first: int, nbytes: int) -> torch.UntypedStorage:
        rows = self._memory[first : first + nbytes]
        when_released([rows], _give_back, os.getpid(), self._memory, self._nbytes + number)
        return torch.from_numpy(rows).untyped_storage()


def _give_back(owner: int, memory: npt.NDArray[np.uint8], flag: int) -> None:
    if os.getpid() == owner:  # not in a forked child, whose parent still uses it
        memory[flag] = 0


def _mapped(fd: Any, nbytes: int) -> npt.NDArray[np.uint8]:
    """Map the file that another process sent, without keeping a file descriptor, as mmap.mmap would."""
    descriptor = fd.detach()
    try:
        memory = torch.from_file(f"/proc/self/fd/{descriptor}", shared=True, size=nbytes, dtype=torch.uint8)
        return memory.numpy()
    finally:
        os.close(descriptor)


def send_without_descriptors() -> None:
    """Make all tensors that this DataLoader worker sends arrive without an open file descriptor."""
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type != "cpu" or storage.nbytes() == 0:
        return reduce_storage(storage)  # type: ignore[no-untyped-call]
    loan = _loans.pop(storage.data_ptr(), None)  # a flag serves one receiver: sending again copies
    if loan is not None:
        piece, number, first = loan
        piece.memory[piece.nbytes + number] = 1
        return _Received.storage, (piece, number, first, storage.nbytes())
    if torch.multiprocessing.get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]
        return reduce_storage(storage)  # type: ignore[no-untyped-call]
    descriptor, nbytes = storage._share_fd_cpu_()
    return _storage, (DupFd(descriptor), nbytes)


def _storage(fd: Any, nbytes: int) -> torch.UntypedStorage:
    """Return the storage that _reduce_storage() sent, over the memory of an array, so that it can be sent again."""
    return torch.from_numpy(_mapped(fd, nbytes)).untyped_storage()
