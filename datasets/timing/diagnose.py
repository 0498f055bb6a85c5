"""diagnose: run a loader and a training step apart and together, and tell what holds training back."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from presize.datasets.loader import Loader, as_device
from presize.datasets.make_loader import CountingLoader
from presize.datasets.timing.epochs import Clock, clock_of, tensors_of, to_device
from presize.datasets.timing.instrument import Fetch, timed
from presize.datasets.timing.loading import LEAST, TimeBox, closed, failed, mean_span_s, measure_loading
from presize.errors import DiagnosisError
from presize.formatting import seconds_text
from presize.measure.diagnosis import WORTH_WHILE, Diagnosis
from presize.measure.loader_alone import Alternative, Loading
from presize.measure.simulate import Times
from presize.options import check_above_0, check_range
from presize.system.machine import read_cpu

_WARM_UP_STEPS = 2
_MOST_CROWDED = 16
_SHORTEST_S = 1e-9


def diagnose(
    loader: Iterable[Any],
    step: Callable[[Any], Any],
    *,
    steps: int = 100,
    seconds: float = 10.0,
    device: torch.device | str | None = None,
    alternatives: Mapping[str, Iterable[Any]] | None = None,
    storage_images_per_s: float | None = None,
    notes: Iterable[str] = (),
    on_step: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Read batches of `loader` without a step, run `step` on one batch that stays on the device, do both, and say what
    training waits for and what would help.

    loader: any iterable of batches: a DataLoader, a Loader, a generator. A batch is a tensor of images, a sequence or
        a mapping that begins with one, or anything with a length. It is begun anew for each part, an iterator is read
        on. The place in the order of a loader of presize, and torch's random numbers, are as before afterwards.
    step: what training does with a batch as it comes: copies it to the device, computes, updates. It is done for
        real: what it trains is trained. It need not have finished when it returns. Or a
        presize.datasets.timing.epochs.Step.
    steps, seconds: each part ends after so many batches, from 3, or so many seconds above 0 from its first one, if that
        is earlier, but not before it has a few.
    device: what `step` computes on; None takes CUDA where there is any.
    alternatives: other loaders of about as large batches, which `step` can train on too, by what using them means in
        words ("Read the LMDB dataset"): how much training would gain by each becomes a part of the advice.
    storage_images_per_s: how many images the disk gives when nothing is in the page cache, for the evidence.
    notes: what else has to be said, in sentences. on_step: told in words what happens next.

    There are up to seven parts, and three or four for each alternative. Raises OptionError for options that cannot
    be, and DiagnosisError when there is no batch, or when the loader or the step fails, with their error as its
    cause. KeyboardInterrupt passes through.
    """
    check_range("steps", steps, LEAST, 1_000_000)
    check_above_0("seconds", seconds)
    begin = time.perf_counter()
    limits = TimeBox(steps, seconds)
    loader = _readable_again(loader)
    others = {name: _readable_again(other) for name, other in (alternatives or {}).items()}
    training = _Training.of(step, as_device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    with _left_as_it_was(loader, *others.values()):
        on_step("reading batches without training")
        cores = read_cpu().usable
        measured = measure_loading(loader, limits, min(int(cores), _MOST_CROWDED))
        loading, batch = measured.loading, measured.batch
        on_step("training on one batch")
        half = TimeBox(max(limits.batches // 2, LEAST), limits.seconds / 2)
        resident = _repeat(training, batch, half, resident=True)
        on_step("training on the batches of the loader")
        trained = _train(loader, training, limits, max(loading.workers, 1))
        on_step("training on one batch again")
        # Before and after: a machine that is getting slower or faster is then the same to both, in the mean.
        resident += _repeat(training, batch, half, resident=True)
        copies = _copies(training, batch, resident, limits)
        found = []
        for name, other in others.items():
            on_step(f"reading batches and training on one: {name}")
            read = measure_loading(other, limits)
            found.append(Alternative(name, read.loading, _repeat(training, read.batch, limits, resident=True).step))
    if not loading.chosen:
        loading = _told_apart(loading, resident.mean_s, trained.step_s)
    return Diagnosis(
        loading=loading,
        step=resident.step,
        step_cores=resident.cores,
        copied_s=copies.pinned_s,
        unpinned_s=copies.unpinned_s,
        pinned=copies.is_pinned,
        trained_s=trained.step_s,
        batches=trained.batches,
        warmup_steps=trained.warmup_steps,
        cores=cores,
        load_slowdown=1.0 if trained.span_s is None or not measured.span_s else trained.span_s / measured.span_s,
        step_slowdown=trained.on_batch_s / copies.pinned_s,
        device=training.device.type,
        alternatives=tuple(found),
        storage_images_per_s=storage_images_per_s,
        notes=(*notes, *_notes(trained, loading, limits), *_step_notes(resident.mean_s, loading, found)),
        seconds=time.perf_counter() - begin,
    )


def _readable_again(loader: Iterable[Any]) -> Iterable[Any]:
    return _ReadOn(loader) if isinstance(loader, Iterator) else loader


class _ReadOn:
    """An iterator, to be read by several parts one after the other: what ends one of them does not end it."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                batch = next(self.batches)
            except StopIteration:
                return
            yield batch
            del batch


@contextmanager
def _left_as_it_was(*loaders: Iterable[Any]) -> Generator[None, None, None]:
    """The orders of these loaders, where they are presize's, and torch's random numbers on the CPU."""
    states = [(loader, loader.state_dict()) for loader in loaders if isinstance(loader, (Loader, CountingLoader))]
    with torch.random.fork_rng(devices=()):
        try:
            yield
        finally:
            for loader, state in states:
                loader.load_state_dict(state)


@dataclass(frozen=True)
class _Training:
    """A step in two ways: on_batch is given batches as they come, on_placed what place() has made of one."""

    device: torch.device
    clock: Clock
    place: Callable[[Any], Any]
    on_placed: Callable[[Any], Any]
    on_batch: Callable[[Any], Any]

    @classmethod
    def of(cls, step: Any, device: torch.device) -> _Training:
        if hasattr(step, "place") and hasattr(step, "clock"):  # a presize.datasets.timing.epochs.Step
            return cls(device, step.clock, step.place, step, lambda batch: step(step.place(batch)))
        # A batch that is on the device already costs it nothing to copy.
        return cls(device, clock_of(device), lambda batch: to_device(batch, device), step, step)


@dataclass(frozen=True)
class _Repeated:
    """Steps on one batch: the seconds of each, and how many cores this process kept busy."""

    samples_s: list[float]
    cores: float

    @property
    def mean_s(self) -> float:
        return fmean(self.samples_s)

    def __add__(self, more: _Repeated) -> _Repeated:
        return _Repeated(self.samples_s + more.samples_s, (self.cores + more.cores) / 2)

    @property
    def step(self) -> Times:
        return Times.measured(self.samples_s)


def _repeat(training: _Training, batch: Any, limits: TimeBox, *, resident: bool) -> _Repeated:
    """resident: with the batch on the device already."""
    clock = training.clock
    done = 0
    try:
        step, batch = (training.on_placed, training.place(batch)) if resident else (training.on_batch, batch)
        for _ in range(_WARM_UP_STEPS):
            step(batch)
            done += 1
        clock.wait()
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        marks = [clock.mark()]
        while not limits.reached(len(marks) - 1, LEAST, begin_s):
            step(batch)
            done += 1
            marks.append(clock.mark())
        cpu_s = time.process_time() - cpu_s  # before waiting, which may keep a core busy for nothing
        asked_s = time.perf_counter() - begin_s
        clock.wait()
    except Exception as error:
        raise failed("step", done, "steps on one batch", error) from error
    # A step that does nothing may take less than a clock can tell, and more than no time.
    return _Repeated([max(seconds, _SHORTEST_S) for seconds in clock.between(marks)], cpu_s / max(asked_s, _SHORTEST_S))


@dataclass(frozen=True)
class _Copies:
    """Seconds of a step that is given a batch in page-locked memory; in other memory, None where that is the same.
    is_pinned: whether the loader's batches are page-locked, or on the device already."""

    pinned_s: float
    unpinned_s: float | None
    is_pinned: bool


def _copies(training: _Training, batch: Any, resident: _Repeated, limits: TimeBox) -> _Copies:
    tensors = [tensor for tensor in tensors_of(batch) if tensor.device.type == "cpu"]
    if training.device.type != "cuda" or not tensors:
        return _Copies(resident.mean_s, None, True)
    pinned, unpinned = (
        _repeat(training, _each_tensor(batch, change), limits, resident=False).mean_s
        for change in (torch.Tensor.pin_memory, torch.Tensor.clone)
    )
    return _Copies(pinned, unpinned, tensors[0].is_pinned())


def _each_tensor(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: _each_tensor(part, change) for name, part in batch.items()}
    return [_each_tensor(part, change) for part in batch] if isinstance(batch, (list, tuple)) else batch


@dataclass(frozen=True)
class _Trained:
    """step_s: seconds of a step of training, over `batches` less the first `warmup_steps`. ended: the loader had no
    more. on_batch_s: of these what the step itself took. span_s: of a worker for a batch, None if that is not known."""

    step_s: float
    on_batch_s: float
    span_s: float | None
    batches: int
    warmup_steps: int
    ended: bool


def _train(loader: Iterable[Any], training: _Training, limits: TimeBox, warmup_steps: int) -> _Trained:
    """Train on batches as they come. `warmup_steps`: steps to leave out, which find what workers made at the same
    time."""
    clock, done, ended = training.clock, 0, False
    begin_s = edge_s = first_s = time.perf_counter()
    fetches: list[Fetch] = []
    marks: list[Any] = []
    batches = timed(loader, fetches)
    with closed(batches):
        while not limits.reached(done, warmup_steps + LEAST, first_s):
            try:
                batch = next(batches)
            except StopIteration:
                ended = True
                break
            except Exception as error:
                raise failed("loader", done, "batches", error) from error
            if done == 0:
                first_s = time.perf_counter()
            try:
                marks.append(clock.mark())
                training.on_batch(batch)
                marks.append(clock.mark())
                del batch  # its memory may be wanted for the next one
                done += 1
                if done == warmup_steps:
                    clock.wait()
                    edge_s = time.perf_counter()
            except Exception as error:
                raise failed("step", done, "steps", error) from error
        clock.wait()
        end_s = time.perf_counter()
    if not done:
        raise DiagnosisError("loader: expected batches for training, too, got no more; an iterator is read only once")
    if done <= warmup_steps:
        warmup_steps, edge_s = 0, begin_s
    spans = clock.between(marks)[::2]
    return _Trained(
        step_s=(end_s - edge_s) / (done - warmup_steps),
        on_batch_s=fmean(spans[warmup_steps:]),
        span_s=mean_span_s(fetches[warmup_steps:] or fetches) if fetches else None,
        batches=done,
        warmup_steps=warmup_steps,
        ended=ended,
    )


def _told_apart(loading: Loading, resident_s: float, trained_s: float) -> Loading:
    """Of an iterable that nothing is known of: whether it makes batches during the step, as one worker would, or
    between steps, by which of the two the time of training is nearer to."""
    load_s = loading.load.mean_s
    between, during = load_s + resident_s, max(load_s, resident_s)
    if trained_s >= (between + during) / 2:
        return loading
    return replace(loading, workers=1, parts={}, functions=())  # what was profiled was waiting


def _notes(trained: _Trained, loading: Loading, limits: TimeBox) -> Iterator[str]:
    if trained.ended and trained.batches < limits.batches:
        yield f"The loader ended after {trained.batches} batches: the figures are of no more than these."
    if trained.warmup_steps == 0:
        yield "There were so few batches that the start of the loader is a part of the time of training."
    if not loading.chosen:
        how = "during" if loading.workers else "between"
        yield f"Nothing is known of this loader but its batches: it seems to make them {how} steps."


def _step_notes(step_s: float, loading: Loading, alternatives: Iterable[Alternative]) -> Iterator[str]:
    """Where training gains or loses by more than that loading is faster."""
    for name, other, step in alternatives:
        its_s = step.mean_s * loading.images / other.images
        if max(its_s / step_s, step_s / its_s) >= WORTH_WHILE:
            yield f"{name}: a step on a batch of that takes {seconds_text(its_s)} instead of {seconds_text(step_s)}."
