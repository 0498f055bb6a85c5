"""Loader: batches of crops decoded straight into shared, reused memory, and on to the device."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from presize.datasets.batches import BatchReader, Skipped
from presize.datasets.crops import Crop
from presize.datasets.lmdb import LMDBDataset
from presize.datasets.order import Last, Order, Sequential, Shuffled
from presize.datasets.sampler import EpochSampler
from presize.datasets.workers import Crew, Mode, Ring, Task
from presize.errors import LoaderError, OptionError
from presize.options import check_choice, check_range

_LENT = 2
"""Slots that the caller may hold beside those being filled: the batch at hand, and the one before it."""

OnErrorInBatch = Literal["raise", "skip"]
Normalize = tuple[Sequence[float], Sequence[float]]


class Loader:
    """Batches (images, targets) of a dataset, cropped before they are decoded.

    images: uint8 (B, channels, height, width) in channels-last memory, on `device`; with `normalize` of
        `dtype`. targets: int64 (B,), or what torch's default collate makes of other columns. A dataset
        without targets gives images alone.

    dataset: an LMDBDataset without a transform; its target says what comes beside the images.
    crop, flip: what to take of each image, and how often to mirror it; by default the dataset's own.
    shuffle, seed: a new order each epoch, the same for any number of workers. `order` takes any other one of
        presize.datasets.order instead, such as ShardShuffled for a dataset larger than memory.
    workers: how many read at a time, in "processes" or "threads"; None uses every core this process may
        use. 0 reads in the caller's thread. Threads start faster and share one page table; Python's lock
        lets about two of them work at a time.
    prefetch: batches a worker may be ahead, from 1.
    last: "drop" leaves out a last batch that is not full, "keep" gives it as it is, "pad" fills it up with
        samples of the epoch's beginning; over ranks see presize.datasets.order.Schedule.
    device: where batches go. On CUDA they are copied from page-locked memory on a stream of its own while
        the step before runs.
    normalize: (mean, std) for each channel in units of 0 to 1, as torchvision has them; done on `device`.
    dtype: of normalized batches, float32 by default.
    on_error: "raise" a DatasetError that names the sample, or "skip" it: the batch is then shorter, and
        `skipped` counts.
    rank, ranks: torch.distributed's by default, or 0 of 1.
    context: how processes start: "fork", "spawn" or "forkserver"; None is Python's default.

    A batch stays what it was for as long as the caller keeps it: its memory is reused when nothing refers to
    it any more, and who keeps many gets copies. Workers stay from epoch to epoch and end when an epoch is
    left early (break, an error, Ctrl-C), with close(), and with the Loader. One epoch at a time.

    Raises OptionError for options that cannot be; while iterating DatasetError for a damaged sample, and
    LoaderError when a worker dies.
    """

    def __init__(
        self,
        dataset: LMDBDataset,
        batch_size: int,
        *,
        crop: Crop | None = None,
        flip: float | None = None,
        shuffle: bool = False,
        seed: int = 0,
        order: Order | None = None,
        workers: int | None = None,
        mode: Mode = "processes",
        prefetch: int = 2,
        last: Last = "keep",
        device: torch.device | str | None = None,
        normalize: Normalize | None = None,
        dtype: torch.dtype | None = None,
        on_error: OnErrorInBatch = "raise",
        rank: int | None = None,
        ranks: int | None = None,
        context: str | None = None,
    ) -> None:
        if not isinstance(dataset, LMDBDataset):
            raise OptionError(f"dataset: expected an LMDBDataset, got {type(dataset).__name__}")
        if dataset.transform is not None:
            raise OptionError("dataset: a Loader calls no transform; give crop and flip, or use make_loader")
        check_choice("mode", mode, Mode)
        check_choice("on_error", on_error, OnErrorInBatch)
        check_range("prefetch", prefetch, 1, 64)
        if workers is not None:
            check_range("workers", workers, 0, 4096)
        self.dataset = dataset
        self.batch_size = batch_size
        self.workers = len(os.sched_getaffinity(0)) if workers is None else workers
        self.mode: Mode = mode
        self.prefetch = prefetch
        self.on_error: OnErrorInBatch = on_error
        self.context = context
        self.device = torch.device("cpu" if device is None else device)
        self.skipped = 0
        if order is None:
            order = Shuffled(len(dataset), seed) if shuffle else Sequential(len(dataset), seed)
        elif shuffle or seed:
            raise OptionError("order: it has a shuffle and a seed of its own; give either order, or shuffle and seed")
        if order.population != len(dataset):
            raise OptionError(f"order: expected one of {len(dataset)} samples, got {order!r}")
        self.sampler = EpochSampler(order, rank=rank, ranks=ranks, batch_size=batch_size, last=last)
        self._reader = BatchReader(
            dataset.data, dataset.crop if crop is None else crop, dataset.flip if flip is None else flip
        )
        self._normalize = (
            None if normalize is None else _Normalize(normalize, dtype, self._reader.shape[2], self.device)
        )
        if normalize is None and dtype is not None:
            raise OptionError(f"dtype: {dtype} needs normalize=(mean, std); without it batches are uint8")
        self._crew: Crew | None = None
        self._slots: _Slots | None = None
        self._running = False
        self._delivered = 0

    def __len__(self) -> int:
        """Batches on this rank in the epoch that is due, or that is being read."""
        return self.sampler.schedule.batch_count(self.sampler.start)

    def __iter__(self) -> Iterator[Any]:
        if self._running:
            raise LoaderError("this Loader is in the middle of an epoch; make a second one to read two at a time")
        self._running = True
        return self._epoch()

    def _epoch(self) -> Generator[Any, None, None]:
        finished = False
        try:
            epoch, start = self.sampler.begin()
            self._delivered = 0
            with closing(self._on_device(self._read(epoch, start))) as batches:
                for batch in batches:
                    self._delivered += 1  # before the caller has it: what he has, he has consumed
                    yield batch
                    del batch  # or its memory would be held while the next one is read
            finished = True
        finally:
            self._running = False
            if not finished:
                self.close()

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next to be read; without this each one is followed by the next."""
        self.sampler.set_epoch(epoch)
        self._delivered = 0

    def state_dict(self) -> dict[str, int]:
        """Where the caller stands, as a few integers: after the batch that was handed out last."""
        return self.sampler.state_after(self._delivered, self.batch_size)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where state_dict() was taken, with any number of workers, ranks or another batch size.
        Raises OptionError for the state of another order."""
        self.sampler.load_state_dict(state)
        self._delivered = 0

    def close(self) -> None:
        """End the workers and release the memory. The next epoch starts them again."""
        if self._crew is not None:
            self._crew.close()
        self._crew = self._slots = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, epoch: int, start: int) -> Generator[_Batch, None, None]:
        """The batches of an epoch, in order, in slots of shared memory."""
        schedule, order = self.sampler.schedule, self.sampler.order
        count = schedule.batch_count(start)
        slots, crew = self._begin()
        asked: deque[tuple[int, npt.NDArray[np.int64]]] = deque()  # slot and samples, in order
        there: dict[int, list[Skipped]] = {}  # by slot
        number = 0
        while number < count or asked:
            while number < count and slots.free and (not asked if crew is None else crew.has_room()):
                positions = schedule.batch(start, number)
                samples = order.samples(epoch, positions)
                task = Task(slots.free.pop(), samples, order.seed, epoch, order.keys(epoch, positions))
                asked.append((task.slot, samples))
                number += 1
                if crew is not None:
                    crew.hand_out(task)
                else:
                    there[task.slot] = self._reader.read(slots.ring[task.slot], *task[1:], skip=self.on_error == "skip")
            slot, samples = asked[0]
            while crew is not None and slot not in there:
                for answer in crew.answers():
                    if answer.error is not None:
                        raise answer.error
                    there[answer.slot] = answer.skipped
            asked.popleft()
            skipped = there.pop(slot)
            self.skipped += len(skipped)
            kept = np.delete(samples, [position for position, _ in skipped]) if skipped else samples
            yield _Batch(slots.lend(slot, len(kept), busy=len(asked)), kept)

    def _begin(self) -> tuple[_Slots, Crew | None]:
        if self._slots is None:
            count = max(1, self.workers * self.prefetch) + _LENT
            ring = Ring(count, (self.batch_size, *self._reader.shape))
            self._slots = _Slots(ring, count)
            if self.device.type == "cuda":
                _page_lock(ring)
            if self.workers:
                self._crew = Crew(
                    self._reader,
                    self.workers,
                    self.mode,
                    ring,
                    ahead=self.prefetch,
                    skip=self.on_error == "skip",
                    context=self.context,
                )
        return self._slots, self._crew

    def _on_device(self, batches: Generator[_Batch, None, None]) -> Generator[Any, None, None]:
        with closing(batches):
            if self.device.type == "cuda":
                yield from self._copied(batches)
                return
            for batch in batches:
                images = _channels_first(batch.pixels)
                samples = batch.samples
                del batch
                yield self._batch(images.to(self.device), self.dataset.batch_targets(samples))
                del images

    def _copied(self, batches: Iterator[_Batch]) -> Iterator[Any]:
        """Each batch is copied to the device while the caller works on the one before."""
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        before: _Copy | None = None
        for batch in batches:
            host = _channels_first(batch.pixels)
            targets = self.dataset.batch_targets(batch.samples)
            with torch.cuda.stream(stream):
                images = host.to(self.device, non_blocking=True)
                copy = _Copy(images, targets, host, stream.record_event())
            if before is not None:
                yield self._arrived(before)
            before = copy
            del batch, host, images, copy
        if before is not None:
            yield self._arrived(before)

    def _arrived(self, copy: _Copy) -> Any:
        copy.event.synchronize()  # it was begun a batch ago; its slot may be filled again from here on
        copy.images.record_stream(torch.cuda.current_stream(self.device))
        return self._batch(copy.images, copy.targets)

    def _batch(self, images: torch.Tensor, targets: Any) -> Any:
        if self._normalize is not None:
            images = self._normalize(images)
        if targets is None:
            return images
        if isinstance(targets, torch.Tensor):
            targets = targets.to(self.device, non_blocking=True)
        return images, targets


class _Batch(NamedTuple):
    """uint8 (B, height, width, channels), and the numbers of the samples in it."""

    pixels: npt.NDArray[np.uint8]
    samples: npt.NDArray[np.int64]


class _Copy(NamedTuple):
    """A batch on its way to the device, and the memory it comes from, which must stay until `event`."""

    images: torch.Tensor
    targets: Any
    host: torch.Tensor
    event: torch.cuda.Event


class _Slots:
    """Which slots of a ring are free. One comes back when the last reference to its batch is gone."""

    def __init__(self, ring: Ring, count: int) -> None:
        self.ring = ring
        self.count = count
        self.free = deque(range(count))  # appended to by finalizers, in whichever thread they run

    def lend(self, slot: int, samples: int, busy: int) -> npt.NDArray[np.uint8]:
        """The first `samples` images in `slot`; a copy when the caller holds so many batches that
        the workers, who have `busy` slots, would be without."""
        pixels = self.ring[slot][:samples]
        if self.count - len(self.free) - busy > _LENT:
            copy = pixels.copy()
            self.free.append(slot)
            return copy
        weakref.finalize(pixels, self.free.append, slot).atexit = False
        return pixels


class _Normalize:
    """uint8 images -> (images / 255 - mean) / std, of `dtype`, in channels-last memory."""

    def __init__(self, normalize: Normalize, dtype: torch.dtype | None, channels: int, device: torch.device) -> None:
        mean, std = (torch.as_tensor(values, dtype=torch.float64).flatten() for values in normalize)
        if len(mean) != channels or len(std) != channels or not (std > 0).all():
            raise OptionError(
                f"normalize: expected (mean, std) of {channels} channels each, std above 0, got {normalize!r}"
            )
        self.dtype = torch.float32 if dtype is None else dtype
        if not self.dtype.is_floating_point:
            raise OptionError(f"dtype: expected a floating-point type, got {dtype}")
        self.scale = (1 / (255 * std)).to(device, self.dtype).reshape(1, -1, 1, 1)
        self.offset = (-mean / std).to(device, self.dtype).reshape(1, -1, 1, 1)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(self.dtype).mul_(self.scale).add_(self.offset)


def _channels_first(pixels: npt.NDArray[np.uint8]) -> torch.Tensor:
    """A tensor (B, channels, height, width) over the same memory, which so is channels-last."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def _page_lock(ring: Ring) -> None:
    """Let CUDA copy from the ring without a detour. Undone before its memory goes."""
    address, nbytes = ring.memory.ctypes.data, ring.memory.nbytes
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    code = int(runtime.cudaHostRegister(address, nbytes, 0))
    if code != 0:
        raise LoaderError(f"CUDA cannot lock {nbytes / 1e6:.0f} MB of memory (error {code}); see ulimit -l")
    weakref.finalize(ring, runtime.cudaHostUnregister, address)
