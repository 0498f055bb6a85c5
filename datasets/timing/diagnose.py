"""diagnose: time a loader and a training step apart and together, and find the bottleneck."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from presize.datasets.loader import Loader
from presize.datasets.make_loader import CountingLoader
from presize.datasets.reading.transfer import as_device, map_tensors, tensors_of, to_device
from presize.datasets.timing.loading import Fetch, mean_span_s, measure_loading, timed
from presize.datasets.timing.loops import (
    LEAST,
    Budget,
    Clock,
    Repeated,
    TimedIterator,
    clock_of,
    closed,
    failed,
    repeat,
    run_steps,
)
from presize.errors import DiagnosisError
from presize.formatting import seconds_text
from presize.measure.diagnosis import WORTH_WHILE, Alternative, Diagnosis, Loading
from presize.options import check_above_0, check_range
from presize.system.resources import read_cpu

_MOST_SATURATING = 16
"""Workers of a saturation run at most, whatever the number of cores."""


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
    """Read batches of `loader` without a step, run `step` on one batch that stays on the device, do both together, and
    find the bottleneck and what would help.

    There are up to seven measurements, and three or four for each alternative. KeyboardInterrupt passes through.

    Args:
        loader: any iterable of batches: a DataLoader, a Loader, a generator. A batch is a tensor of images, a sequence
            or a mapping that begins with one, or anything with a length. Each measurement iterates it anew; an
            iterator is continued. Afterwards the position of a presize loader, and torch's random state, are restored.
        step: what training does with a batch as it comes: copies it to the device, computes, updates. It really
            trains. It may return before the device is done. Or a presize.datasets.timing.epochs.Step.
        steps: batches after which a measurement ends, from 3.
        seconds: from the first batch, above 0, after which a measurement ends if that is earlier and it has a few.
        device: what `step` computes on; None takes CUDA where there is any.
        alternatives: other loaders of about as large batches that `step` can train on too, by what using them means
            ("Read the LMDB dataset"). The advice says how much training would gain by each.
        storage_images_per_s: how many images the disk delivers when nothing is in the page cache, for the evidence.
        notes: sentences to add to the diagnosis.
        on_step: called with a description of what happens next.

    Raises:
        OptionError: an option is out of range.
        DiagnosisError: there is no batch, or the loader or the step fails; its error is the cause.
    """
    check_range("steps", steps, LEAST, 1_000_000)
    check_above_0("seconds", seconds)
    begin = time.perf_counter()
    budget = Budget(steps, seconds)
    loader = _readable_again(loader)
    others = {name: _readable_again(other) for name, other in (alternatives or {}).items()}
    training = _Training.of(step, as_device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    with _restored(loader, *others.values()):
        on_step("reading batches without training")
        cores = read_cpu().usable
        measured = measure_loading(loader, budget, min(int(cores), _MOST_SATURATING))
        loading, batch = measured.loading, measured.batch
        on_step("training on one batch")
        half = Budget(max(budget.batches // 2, LEAST), budget.seconds / 2)
        resident = _repeat(training, batch, half, resident=True)
        on_step("training on the batches of the loader")
        trained = _train(loader, training, budget, max(loading.workers, 1))
        on_step("training on one batch again")
        # Before and after training, so that a machine that slows down or speeds up affects both alike in the mean.
        resident += _repeat(training, batch, half, resident=True)
        copied_s, unpinned_s, is_pinned = _copies(training, batch, resident, budget)
        found = []
        for name, other in others.items():
            on_step(f"reading batches and training on one: {name}")
            read = measure_loading(other, budget)
            found.append(Alternative(name, read.loading, _repeat(training, read.batch, budget, resident=True).step))
    if not loading.chosen:
        loading = _classified(loading, resident.mean_s, trained.step_s)
    return Diagnosis(
        loading=loading,
        step=resident.step,
        step_cores=resident.cores,
        copied_s=copied_s,
        unpinned_s=unpinned_s,
        pinned=is_pinned,
        trained_s=trained.step_s,
        batches=trained.batches,
        warmup_steps=trained.warmup_steps,
        cores=cores,
        load_slowdown=1.0 if trained.span_s is None or not measured.span_s else trained.span_s / measured.span_s,
        step_slowdown=trained.on_batch_s / copied_s,
        device=training.device.type,
        alternatives=tuple(found),
        storage_images_per_s=storage_images_per_s,
        notes=(*notes, *_notes(trained, loading, budget), *_step_notes(resident.mean_s, loading, found)),
        seconds=time.perf_counter() - begin,
    )


def _readable_again(loader: Iterable[Any]) -> Iterable[Any]:
    return _ReadOn(loader) if isinstance(loader, Iterator) else loader


class _ReadOn:
    """An iterator that several measurements read in turn: ending one of them does not close it."""

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
def _restored(*loaders: Iterable[Any]) -> Generator[None, None, None]:
    """Restore the position of loaders that are presize's, and torch's random state on the CPU."""
    states = [(loader, loader.state_dict()) for loader in loaders if isinstance(loader, (Loader, CountingLoader))]
    with torch.random.fork_rng(devices=()):
        try:
            yield
        finally:
            for loader, state in states:
                loader.load_state_dict(state)


@dataclass(frozen=True)
class _Training:
    """A step in two ways: on_batch takes batches as they come, on_placed what place() returned for one."""

    device: torch.device
    clock: Clock
    place: Callable[[Any], Any]
    on_placed: Callable[[Any], Any]
    on_batch: Callable[[Any], Any]

    @classmethod
    def of(cls, step: Any, device: torch.device) -> _Training:
        if hasattr(step, "place") and hasattr(step, "clock"):  # a presize.datasets.timing.epochs.Step
            return cls(device, step.clock, step.place, step, lambda batch: step(step.place(batch)))
        # Such a step copies a batch that is already on the device at no cost.
        return cls(device, clock_of(device), lambda batch: to_device(batch, device), step, step)


def _repeat(training: _Training, batch: Any, budget: Budget, *, resident: bool) -> Repeated:
    """Repeat the step on one batch; resident: which is already on the device."""
    done = 0

    def step_once() -> None:
        nonlocal done
        step(batch)
        done += 1

    try:
        step, batch = (training.on_placed, training.place(batch)) if resident else (training.on_batch, batch)
        return repeat(training.clock, step_once, budget)
    except Exception as error:
        raise failed("step", done, "steps on one batch", error) from error


def _copies(training: _Training, batch: Any, resident: Repeated, budget: Budget) -> tuple[float, float | None, bool]:
    """Return the seconds of a step on a batch in pinned memory, those in pageable memory (None where that makes no
    difference), and whether the loader's batches are in pinned memory, or on the device already."""
    tensors = [tensor for tensor in tensors_of(batch) if tensor.device.type == "cpu"]
    if training.device.type != "cuda" or not tensors:
        return resident.mean_s, None, True
    pinned, unpinned = (
        _repeat(training, map_tensors(change, batch), budget, resident=False).mean_s
        for change in (torch.Tensor.pin_memory, torch.Tensor.clone)
    )
    return pinned, unpinned, tensors[0].is_pinned()


