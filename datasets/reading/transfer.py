"""Batches on their way to a device: normalization, pinned memory, asynchronous copies."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch

from presize.datasets.reading.batches import BatchReader, RowFormat
from presize.datasets.reading.regions import Region, View, read_region, read_views
from presize.datasets.reading.slots import SharedSlots, arrays_over, packed_bytes
from presize.errors import LoaderError, OptionError
from presize.formatting import size_text

Normalize = tuple[Sequence[float], Sequence[float]]
"""(mean, std) of each channel, in units of 0 to 1."""

_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for all devices, as torch does it."""


def as_device(device: torch.device | str | None) -> torch.device:
    """The device of that name, the CPU for None. CUDA gets its number, since the current device may change.

    Raises:
        OptionError: torch knows no such device, or sees no CUDA.
    """
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise OptionError(f"device: {str(error).partition('. ')[0]}, got {device!r}") from None
    if found.type != "cuda":
        return found
    if not torch.cuda.is_available():
        raise OptionError(f"device: expected one that this machine has, got {device!r}, and torch sees no CUDA")
    return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device`; copies from pinned memory are asynchronous."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """The batch with `change` applied to each tensor in it, also in mappings, lists and tuples; all else as it is."""
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


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors in a batch, also in mappings, lists and tuples."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, (list, tuple, Mapping)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_of(part)


def copied_ahead(
    batches: Iterable[Any], copy: Callable[[Any], Any], stream: torch.cuda.Stream
) -> Generator[Any, None, None]:
    """Copies each batch to the device while the caller works on the one before.

    Args:
        batches: in pinned memory, which is held until it has been copied.
        copy: called with each, to queue its copies on `stream` and return what they make.
        stream: not the one that the caller works on.
    """
    before: _Copy | None = None
    try:
        for batch in batches:
            with torch.cuda.stream(stream):
                begun = _Copy(copy(batch), batch, stream.record_event())
            if before is not None:
                yield _arrived(before)
            before = begun
            del batch, begun
        if before is not None:
            yield _arrived(before)
    finally:
        stream.synchronize()  # or the memory could be freed while it is being copied from


class _Copy(NamedTuple):
    """A batch on its way to the device, and its source memory, which must stay until `event`."""

    batch: Any
    source: Any
    event: torch.cuda.Event


def _arrived(copy: _Copy) -> Any:
    copy.event.synchronize()  # begun a batch ago
    for tensor in tensors_of(copy.batch):
        tensor.record_stream(torch.cuda.current_stream(tensor.device))  # they were made on another
    return copy.batch


class Normalization:
    """uint8 images (B, channels, height, width) -> (images / 255 - mean) / std, in the same memory format.

    On the CPU each of the 256 grey levels of a channel is looked up, in one pass: in float32 bit for bit what
    torchvision's ToTensor and Normalize compute. Other devices multiply and add, which differs by rounding.

    Args:
        normalize: (mean, std), one number a channel each.
        dtype: floating point; float32 when None.
        channels: of the images.
        device: where the images are.

    Raises:
        OptionError: `normalize` does not fit `channels`, a std is not above 0, or `dtype` is not floating point.
    """

    def __init__(self, normalize: Normalize, dtype: torch.dtype | None, channels: int, device: torch.device) -> None:
        try:
            mean, std = (torch.as_tensor(values, dtype=torch.float64).flatten() for values in normalize)
        except (TypeError, ValueError):
            raise OptionError(f"normalize: expected (mean, std), got {normalize!r}") from None
        if len(mean) != channels or len(std) != channels or not (std > 0).all():
            raise OptionError(
                f"normalize: expected (mean, std) of {channels} channels each, std above 0, got {normalize!r}"
            )
        self.dtype = torch.float32 if dtype is None else dtype
        if not self.dtype.is_floating_point:
            raise OptionError(f"dtype: expected a floating-point type, got {dtype}")
        self.scale = (1 / (255 * std)).to(device, self.dtype).reshape(1, -1, 1, 1)
        self.offset = (-mean / std).to(device, self.dtype).reshape(1, -1, 1, 1)
        computed = torch.float64 if self.dtype == torch.float64 else torch.float32
        levels = torch.arange(256).to(computed).div(255)[:, None]
        table = levels.sub(mean.to(computed)).div(std.to(computed)).to(self.dtype)
        bits = _BITS[self.dtype.itemsize]
        self._table = table.contiguous().view(torch.uint8).numpy().view(bits).reshape(1, 256, channels)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if images.device.type != "cpu":
            return images.to(self.dtype).mul_(self.scale).add_(self.offset)
        pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
        values = np.empty(pixels.shape, self._table.dtype)
        if pixels.size:
            rows = (-1, *pixels.shape[2:])
            cv2.LUT(pixels.reshape(rows), self._table, dst=values.reshape(rows))
        return torch.from_numpy(values.view(np.uint8)).view(self.dtype).permute(0, 3, 1, 2)

    def views(self, images: Any, count: int) -> Any:
        """A batch of images, or of several the first `count`, normalized; companions as they are."""
        if not isinstance(images, tuple):
            return self(images)
        return (*map(self, images[:count]), *images[count:])

    def in_workers(self, reader: BatchReader) -> BatchReader:
        """`reader`, but it reads normalized images."""
        rows = _NormalizedRows(self._table)
        format = RowFormat(self.dtype, rows.fill, rows.fill_views)
        companions = [companion.data for companion in reader.companions]
        return BatchReader(reader.data, reader.crop, reader.flip, format, companions)


def normalization_of(
    reader: BatchReader, normalize: Normalize | None, dtype: torch.dtype | None, device: torch.device
) -> Normalization | None:
    """The Normalization of what `reader` reads; None without `normalize`.

    Raises:
        OptionError: the images have 16 bits, `dtype` comes without `normalize`, or as Normalization.
    """
    if normalize is None:
        if dtype is not None:
            raise OptionError(f"dtype: {dtype} needs normalize=(mean, std); without it batches are uint8")
        return None
    if reader.deep:
        raise OptionError(
            f"normalize: expected images of 8 bits, {reader.data.root} has 16; leave it out, and normalize the batches"
        )
    return Normalization(normalize, dtype, reader.shape[2], device)


_BITS = {1: np.uint8, 2: np.uint16, 4: np.float32, 8: np.float64}
"""What OpenCV copies in place of a floating-point number of so many bytes."""


class _NormalizedRows:
    """Fills rows with the bytes of normalized images. Thread-safe."""

    def __init__(self, table: npt.NDArray[Any]) -> None:
        self._table = table

    def fill(self, out: npt.NDArray[np.uint8], region: Region, shape: tuple[int, int], **how: Any) -> None:
        """Called as read_region is."""
        (pixels,) = self._pixels([out])
        read_region(pixels, region, shape, **how)
        self._normalize(pixels, out)

    def fill_views(self, views: Sequence[View], region: Region, shape: tuple[int, int], scale: int) -> None:
        """Called as read_views is."""
        pixels = self._pixels([view.out for view in views])
        read_views([view._replace(out=image) for view, image in zip(views, pixels, strict=True)], region, shape, scale)
        for view, image in zip(views, pixels, strict=True):
            self._normalize(image, view.out)

    def _pixels(self, rows: Sequence[npt.NDArray[np.uint8]]) -> list[npt.NDArray[np.uint8]]:
        """Memory for the images of `rows`, kept for each thread, so that it stays in the processor's cache."""
        shapes = [(*row.shape[:2], self._table.shape[2]) for row in rows]
        nbytes = packed_bytes(shapes)
        buffer: npt.NDArray[np.uint8] | None = getattr(_local, "buffer", None)
        if buffer is None or len(buffer) < nbytes:
            buffer = _local.buffer = np.empty(nbytes, np.uint8)
        return arrays_over(buffer, shapes)

    def _normalize(self, pixels: npt.NDArray[np.uint8], row: npt.NDArray[np.uint8]) -> None:
        cv2.LUT(pixels, self._table, dst=row.view(self._table.dtype))


_local = threading.local()


def pin(shared: SharedSlots, device: torch.device) -> None:
    """Pin the memory of `shared`, so that CUDA copies from it directly, for as long as `shared` lives.

    Raises:
        LoaderError: CUDA refuses, as where ``ulimit -l`` is too low.
    """
    address, nbytes = shared.memory.ctypes.data, shared.memory.nbytes
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        code = int(runtime.cudaHostRegister(address, nbytes, _PORTABLE))
    if code != 0:
        raise LoaderError(f"CUDA cannot pin {size_text(nbytes)} of memory (error {code}); raise ulimit -l")
    weakref.finalize(shared, _unpin, os.getpid(), runtime, address)


def _unpin(owner: int, runtime: Any, address: int) -> None:
    if os.getpid() == owner:  # in a forked child it is the parent's
        runtime.cudaHostUnregister(address)
