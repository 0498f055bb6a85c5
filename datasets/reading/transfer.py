"""Transfer of batches to a device: normalization, pinned memory, asynchronous copies."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from presize.datasets.reading.batch_reader import BatchReader
from presize.datasets.reading.memory import SharedSlots, arrays_over, packed_bytes
from presize.datasets.reading.regions import Region, View, read_region
from presize.errors import OptionError, warn
from presize.formatting import plural, size_text
from presize.system.resources import is_asynchronous

Normalize = tuple[Sequence[float], Sequence[float]]
"""(mean, std) of each channel, in units of 0 to 1."""

CPU = torch.device("cpu")

_PORTABLE = 1
"""cudaHostRegisterPortable: memory is pinned for all devices, as in torch."""

_COPIES = 2
"""Batches in transfer at a time."""

_STEPS_AHEAD = 4
"""Steps of the caller that may be queued on the device, where each holds memory."""


def as_device(device: torch.device | str | None) -> torch.device:
    """Return the device of that name, an accelerator with its index; the CPU for None."""
    try:
        found = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError):
        known = "cpu, cuda, cuda:1, xpu or mps"
        raise OptionError(f"device: expected one that torch knows, such as {known}, got {device!r}") from None
    here = accelerator()
    if here is not None and found.type == here.type:
        count = torch.accelerator.device_count()
        number = torch.accelerator.current_device_index() if found.index is None else found.index
        if number >= count:
            raise OptionError(f"device: expected one of {plural(count, f'{found.type} device')}, got {device!r}")
        return torch.device(found.type, number)
    try:
        torch.empty(0, device=found)  # the CPU, meta, and devices of torch extensions
    except (RuntimeError, AssertionError, ImportError):
        sees = "no accelerator" if here is None else f"only {here.type}"
        raise OptionError(
            f"device: expected one that this machine has, got {device!r}, and torch {torch.__version__} sees {sees}"
        ) from None
    return found


def accelerator() -> torch.device | None:
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def to_device(batch: Any, device: torch.device) -> Any:
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=is_asynchronous(device.type)), batch)


def map_tensors(change: Callable[[torch.Tensor], object], batch: Any) -> Any:
    """Return the batch with `change` applied to each tensor in mappings, lists and tuples, and all else unchanged."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: map_tensors(change, part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        parts = [map_tensors(change, part) for part in batch]
        if hasattr(batch, "_fields"):  # a named tuple
            return type(batch)(*parts)
        return tuple(parts) if isinstance(batch, tuple) else parts
    return batch