@dataclass(frozen=True)
class _Trained:
    """Training on the batches of a loader: mean seconds from step to step, over `batches` less the `warmup_steps`, of
    the step itself, and of a worker for a batch (None where not known); and whether the loader had no more."""

    step_s: float
    on_batch_s: float
    span_s: float | None
    batches: int
    warmup_steps: int
    ended: bool


def _train(loader: Iterable[Any], training: _Training, budget: Budget, warmup_steps: int) -> _Trained:
    """Train on batches as they come; the first `warmup_steps`, whose batches were made together, do not count."""
    fetches: list[Fetch] = []
    batches, done = timed(loader, fetches), 0
    taken = TimedIterator(batches, budget, warmup_steps + LEAST)

    def step(batch: Any) -> None:
        nonlocal done
        training.on_batch(batch)
        done += 1

    with closed(batches):
        try:
            steps = run_steps(taken, step, training.clock, warmup_steps)
        except DiagnosisError:  # of the loader
            raise
        except Exception as error:
            raise failed("step", done, "steps", error) from error
    if not done:
        raise DiagnosisError(
            "loader: expected more batches for training, got none; give an iterable that can be iterated again"
        )
    warmup_steps, spans = steps.warmup_steps, training.clock.between(steps.marks[1:])[::2]
    return _Trained(
        step_s=(steps.end_s - steps.edge_s) / (done - warmup_steps),
        on_batch_s=fmean(spans[warmup_steps:]),
        span_s=mean_span_s(fetches[warmup_steps:] or fetches) if fetches else None,
        batches=done,
        warmup_steps=warmup_steps,
        ended=taken.ended,
    )


def _classified(loading: Loading, resident_s: float, trained_s: float) -> Loading:
    """Decide whether an unknown iterable makes batches during the step, as one worker would, or between steps: by which
    of the two the time of training is closer to."""
    load_s = loading.load.mean_s
    between, during = load_s + resident_s, max(load_s, resident_s)
    if trained_s >= (between + during) / 2:
        return loading
    return replace(loading, workers=1, parts={}, functions=())  # the profile shows only waiting


def _notes(trained: _Trained, loading: Loading, budget: Budget) -> Iterator[str]:
    if trained.ended and trained.batches < budget.batches:
        yield f"The loader ended after {trained.batches} batches: the figures are based on these alone."
    if trained.warmup_steps == 0:
        yield "There were so few batches that the time of training includes the start of the loader."
    if not loading.chosen:
        how = "during" if loading.workers else "between"
        yield f"Of this loader only its batches can be observed: it seems to make them {how} steps."


def _step_notes(step_s: float, loading: Loading, alternatives: Iterable[Alternative]) -> Iterator[str]:
    """Where an alternative also makes the step itself faster or slower."""
    for name, other, step in alternatives:
        its_s = step.mean_s * loading.images / other.images
        if max(its_s / step_s, step_s / its_s) >= WORTH_WHILE:
            yield f"{name}: a step on its batches takes {seconds_text(its_s)} instead of {seconds_text(step_s)}."
