"""Loader: batches of crops, decoded directly into reused shared memory and copied to the device."""

from __future__ import annotations

import copy
import os
import sys
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from typing import Any, Literal, Unpack

import torch

from presize.datasets.applied import EachView
from presize.datasets.collate import collate
from presize.datasets.crops import Crop, Crops
from presize.datasets.dataset import LMDBDataset
from presize.datasets.fuse import AS_NUMPY
from presize.datasets.read_only import DataLoaderOptions, check_options, read_only
from presize.datasets.reading.batch_reader import BatchReader, TransformedReader
from presize.datasets.reading.memory import HELD_BY_CALLER, FreeSlots, SharedSlots, tensors_over
from presize.datasets.reading.order import Given, Last, Order, Schedule, check_seed, choose_order
from presize.datasets.reading.stored_image import check_decode
from presize.datasets.reading.transfer import (
    CPU,
    Box,
    Normalization,
    Normalize,
    Parts,
    Transfer,
    as_device,
    check_units,
    normalized,
)
from presize.datasets.reading.workers import (
    TIMEOUT_S,
    Answer,
    BatchRequest,
    Mode,
    Reader,
    WorkerPool,
    check_not_forked,
    checked_timeout,
    read,
    start_method,
    worker_counts,
)
from presize.datasets.sampler import EpochSampler
from presize.datasets.subsets import (
    as_lmdb_dataset,
    check_length,
    differ,
    fingerprint_of,
    keep_assigned,
    sampler_of,
    state_of,
    transforms_of,
)
from presize.errors import LoaderError, OptionError
from presize.options import check_choice, check_range

OnErrorInBatch = Literal["raise", "skip"]

_ImagesAs = tuple[Crops | None, float | None, Normalize | None, torch.dtype | None]
"""The options crop, flip, normalize and dtype."""

_ENDED_EARLY = (
    "this epoch ended early because its Loader was closed or began another epoch; to read two epochs at once, use two "
    "Loaders"
)


