"""Loader: batches of crops decoded straight into shared, reused memory, and on to the device."""

from __future__ import annotations

import copy
import os
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from presize.datasets.crops import Crop
from presize.datasets.lmdb import LMDBDataset
from presize.datasets.reading.batches import BatchReader
from presize.datasets.reading.device_decode import CutReader, DecodeOn, Decoder, decode_rows, find_decoder
from presize.datasets.reading.order import Last, Order, choose_order
from presize.datasets.reading.workers import Answer, BatchTask, Mode, SharedSlots, WorkerPool, read
from presize.datasets.sampler import EpochSampler
from presize.errors import LoaderError, OptionError
from presize.options import check_choice, check_range
from presize.system.resources import usable_cores

_HELD_BY_CALLER = 2
"""Slots beside those being filled: for the batch at hand, and the one before it."""

_PORTABLE = 1
"""cudaHostRegisterPortable: locked for all devices, as torch does it."""

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
        presize.datasets.reading.order instead, such as ShardShuffled for a dataset larger than memory.
    workers: how many read at a time, in "processes" or "threads"; None uses every core this process may
        use. 0 reads in the caller's thread. Threads start faster and share one page table; Python's lock
        lets about two of them work at a time.
    prefetch: batches a worker may be ahead, from 1.
    last: "drop" leaves out a last batch that is not full, "keep" gives it as it is, "pad" fills it up with
        samples of the epoch's beginning; over ranks see presize.datasets.reading.schedule.Schedule.
    device: where batches go. On CUDA they are copied from page-locked memory on a stream of its own while
        the step before runs.
    normalize: (mean, std) for each channel in units of 0 to 1, as torchvision has them; done on `device`.
    dtype: of normalized batches, float32 by default.
    decode_on: "workers", or "device": workers then only cut JPEGs, which travel as bytes, and torchcodec or
        torchvision decodes them on `device`; or a function that does that
        (presize.datasets.reading.device_decode.Decoder).
    on_error: "raise" a DatasetError that names the image that cannot be decoded or is too small for the crop,
        or "skip" it: its batch is then shorter, and `skipped` counts.
    rank, ranks: torch.distributed's by default, or 0 of 1.
    context: how processes start: "fork", "spawn" or "forkserver"; None is Python's default.

    A batch stays what it was for as long as the caller keeps it: its memory is reused when nothing refers to
    it any more, and who keeps many gets copies. Workers stay from epoch to epoch and end when an epoch is
    left early (break, an error, Ctrl-C), with close(), and with the Loader. One epoch at a time.

    Raises OptionError for options that cannot be; while iterating DatasetError for a damaged sample, and
    LoaderError when a worker dies or the device's decoder fails.
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
        decode_on: DecodeOn | Decoder = "workers",
        on_error: OnErrorInBatch = "raise",
        rank: int | None = None,
        ranks: int | None = None,
        context: str | None = None,
    ) -> None:
        if not isinstance(dataset, LMDBDataset):
            raise OptionError(f"dataset: expected an LMDBDataset, got {type(dataset).__name__}")
        if dataset.transform is not None:
            raise OptionError("dataset: a Loader calls no transform; give crop and flip, or use make_loader")
        if type(dataset).__getitem__ is not LMDBDataset.__getitem__:
            raise OptionError(f"dataset: a Loader does not call the __getitem__ of {type(dataset).__name__}")
        check_choice("mode", mode, Mode)
        check_choice("on_error", on_error, OnErrorInBatch)
        if not callable(decode_on):
            check_choice("decode_on", decode_on, DecodeOn)
        check_range("prefetch", prefetch, 1, 64)
        if workers is not None:
            check_range("workers", workers, 0, 4096)
        self.dataset = dataset
        self.batch_size = batch_size
        self.workers = usable_cores() if workers is None else workers
        self.mode: Mode = mode
        self.prefetch = prefetch
        self.on_error: OnErrorInBatch = on_error
        self.context = context
        self.device = as_device(device)
        self.skipped = 0
        order = choose_order(len(dataset), shuffle, seed, order)
        self.sampler = EpochSampler(order, rank=rank, ranks=ranks, batch_size=batch_size, last=last)
        self._reader = (BatchReader if decode_on == "workers" else CutReader)(
            dataset.data, dataset.crop if crop is None else crop, dataset.flip if flip is None else flip
        )
        self._decoder: Decoder | None = None
        if callable(decode_on):
            self._decoder = decode_on
        elif decode_on == "device":
            self._decoder = find_decoder(self.device, self._reader.shape[2])
        self._normalize = (
            None if normalize is None else _Normalize(normalize, dtype, self._reader.shape[2], self.device)
        )
        if normalize is None and dtype is not None:
            raise OptionError(f"dtype: {dtype} needs normalize=(mean, std); without it batches are uint8")
        self._pool: WorkerPool | None = None
        self._slots: _Slots | None = None
        self._stream: Any = None
        self._owner = os.getpid()
        self._running = False
        self._delivered = 0
        self._on_batch: Callable[[Answer], None] | None = None

    def __len__(self) -> int:
        """Batches on this rank in the epoch that is being read, or that is due."""
        start = self.sampler.start if self._running else self.sampler.next_start
        return self.sampler.schedule.batch_count(start)

    def __iter__(self) -> Iterator[Any]:
        self._check_idle()
        return self._epoch()  # which begins with its first batch: an iterator that is never used does nothing

    def _epoch(self) -> Generator[Any, None, None]:
        self._check_idle()
        finished, self._running = False, True
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

    def _check_idle(self) -> None:
        if self._owner != os.getpid():  # forked: workers and memory are the parent's
            self._pool = self._slots = self._stream = None
            self._running, self._owner = False, os.getpid()
        if self._running:
            raise LoaderError("this Loader is in the middle of an epoch; make a second one to read two at a time")

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next to be read; without this each one is followed by the next. Not within one."""
        self._check_idle()
        self.sampler.set_epoch(epoch)
        self._delivered = 0

    def state_dict(self) -> dict[str, int]:
        """Where the caller stands, as a few integers: after the batch that was handed out last."""
        return self.sampler.state_after(self._delivered, self.batch_size)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where state_dict() was taken, with any number of workers, ranks or another batch size.
        Raises OptionError for the state of another order. Not within an epoch."""
        self._check_idle()
        self.sampler.load_state_dict(state)
        self._delivered = 0

    def close(self) -> None:
        """End the workers and release the memory. The next epoch starts them again."""
        if self._pool is not None:
            self._pool.close()
        self._pool = self._slots = None

    def observed(self, workers: int, on_batch: Callable[[Answer], None]) -> Loader:
        """A copy that reads the same epochs with so many workers of its own, and tells who made each batch, and when,
        before it comes. It shares the sampler: the epochs that it reads are not read again."""
        self._check_idle()
        copied = copy.copy(self)
        copied.workers, copied._on_batch = workers, on_batch
        copied._pool = copied._slots = copied._stream = None
        return copied

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, epoch: int, start: int) -> Generator[_Batch, None, None]:
        """The batches of an epoch, in order, in slots of shared memory."""
        schedule, order = self.sampler.schedule, self.sampler.order
        count = schedule.batch_count(start)
        slots, pool = self._begin()
        pending: deque[BatchTask] = deque()  # in order
        ready: dict[int, Answer] = {}  # by slot
        number = 0
        while number < count or pending:
            while number < count and slots.free and (pool.has_room() if pool is not None else not pending):
                positions = schedule.batch(start, number)
                samples, keys = order.samples(epoch, positions), order.keys(epoch, positions)
                task = BatchTask(slots.free.pop(), samples, order.seed, epoch, keys)
                pending.append(task)
                number += 1
                if pool is not None:
                    pool.hand_out(task)
                else:
                    ready[task.slot] = read(task, self._reader, slots.shared, self.on_error == "skip")
            task = pending.popleft()
            while pool is not None and task.slot not in ready:
                ready.update((answer.slot, answer) for answer in pool.answers())
            answer = ready.pop(task.slot)
            if self._on_batch is not None:
                self._on_batch(answer)
            if answer.error is not None:
                raise answer.error
            self.skipped += len(answer.skipped)
            kept = np.delete(task.samples, answer.skipped)
            yield _Batch(slots.hand_over(task.slot, len(kept), busy=len(pending)), kept)

    def _begin(self) -> tuple[_Slots, WorkerPool | None]:
        if self._slots is None:
            count = max(1, self.workers * self.prefetch) + _HELD_BY_CALLER
            shared = SharedSlots(count, (self.batch_size, *self._reader.row_shape))
            if self.workers:
                self._pool = WorkerPool(
                    self._reader,
                    self.workers,
                    self.mode,
                    shared,
                    ahead=self.prefetch,
                    skip=self.on_error == "skip",
                    context=self.context,
                )
            # After the workers were forked, so that they inherit none of it. Slots of JPEGs are left as they are:
            # decoders take any memory, and locking would take hold of all of it, where little is ever used.
            if self.device.type == "cuda" and self._decoder is None:
                _page_lock(shared, self.device)
            self._slots = _Slots(shared)
        return self._slots, self._pool

    def _on_device(self, batches: Generator[_Batch, None, None]) -> Generator[Any, None, None]:
        with closing(batches):
            if self.device.type == "cuda":
                yield from self._copied(batches)
                return
            for batch in batches:
                images, samples = self._images(batch)
                del batch
                targets = _to_device(self.dataset.batch_targets(samples), self.device)
                yield self._batch(images, targets)
                del images

    def _copied(self, batches: Iterator[_Batch]) -> Iterator[Any]:
        """Each batch is copied to the device while the caller works on the one before."""
        if self._stream is None:  # one for good: the allocator keeps memory for each
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        before: _Copy | None = None
        try:
            for batch in batches:
                with torch.cuda.stream(self._stream):
                    images, samples = self._images(batch)
                    targets = _to_device(self.dataset.batch_targets(samples), self.device)
                    copy = _Copy(images, targets, batch.rows, self._stream.record_event())
                if before is not None:
                    yield self._arrived(before)
                before = copy
                del batch, images, copy
            if before is not None:
                yield self._arrived(before)
        finally:
            self._stream.synchronize()  # or the memory could go while it is being copied from

    def _images(self, batch: _Batch) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
        """The images of a batch on the device, or on their way to it, and their samples."""
        if self._decoder is None:
            images = torch.from_numpy(batch.rows).permute(0, 3, 1, 2)  # the same memory, which so is channels-last
            return images.to(self.device, non_blocking=self.device.type == "cuda"), batch.samples
        images, damaged = decode_rows(batch.rows, self._decoder, self._reader.shape, self.device)
        for position, what in damaged.items():
            if self.on_error == "raise":
                raise self.dataset.data.damage(int(batch.samples[position]), what)
        self.skipped += len(damaged)
        return images, np.delete(batch.samples, list(damaged))

    def _arrived(self, copy: _Copy) -> Any:
        copy.event.synchronize()  # it was begun a batch ago
        stream = torch.cuda.current_stream(self.device)
        for tensor in (copy.images, *_tensors(copy.targets)):
            tensor.record_stream(stream)  # which is not the one they were made on
        return self._batch(copy.images, copy.targets)

    def _batch(self, images: torch.Tensor, targets: Any) -> Any:
        if self._normalize is not None:
            images = self._normalize(images)
        return images if targets is None else (images, targets)