def tensors_of(batch: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_tensors(found.append, batch)
    return found


Parts = tuple[Any, Any]
"""A batch in transfer: the tensors of its slot, and its targets, in any structure, tensors or not."""

Box = list[Any]
"""Holds a batch, which the consumer pops, so that a suspended generator does not keep its memory in use. Empty if the
next batch is not ready."""


class Transfer:
    """Transfer of batches to a device, for one process. CUDA and ROCm copy from slots and targets in registered memory,
    XPU from staging memory that torch pins, on a separate stream, a batch ahead. Other copies are synchronous."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_asynchronous = is_asynchronous(device.type)
        self._registers = device.type == "cuda"  # torch.accelerator cannot register memory
        self._stream: torch.Stream | None = None  # kept: the allocator has a memory pool for each stream
        self._is_refused = False

    def pin(self, shared: SharedSlots) -> None:
        """Pin `shared` for its lifetime if the device copies from it directly. Warn if that fails."""
        if shared.is_pinned or self._is_refused or not self._registers:
            return
        address, nbytes = shared.memory.ctypes.data, shared.memory.nbytes
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(self.device):
            code = int(runtime.cudaHostRegister(address, nbytes, _PORTABLE))
        if code == 0:
            shared.is_pinned = True
            weakref.finalize(shared, _unpin, os.getpid(), runtime, address)
            return
        with suppress(RuntimeError):  # clears CUDA's error, which the user's next kernel would raise
            torch.zeros(1, device="cpu").to(self.device).add_(1)
        self._warn(nbytes, f"error {code}")

    def pinned(self, nbytes: int) -> tuple[object, npt.NDArray[np.uint8]]:
        """Return the owner that keeps pinned memory alive, and the memory; it is pageable where pin() warns."""
        if self._registers:
            shared = SharedSlots(1, [(nbytes,)])
            self.pin(shared)
            return shared, shared[0][0]
        memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        try:
            memory = memory if self._is_refused else memory.pin_memory()
        except RuntimeError as error:
            self._warn(nbytes, str(error).partition("\n")[0])
        return memory, memory.numpy()

    def _warn(self, nbytes: int, why: str) -> None:
        self._is_refused = True
        warn(
            f"device: cannot pin {size_text(nbytes)} of memory ({why}), so copies to {self.device} are slower; "
            "raise ulimit -l"
        )

    def send(self, boxes: Generator[Box, None, None]) -> Generator[Box, None, None]:
        """Yield `boxes` of Parts on the device; asynchronous copies run while the caller works on the batch before.
        Closes `boxes` when it is closed."""
        with closing(boxes):
            if self.is_asynchronous:
                yield from self._ahead(boxes)
                return
            for box in boxes:
                yield box if self.device.type == "cpu" else [to_device(box.pop(), self.device)]

    def _ahead(self, boxes: Iterable[Box]) -> Generator[Box, None, None]:
        owner = os.getpid()
        if self._stream is None:
            self._stream = torch.Stream(self.device)
        staging = _Staging(self)
        copies: deque[tuple[Parts, Parts, torch.Event]] = deque()
        steps: deque[torch.Event] = deque()
        try:
            for box in chain(boxes, [[]]):
                is_there = bool(box)
                if is_there:
                    copies.append(self._begin(box.pop(), staging, self._stream))
                if copies and (len(copies) == _COPIES or not is_there):
                    yield [self._arrived(*copies.popleft())]
                    steps.append(self._event(torch.accelerator.current_stream(self.device)))
                    if len(steps) > _STEPS_AHEAD:
                        steps.popleft().synchronize()
        finally:
            if os.getpid() == owner:  # a forked child has no CUDA and no copies
                self._stream.synchronize()  # else memory could be freed while it is copied

    def _begin(self, parts: Parts, staging: _Staging, stream: torch.Stream) -> tuple[Parts, Parts, torch.Event]:
        """Queue the copies of a batch. Returns them, their source, which must stay, and the event of their end."""
        tensors, targets = parts
        # Not in the caller's inference mode, which may end before it gets this batch.
        with torch.inference_mode(False), stream:
            source = (tensors, staging.place(targets)) if self._registers else staging.place(parts)
            return to_device(source, self.device), source, self._event(stream)

    def _arrived(self, parts: Parts, _: Parts, event: torch.Event) -> Parts:
        event.synchronize()
        for tensor in tensors_of(parts):  # allocated on another stream
            tensor.record_stream(torch.accelerator.current_stream(self.device))
        return parts

    def _event(self, stream: torch.Stream) -> torch.Event:
        event = torch.Event(self.device, blocking=True)  # waiting for it does not keep a core busy
        event.record(stream)
        return event


class _Staging:
    """Pinned memory for pageable tensors, such as targets: a piece for each batch in transfer."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self._pieces: deque[tuple[object, npt.NDArray[np.uint8]]] = deque([(None, np.empty(0, np.uint8))] * _COPIES)

    def place(self, batch: Any) -> Any:
        """Return the batch with its tensors in pinned memory. The copies of the batch before the last are done."""
        shapes = [(tensor.nbytes,) for tensor in tensors_of(batch)]
        owner, memory = self._pieces.popleft()
        if packed_bytes(shapes) > len(memory):
            owner, memory = self._transfer.pinned(2 * packed_bytes(shapes))
        self._pieces.append((owner, memory))
        arrays = iter(arrays_over(memory, shapes))
        return map_tensors(lambda tensor: _moved(tensor, next(arrays)), batch)


def _moved(tensor: torch.Tensor, array: npt.NDArray[np.uint8]) -> torch.Tensor:
    if not tensor.nbytes or tensor.device.type != "cpu":
        return tensor
    strides = torch.empty_like(tensor, device="meta").stride()
    memory = torch.from_numpy(array).view(tensor.dtype).as_strided(tensor.shape, strides)
    memory.copy_(tensor)
    if type(tensor) is torch.Tensor:
        return memory
    moved = tensor.detach()  # keeps the metadata of torchvision's tv_tensors
    moved.data = memory
    return moved


class Normalization:
    """Normalization of uint8 images (B, channels, height, width) to (images / 255 - mean) / std. Workers use `table`,
    which in float32 equals torchvision bit for bit; asynchronous devices use one kernel, which differs by rounding."""

    def __init__(self, normalize: Normalize, dtype: torch.dtype | None, channels: int, device: torch.device) -> None:
        try:
            mean, std = (torch.as_tensor(values, dtype=torch.float64, device="cpu").flatten() for values in normalize)
        except (TypeError, ValueError):
            raise OptionError(f"normalize: expected (mean, std), got {normalize!r}") from None
        if len(mean) != channels or len(std) != channels or not (std > 0).all():
            raise OptionError(
                f"normalize: expected (mean, std) of {channels} channels each, std above 0, got {normalize!r}"
            )
        self.dtype = torch.float32 if dtype is None else dtype
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            raise OptionError(f"dtype: expected a floating-point type, such as torch.float16, got {dtype!r}")
        computed = torch.float64 if self.dtype == torch.float64 else torch.float32
        self._scale = (1 / (255 * std)).to(device, computed).reshape(1, -1, 1, 1)
        self._offset = (-mean / std).to(device, computed).reshape(1, -1, 1, 1)
        levels = torch.arange(256, device="cpu").to(computed).div(255)[:, None]
        table = levels.sub(mean.to(computed)).div(std.to(computed)).to(self.dtype)
        bits = _BITS[self.dtype.itemsize]
        self.table = table.contiguous().view(torch.uint8).numpy().view(bits).reshape(1, 256, channels)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        normalized = torch.empty_like(images, dtype=self.dtype)  # rounded once, when written
        return torch.addcmul(self._offset, images, self._scale, out=normalized)

    def views(self, images: Any, count: int) -> Any:
        """Normalize a batch of images, or the first `count` batches of a tuple but not the companions."""
        if not isinstance(images, tuple):
            return self(images)
        return (*map(self, images[:count]), *images[count:])


def check_units(normalize: Normalize) -> None:
    """Raise OptionError if means are in units of 0 to 255."""
    try:
        most = float(torch.as_tensor(normalize[0], dtype=torch.float64, device="cpu").max())
    except (TypeError, ValueError, IndexError, RuntimeError):  # Normalization says what is wrong
        return
    if most > 1:
        raise OptionError(f"normalize: expected means in units of 0 to 1, got {most:g}; divide mean and std by 255")


def normalized(
    reader: BatchReader, normalize: Normalize | None, dtype: torch.dtype | None = None, device: torch.device = CPU
) -> tuple[BatchReader, Normalization | None]:
    """Return a reader that normalizes, and None; for devices other than the CPU, `reader` and the normalization."""
    if normalize is None:
        if dtype is not None:
            raise OptionError(f"dtype: {dtype} needs normalize=(mean, std); without it batches are integers")
        return reader, None
    if reader.deep:
        raise OptionError(
            f"normalize: expected 8-bit images, but {reader.data.root} has 16-bit images; normalize the batches instead"
        )
    normalization = Normalization(normalize, dtype, reader.shapes[0][2], device)
    if device.type != "cpu":
        return reader, normalization
    companions = [companion.data for companion in reader.companions]
    fill = _NormalizedRows(normalization.table)
    return BatchReader(reader.data, reader.crop, reader.flip, fill, normalization.dtype, companions, reader.skips), None


_BITS = {1: np.uint8, 2: np.uint16, 4: np.float32, 8: np.float64}
"""Types that OpenCV copies in place of floating-point numbers, by their bytes."""


class _NormalizedRows:
    """A function that fills rows with the bytes of normalized images, called like read_region. Thread-safe."""

    def __init__(self, table: npt.NDArray[Any]) -> None:
        self._table = table

    def __call__(self, views: Sequence[View], region: Region, shape: tuple[int, int], scale: int) -> None:
        images = self._pixels([view.out for view in views])
        read_region([view._replace(out=image) for view, image in zip(views, images, strict=True)], region, shape, scale)
        for view, image in zip(views, images, strict=True):
            cv2.LUT(image, self._table, dst=view.out.view(self._table.dtype))

    def _pixels(self, rows: Sequence[npt.NDArray[np.uint8]]) -> list[npt.NDArray[np.uint8]]:
        """Return memory for the images of `rows`, kept for each thread so that it stays in the CPU cache."""
        shapes = [(*row.shape[:2], self._table.shape[2]) for row in rows]
        nbytes = packed_bytes(shapes)
        buffer: npt.NDArray[np.uint8] | None = getattr(_local, "buffer", None)
        if buffer is None or len(buffer) < nbytes:
            buffer = _local.buffer = np.empty(nbytes, np.uint8)
        return arrays_over(buffer, shapes)


_local = threading.local()


def _unpin(owner: int, runtime: Any, address: int) -> None:
    if os.getpid() == owner:  # not in a forked child, where it is the parent's
        runtime.cudaHostUnregister(address)