@read_only("make another Loader", torch.utils.data.DataLoader, options="", crop="")
class Loader:
    """A loader that crops images before it decodes them. Yields batches [images, targets], lists as from a DataLoader.

    images: uint8 (B, channels, height, width) in channels-last memory, on `device`; uint16 for 16-bit datasets; `dtype`
    with `normalize`. A tuple with several crops or companions, one tensor for each. With `transform`, its results,
    stacked. targets: int64 (B,), or other columns combined as by torch's default collate. Without targets, a batch is
    only its images.

    A batch that the caller keeps never changes; a forked child must copy what it needs. Workers persist between epochs;
    they end when an epoch is left early, on close(), and with the Loader. Only one epoch can run at a time. Only the
    attribute `crop` can be changed. Changes to the dataset and its transforms take effect at the next epoch.

    Args:
        dataset: an LMDBDataset, or a Subset or ConcatDataset of them.
        batch_size: samples in a batch, from 1.
        crop: the crop of each image, or several crops for as many views of it; None for the dataset's own.
        flip: the probability of a horizontal flip, from 0 to 1; None for the dataset's own.
        transform: called in the workers with each image, after crop, flip and normalize; None for the dataset's own.
            The image is of the type that LMDBDataset(decode=) names, with `normalize` a tensor. Results are tensors,
            arrays, PIL images and numbers, also in lists, tuples and dicts, of the same shape for all samples. torch's,
            NumPy's and Python's generators are seeded for each visit of a sample, except in threads, which share them.
        shuffle: True for a new order in each epoch, the same for any number of workers; or an order, such as
            ShardShuffled for a dataset larger than memory, or Weighted.
        sampler: instead of shuffle, any sampler or list of indices, such as torch's WeightedRandomSampler and
            DistributedSampler. The sampler must divide epochs among ranks itself, and its epochs cannot be resumed in
            the middle. A repeated index is cropped independently. The attribute `sampler` also has the attributes of
            this sampler.
        seed: random seed of the order and the crops; None for EpochSampler's default.
        num_workers: number of parallel readers; None uses every usable core, 0 reads in the caller's thread.
        mode: "processes" or "threads". Threads start faster, but Python's GIL lets only about two of them run at once.
        prefetch_factor: batches that each worker may read ahead, 1 to 64; None for 2, as in DataLoader.
        drop_last: drop a last batch that is not full.
        last: "keep" returns a last batch that is not full, "pad" fills it with samples from the epoch's beginning. None
            keeps it in one process, and pads it with several ranks.
        device: the device of batches. For CUDA, ROCm and XPU they are copied from pinned memory on a separate stream
            during the previous step; copies to other devices are synchronous.
        normalize: (mean, std) of each channel in units of 0 to 1, as in torchvision. CUDA, ROCm and XPU devices apply
            it; otherwise, and before a transform, the workers do. None for the values that fuse=True took over.
        dtype: type of normalized batches; None for float32.
        on_error: "raise" a DatasetError that names an image that is damaged or too small for the crop, or "skip" it:
            the batch is then shorter, and `skipped` counts the images.
        rank, ranks: this rank and the number of ranks; None for torch.distributed's if initialized, otherwise 0 of 1.
        timeout: seconds to wait for a batch before a LoaderError that names the worker; 0 waits forever.
        multiprocessing_context: start method of the processes, or a context; None for Python's default.
        options: DataLoader's other options, accepted if they change no batch: pin_memory, persistent_workers, in_order.

    Raises:
        OptionError: an option is out of range; while iterating, if results of the transform cannot be stacked.
        DatasetError: while iterating, for a damaged sample.
        LoaderError: while iterating, when a worker dies, does not answer, or cannot be started.
    """

    collate_fn = staticmethod(collate)
    generator = worker_init_fn = None
    in_order = True
    pin_memory_device = ""
    skipped = 0

    _pool: WorkerPool | None = None
    _slots: FreeSlots | None = None
    _running: object | None = None  # identifies the epoch that is being read
    _is_suspended = False  # True while the caller has the batch
    _delivered = 0
    _on_batch: Callable[[Answer], None] | None = None
    _resumed_crop: int | None = None

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[Any],
        batch_size: int,
        *,
        crop: Crops | None = None,
        flip: float | None = None,
        transform: Callable[[Any], Any] | None = None,
        shuffle: bool | Order | None = False,
        sampler: Iterable[int] | None = None,
        seed: int | None = None,
        num_workers: int | None = None,
        mode: Mode = "processes",
        prefetch_factor: int | None = None,
        drop_last: bool = False,
        last: Last | None = None,
        device: torch.device | str | None = None,
        normalize: Normalize | None = None,
        dtype: torch.dtype | None = None,
        on_error: OnErrorInBatch = "raise",
        rank: int | None = None,
        ranks: int | None = None,
        timeout: float = TIMEOUT_S,
        multiprocessing_context: str | BaseContext | None = None,
        **options: Unpack[DataLoaderOptions],
    ) -> None:
        self._source, self.transform = dataset, transform
        dataset = self._dataset_of(dataset)
        check_choice("mode", mode, Mode)
        check_choice("on_error", on_error, OnErrorInBatch)
        self.dataset = dataset
        self.batch_size = check_range("batch_size", batch_size, 1, 2**31)
        self.num_workers, self.prefetch_factor = worker_counts(num_workers, prefetch_factor)
        self.mode: Mode = mode
        self.drop_last = bool(drop_last)
        self.on_error: OnErrorInBatch = on_error
        self.device = as_device(device)
        self.multiprocessing_context = start_method(multiprocessing_context)
        check_options("Loader", options, _OF_DATALOADER)
        self.timeout = checked_timeout(timeout)
        self._transfer = Transfer(self.device)
        self.pin_memory = self._transfer.is_asynchronous
        self.persistent_workers = self.num_workers > 0
        if sampler is None:
            order = choose_order(len(dataset), shuffle, seed)
        else:
            _check_sampler(sampler, shuffle, rank, ranks)
            order = Given(sampler, len(dataset), check_seed(seed))
            rank, ranks = 0, 1
        self.sampler = sampler_of(dataset, order, batch_size, rank, ranks, drop_last, last)
        self.batch_sampler = torch.utils.data.BatchSampler(self.sampler, self.batch_size, self.drop_last)
        self._images_as: _ImagesAs = (crop, flip, normalize, dtype)
        self._owner = os.getpid()
        self._choose_reader(dataset)
        self._derived = transforms_of(dataset)
        self._is_finished = True

    @property
    def crop(self) -> Crop | tuple[Crop, ...] | None:
        """The crop of the next epoch: a crop, a tuple of crops for several views, or None for whole images. A new value
        takes effect at the next epoch; assign None for the dataset's own."""
        return self._reader_for(self.dataset, self._images_as)[0].crop

    @crop.setter
    def crop(self, crop: Crops | None) -> None:
        if "_is_finished" not in vars(self):
            raise OptionError("crop: is set by Loader.__init__; choose another name for your attribute")
        images_as = (crop, *self._images_as[1:])
        self._reader_for(self.dataset, images_as)
        self._images_as = images_as

    def _dataset_of(self, source: object) -> LMDBDataset:
        dataset = as_lmdb_dataset(source)
        if self.transform is not None:
            dataset = dataset._over(dataset.data, dataset._rows)
            dataset.transform = self.transform
        return dataset

    def _choose_reader(self, dataset: LMDBDataset) -> None:
        self._reader, self._normalize = self._reader_for(dataset, self._images_as)
        vars(self)["dataset"] = dataset
        self._read_as = self._images_as
        self._states = state_of(dataset), state_of(self._source)  # last: unchanged after an error

    def _reader_for(self, dataset: LMDBDataset, images_as: _ImagesAs) -> tuple[BatchReader, Normalization | None]:
        """Return the reader of batches, and the normalization to apply to them afterwards."""
        crop, flip, normalize, dtype = images_as
        rest, device = dataset._reading.rest, self.device if self._transfer.is_asynchronous else CPU
        if rest is AS_NUMPY:  # arrays are collated to the same tensor
            rest = None
        if dataset.normalize is not None:
            if normalize is not None:
                raise OptionError("normalize: fuse=True took over the transform's normalization; leave normalize= out")
            normalize = dataset.normalize
        elif normalize is not None:
            check_units(normalize)
        crop, flip = dataset.crop if crop is None else crop, dataset.flip if flip is None else flip
        try:
            companions, skips = dataset._reading.images.companions, self.on_error == "skip"
            reader = BatchReader(dataset.data, crop, flip, companions=companions, skips=skips)
        except OptionError as error:
            if rest is None or crop is not None:
                raise
            left = "" if dataset.fused is None else f" ({dataset.fused.reason})"
            raise OptionError(
                f"{error}; a Loader calls the transform with crops{left}: give the Loader crop=, give the dataset "
                "fuse=True, or use make_loader"
            ) from None
        dataset._targets.check_reader(reader)
        if rest is not None:
            device = CPU
            check_decode(dataset.decode, is_cropped=True)
            if isinstance(rest, EachView) and len(rest.transforms) != reader.views:
                count = len(rest.transforms)
                raise OptionError(f"crop: expected one for each of {count} views of the transform, got {reader.views}")
        return normalized(reader, normalize, dtype, device)

    def _follow_changes(self) -> None:
        """Choose a new reader if the crop, or an attribute of the dataset, a transform or a Subset has changed."""
        own, source = self._states
        dataset, derived = self.dataset, self._derived
        if differ(state_of(self._source), source):
            dataset = self._dataset_of(self._source)
            check_length(dataset, len(self.dataset))
            derived = transforms_of(dataset)
            keep_assigned(dataset, self.dataset, self._derived)
        elif not differ(state_of(dataset), own) and self._read_as is self._images_as:
            return
        self.close()
        if dataset is not self.dataset:
            self.sampler.fingerprint = fingerprint_of(dataset)
        self._choose_reader(dataset)
        self._derived = derived

    def __repr__(self) -> str:
        read_by = f"shuffle={self.sampler.order!r}, num_workers={self.num_workers}, device={str(self.device)!r}"
        return f"Loader({self.dataset!r}, {self.batch_size}, {read_by})"

    def __len__(self) -> int:
        """Return the number of batches on this rank in a whole epoch; a resumed epoch has fewer."""
        return self.sampler.schedule.batch_count(0)

    def __iter__(self) -> Iterator[Any]:
        return self._epoch()  # a generator: an unused iterator begins no epoch

    def _epoch(self) -> Generator[Any, None, None]:
        self._forget_if_forked()
        was_left = self._running is not None  # by a trainer that keeps the iterator
        if was_left and not self._is_suspended:  # that epoch is reading a batch into this memory
            self.close()
        elif was_left or (self._pool is not None and not self._pool.is_whole):  # killed since the last epoch
            self._end_workers()
        if (self.batch_sampler.batch_size, self.batch_sampler.drop_last) != (self.batch_size, self.drop_last):
            raise OptionError("batch_sampler: cannot be changed on an existing Loader; make another Loader")
        self._follow_changes()
        resumes = self.sampler.start > 0 and not self.sampler.begun
        if resumes and self._resumed_crop not in (None, _crc32(self._reader.crop)):
            raise OptionError(
                f"crop: the resumed epoch began with a different crop than {self._reader.crop!r}; assign its crop to "
                "loader.crop first"
            )
        running = self._running = object()
        self._is_suspended = False
        try:
            epoch, start = self.sampler.begin()
            schedule = _gatherable(self.sampler.schedule, start)
            self._delivered, count = 0, schedule.batch_count(start)
            reading = closing(self._transfer.send(self._read(schedule, epoch, start)))
            with _seen_by_accelerate(_remainder(schedule, start)) as status, reading as boxes:
                for box in boxes:
                    self._check_running(running)
                    self._delivered += 1  # before the yield: a batch counts as consumed when it is returned
                    is_last = self._delivered == count
                    if is_last:
                        status.end_of_dataloader = True
                        self._running = None  # before the yield: most trainers take only len(loader) batches
                    self._is_suspended = True
                    yield self._batch(*box.pop())  # without a name, so that the caller's `del` frees its memory
                    self._is_suspended = False
                    if not is_last:
                        self._check_running(running)
        except GeneratorExit:  # left early: keep the memory for the next epoch, since pinning is slow
            if self._running is running:
                self._end_workers()
            raise
        finally:
            if self._running is running:  # an error; else another epoch may be running
                self.close()

    def _check_running(self, running: object) -> None:
        check_not_forked(self._owner)
        if self._running is not running:
            raise LoaderError(_ENDED_EARLY)

    def _forget_if_forked(self) -> None:
        if self._owner != os.getpid():  # workers and memory are the parent's
            self._pool = self._slots = None
            self._transfer = Transfer(self.device)
            self._running, self._owner = None, os.getpid()

    def _check_idle(self) -> None:
        self._forget_if_forked()
        if self._running is not None:
            raise LoaderError("this Loader is in the middle of an epoch; finish it, or end it with close()")

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one to read; otherwise epochs follow one another. LoaderError during an epoch."""
        self._check_idle()
        self.sampler.set_epoch(epoch)
        self._delivered = 0

    def state_dict(self) -> dict[str, int]:
        """Return the position after the last batch that was returned, and a CRC of the crop, as a few integers."""
        begun, crop = self.sampler.begun, _crc32(self._reader.crop)
        if not begun and self.sampler.start > 0 and self._resumed_crop is not None:
            crop = self._resumed_crop
        return {**self.sampler.state_after(self._delivered if begun else 0, self.batch_size), "crop": crop}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where state_dict() was taken, with the same crop, and any batch size and number of workers or ranks.
        Raises LoaderError during an epoch, OptionError for a state of another order."""
        self._check_idle()
        self._follow_changes()
        self.sampler.load_state_dict(state)
        self._resumed_crop = state.get("crop")
        self._delivered = 0

    def close(self) -> None:
        """End the current epoch and the workers, and free the memory. The next epoch starts them again."""
        self._end_workers()
        self._slots = None

    def _end_workers(self) -> None:
        """End the current epoch and the workers, and keep the memory."""
        self._running = None
        if self._pool is not None and not self._pool.close():
            self._slots = None  # a thread that did not end in time may still write there
        self._pool = None
        if self._slots is not None:
            self._slots.take_back()

    def observed(self, workers: int, on_batch: Callable[[Answer], None]) -> Loader:
        """Return a copy with `workers` workers that shares the sampler and calls `on_batch` before each batch."""
        self._check_idle()
        copied = copy.copy(self)
        vars(copied).update(num_workers=workers, _on_batch=on_batch)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or another process needs to read epochs of its own: no workers, memory or device."""
        kept_out = ("_pool", "_slots", "_maker", "_running", "_is_suspended", "_on_batch", "_transfer", "_owner")
        return {name: value for name, value in vars(self).items() if name not in kept_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _transfer=Transfer(state["device"]), _owner=os.getpid())

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, schedule: Schedule, epoch: int, start: int) -> Generator[Box, None, None]:
        """Yield the batches of an epoch in order, as Parts with images in slots of shared memory. For an asynchronous
        device an empty box means that the next batch is not ready."""
        count = schedule.batch_count(start)
        if not count:
            return
        order = self.sampler.order

        def request_of(number: int) -> BatchRequest:
            positions = schedule.batch(start, number)
            samples, keys = self.dataset.records(order.samples(epoch, positions)), order.keys(epoch, positions)
            return BatchRequest(-1, samples, order.seed or 0, epoch, keys)

        running, (slots, pool) = self._running, self._begin(map(request_of, range(count)))
        pending: deque[BatchRequest] = deque()  # in order
        ready: dict[int, Answer] = {}  # by slot
        number = 0
        while number < count or pending:
            if pool is None and self._transfer.is_asynchronous:
                yield []
            while number < count and slots.can_take() and (pool.has_room() if pool else not pending):
                request = request_of(number)._replace(slot=slots.take())
                pending.append(request)
                number += 1
                if pool is not None:
                    pool.send(request)
                else:
                    ready[request.slot] = read(request, self._maker, slots.shared)
            self._transfer.pin(slots.shared)  # after forking, while workers read the first batches
            request = pending.popleft()
            while pool is not None and request.slot not in ready:
                if self._transfer.is_asynchronous and not pool.has_answer():
                    yield []
                ready.update((answer.slot, answer) for answer in pool.answers())
            answer = ready.pop(request.slot)
            if self._on_batch is not None:
                self._on_batch(answer)
            answer.check()
            self._check_running(running)  # else the slot belongs to another epoch
            self.skipped += len(answer.skipped)
            yield [self._parts(slots, request.without(answer.skipped))]

    def _parts(self, slots: FreeSlots, request: BatchRequest) -> Parts:
        tensors = tensors_over(self._maker.formats, slots.hand_over(request.slot, len(request.samples)))
        shown = self.dataset._targets.shown(self._reader, *request[1:])
        return tensors, self.dataset.batch_targets(request.samples, shown)

    def _begin(self, requests: Iterator[BatchRequest]) -> tuple[FreeSlots, WorkerPool | None]:
        """Allocate memory and start workers for an epoch of these requests, unless they exist."""
        if self._slots is None:
            self._maker = self._chosen_maker(requests)
            self._states = state_of(self.dataset), state_of(self._source)  # after the first call of a transform
            count = max(1, self.num_workers * self.prefetch_factor) + HELD_BY_CALLER
            shapes = [(self.batch_size, *format.row_shape) for format in self._maker.formats]
            self._slots = FreeSlots(SharedSlots(count, shapes))
        if self._pool is None and self.num_workers:
            how = self.prefetch_factor, self.timeout, self.multiprocessing_context
            self._pool = WorkerPool(self._maker, self.num_workers, self.mode, self._slots.shared, *how)
        return self._slots, self._pool

    def _chosen_maker(self, requests: Iterator[BatchRequest]) -> Reader:
        """Return the reader of batches, or one that also calls a transform and has learned its results."""
        reading = self.dataset._reading
        if reading.rest is None:
            return self._reader
        is_float = self._reader.formats[0].dtype.is_floating_point
        decode = "tensor" if is_float else reading.images.decode
        is_seeded = self.mode == "processes" or not self.num_workers
        maker = TransformedReader(self._reader, reading.rest, decode, is_seeded)
        maker.learn(request[1:] for request in requests)
        return maker

    def _batch(self, tensors: Sequence[torch.Tensor], targets: Any) -> Any:
        images = self._maker.structured(tensors)
        if self._normalize is not None:
            images = self._normalize.views(images, self._reader.views)
        return images if targets is None else [images, targets]


_ORDER = "give an order as shuffle=, such as Weighted or class_balanced; a Loader divides epochs among ranks"

_OF_DATALOADER: dict[str, tuple[Sequence[Any] | None, str]] = {
    "batch_sampler": ((None,), f"a Loader takes no batch_sampler; {_ORDER}"),
    "collate_fn": (
        (None, collate, torch.utils.data.default_collate),
        "a Loader does not call it, because it decodes into whole batches; use make_loader",
    ),
    "worker_init_fn": (
        (None,),
        "a Loader does not call it: crops, and the random numbers of a transform, are drawn from seed; leave it out",
    ),
    "generator": ((None,), "a Loader draws from seed=; pass that instead"),
    **dict.fromkeys(("in_order", "persistent_workers", "pin_memory", "pin_memory_device"), (None, "")),
}
"""DataLoader's options, for check_options()."""