class _Batch(NamedTuple):
    """uint8 (B, height, width, channels), or what a CutReader has in its place; and the samples' numbers."""

    rows: npt.NDArray[np.uint8]
    samples: npt.NDArray[np.int64]


class _Copy(NamedTuple):
    """A batch on its way to the device, and the memory it comes from, which must stay until `event`."""

    images: torch.Tensor
    targets: Any
    rows: npt.NDArray[np.uint8]
    event: torch.cuda.Event


class _Slots:
    """Which slots are free. One comes back when the last reference to its batch is gone."""

    def __init__(self, shared: SharedSlots) -> None:
        self.shared = shared
        self.free = deque(range(shared.count))  # appended to by finalizers, in whichever thread they run

    def hand_over(self, slot: int, samples: int, busy: int) -> npt.NDArray[np.uint8]:
        """The first `samples` images in `slot`; a copy when the caller holds so many batches that
        the workers, who have `busy` slots, would be without."""
        pixels = self.shared[slot][:samples]
        if self.shared.count - len(self.free) - busy > _HELD_BY_CALLER:
            copy = pixels.copy()
            self.free.append(slot)
            return copy
        weakref.finalize(pixels, self.free.append, slot).atexit = False
        return pixels


class _Normalize:
    """uint8 images -> (images / 255 - mean) / std, of `dtype`, in channels-last memory."""

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

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(self.dtype).mul_(self.scale).add_(self.offset)


def as_device(device: torch.device | str | None) -> torch.device:
    """With its number, if it is one of several: which is the current one may change."""
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise OptionError(f"device: {str(error).partition('. ')[0]}, got {device!r}") from None
    if found.type != "cuda":
        return found
    if not torch.cuda.is_available():
        raise OptionError(f"device: expected one that this machine has, got {device!r}, and torch sees no CUDA")
    return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)


def _to_device(targets: Any, device: torch.device) -> Any:
    """Tensors, also those in lists and tuples, on `device`; all else as it is."""
    if isinstance(targets, torch.Tensor):
        return targets.to(device, non_blocking=True)
    if isinstance(targets, (list, tuple)):
        return type(targets)(_to_device(target, device) for target in targets)
    return targets


def _tensors(targets: Any) -> Iterator[torch.Tensor]:
    if isinstance(targets, torch.Tensor):
        yield targets
    elif isinstance(targets, (list, tuple)):
        for target in targets:
            yield from _tensors(target)


def _page_lock(shared: SharedSlots, device: torch.device) -> None:
    """Let CUDA copy from the slots without a detour. Undone before their memory goes."""
    address, nbytes = shared.memory.ctypes.data, shared.memory.nbytes
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        code = int(runtime.cudaHostRegister(address, nbytes, _PORTABLE))
    if code != 0:
        raise LoaderError(f"CUDA cannot lock {nbytes / 1e6:.0f} MB of memory (error {code}); see ulimit -l")
    weakref.finalize(shared, _unlock, os.getpid(), runtime, address)


def _unlock(owner: int, runtime: Any, address: int) -> None:
    if os.getpid() == owner:  # in a forked child it is the parent's
        runtime.cudaHostUnregister(address)