def _check_sampler(sampler: object, shuffle: object, rank: int | None, ranks: int | None) -> None:
    if isinstance(sampler, EpochSampler):
        raise OptionError("sampler: give the order of an EpochSampler as shuffle=; a Loader divides epochs among ranks")
    if not (shuffle is None or shuffle is False):
        raise OptionError("sampler: cannot be combined with shuffle; leave one of the two out")
    if (rank, ranks) != (None, None):
        raise OptionError("rank: a sampler divides epochs among ranks itself; give a DistributedSampler, or shuffle=")


def _crc32(crop: object) -> int:
    return zlib.crc32(repr(crop).encode())


# ---- Hugging Face's Accelerate, which must know when an epoch ends ----


@dataclass(eq=False)
class _EpochStatus:
    """The part of Accelerate's DataLoaderStateMixin that its GradientState reads from the loader of a running epoch."""

    remainder: int  # samples of all ranks in the last batch, if it is not full; otherwise 0
    end_of_dataloader: bool = False  # whether the last batch was returned


@contextmanager
def _seen_by_accelerate(remainder: int) -> Iterator[_EpochStatus]:
    """Yield the status of an epoch, which Accelerate's accumulate() and gather_for_metrics() read meanwhile."""
    status, state = _EpochStatus(remainder), _accelerates("GradientState")
    if state is not None:
        state._add_dataloader(status)
    try:
        yield status
    finally:
        if (state := _accelerates("GradientState")) is not None:
            state._remove_dataloader(status)


def _gatherable(schedule: Schedule, start: int) -> Schedule:
    """Return a schedule whose last batches Accelerate can gather. Raises OptionError if their sizes differ."""
    state = _accelerates("PartialState")
    if state is None or schedule.ranks == 1 or schedule.ranks != state.num_processes:
        return schedule
    if schedule.last == "keep" and schedule.remainder(start) % schedule.ranks:
        raise OptionError(
            'last: "keep" gives the ranks batches of different sizes, on which Accelerate\'s gather() fails; give '
            'last="pad", whose repeated samples gather_for_metrics() leaves out, or drop_last=True'
        )
    return replace(schedule, in_blocks=True)


def _remainder(schedule: Schedule, start: int) -> int:
    """Return the samples of all ranks in the last batch if it is not full; 0 if a sampler divides the epoch instead,
    since only it knows them."""
    state = _accelerates("PartialState")
    return schedule.remainder(start) if state is None or schedule.ranks == state.num_processes else 0


def _accelerates(name: str) -> Any:
    kind = getattr(sys.modules.get("accelerate.state"), name, None)
    return kind() if kind is not None and kind._shared_state else None
