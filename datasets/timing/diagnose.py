"""diagnose: time a loader and a training step separately and together, try changes, and find the bottleneck."""

from __future__ import annotations

import math
import random
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import count, pairwise
from statistics import fmean, geometric_mean, median, stdev
from typing import Any, NamedTuple

import torch

from presize.datasets.loader import Loader
from presize.datasets.make_loader import CountingLoader
from presize.datasets.reading.transfer import accelerator, as_device, tensors_of, to_device
from presize.datasets.timing.epochs import (
    LEAST,
    SHORTEST_S,
    Budget,
    Clock,
    Repeated,
    an_epoch,
    count_images,
    failed,
    on_host,
    repeat,
    taken,
    together,
)  # fmt: skip
from presize.datasets.timing.loading import changed, in_channels_last, measure_loading
from presize.errors import DiagnosisError
from presize.formatting import seconds_text
from presize.measure.diagnosis import WORTH_WHILE, Alternative, Change, Diagnosis, with_start
from presize.measure.profile import Profile, check_unprofiled, own_python
from presize.measure.simulation import Times
from presize.measure.stages import noise_of
from presize.options import check_above_0
from presize.system.resources import read_cpu

_MOST_BATCHES = 200  # limit for each part of the measurement
_PARTS = 60  # a part of the survey gets all seconds divided by this
_OTHER_STEP = 1.1  # ratio of step times on two loaders that is worth a note; less may be chance
_FASTER = 1.03  # speed-up of the step by another memory layout from which that is tried
_PROFILED_STEPS = 5
_OWN_PYTHON = 0.10  # share of a step in the user's Python that is worth reporting

_ROUNDS = 3  # at least, if there is time
_PLANNED_ROUNDS = 4  # the time of a training run allows for this many
_ENOUGH = 0.10  # error of a figure that needs no more rounds
_CHUNKS = 8  # parts of a run of training, whose spread gives its error
_LEAST_TRIAL = 8  # batches per run; without time for three rounds of these, fewer changes are tried
_FEW_CHANGES = 2

_ENDED = "A loader ended early: figures are based on the batches that it gave."


def diagnose(
    loader: Iterable[Any],
    step: Callable[[Any], Any],
    *,
    seconds: float = 60.0,
    device: torch.device | str | None = None,
    alternatives: Mapping[str, Iterable[Any]] | None = None,
    storage_images_per_s: float | None = None,
    notes: Iterable[str] = (),
    on_step: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Read batches of `loader` without a step, run `step` on one batch that stays on the device, do both together, and
    find the bottleneck. Then try changes that could help, in rounds that include unchanged training.

    KeyboardInterrupt passes through.

    Args:
        loader: Iterable of batches: a DataLoader, a Loader, a generator. A batch is a tensor of images, a sequence or
            a mapping that begins with one, a list of samples, or anything with a length. Each measurement calls iter()
            on it; an iterator is continued. The position of a presize loader and torch's random state are restored
            afterwards.
        step: Function that trains on a batch from the loader: it copies the batch to the device, computes and updates.
            It really trains. It may return before the device is done.
        seconds: Time for the whole diagnosis, above 0. At least one round is run. After three rounds it ends early
            once each figure that matters is known to 10%.
        device: Device that `step` computes on; None for an accelerator if there is one.
        alternatives: Other loaders that `step` can train on, with batches of about the same size, keyed by the advice
            to use them ("Read the LMDB dataset"). The advice says how much faster training was with each.
        storage_images_per_s: Images/s that the disk delivers with an empty page cache, for the evidence.
        notes: Sentences to add to the diagnosis.
        on_step: Callback before each part of the diagnosis, with its description.

    Raises:
        OptionError: An option is out of range.
        DiagnosisError: There is no batch, another profiler is active, or the loader or the step fails; its error is
            then the cause.
    """
    check_above_0("seconds", seconds)
    check_unprofiled()
    begin = time.perf_counter()
    part = Budget(_MOST_BATCHES, seconds / _PARTS)
    others = dict(alternatives or {})
    where = as_device(device or accelerator())
    training = _Training(step, where, Clock(where))
    with _restored(loader, *others.values()), _Trials() as trials:
        on_step("reading batches without training")
        loading, batch = measure_loading(loader, part)
        on_step("training on one batch")
        resident = training.repeat(batch, part)
        on_step("training on the batches of the loader")
        epoch = _batches_in(loader)
        now = trials.enter(loader)
        first = _train(now, training, part.seconds, max(loading.workers, 1), epoch)
        if first is None:
            raise DiagnosisError(
                "loader: expected more batches for training, got none; give an iterable that can be iterated again"
            )
        load_s, step_s, trained_s = loading.load.mean_s, resident.mean_s, loading.images / first.images_per_s
        # An unknown iterable makes batches between steps or, like one worker, during steps: take the closer model.
        if not loading.chosen and trained_s < (load_s + step_s + max(load_s, step_s)) / 2:
            loading = replace(loading, workers=1, parts={}, functions=(), frames={})  # these profile only waiting
        found = []
        for name, other in others.items():
            on_step(f"reading batches and training on one: {name}")
            its, one = measure_loading(other, part)
            found.append(Alternative(name, its, training.repeat(one, part).step))
        survey = Diagnosis(
            loading=loading,
            step=resident.step,
            step_cores=resident.cores,
            copied_s=_copied_s(training, batch, resident, part),
            rates=(first.images_per_s,),
            batches=first.batches,
            start_s=first.start_s,
            epoch_batches=epoch,
            cores=read_cpu().usable,
            device=training.device.type,
            alternatives=tuple(found),
            layout_step=_layout_step(training, batch, part),
            own_python=_own_python(training, batch, resident, part),
            storage_images_per_s=storage_images_per_s,
        )
        left_s = begin + seconds - time.perf_counter()
        changes, rounds = survey.changes(), _PLANNED_ROUNDS
        if _ROUNDS * sum(_least_s(survey, change) for change in (None, *changes)) > left_s:
            changes, rounds = changes[:_FEW_CHANGES], _ROUNDS
        sources, loaders = [loader, *others.values()], [now]
        for change in changes:
            at = 0 if change.alternative is None else 1 + change.alternative
            loaders.append(trials.enter(sources[at], **change.options))
        run_s = max(left_s / rounds / (1 + len(loaders)), part.seconds)
        result = _tried(survey, training, batch, changes, loaders, run_s, begin + seconds, on_step)
    return replace(result, notes=(*notes, *result.notes, *_notes(result)), seconds=time.perf_counter() - begin)


def _least_s(survey: Diagnosis, change: Change | None) -> float:
    """Return the seconds of the shortest useful run of training."""
    pipeline = survey.pipeline() if change is None else change.pipeline
    burst = max(pipeline.workers, 1)
    return survey.loading.images * (burst + max(burst, _LEAST_TRIAL)) / survey.simulated(pipeline)


class _Trials(ExitStack):
    """Context of changed copies of loaders; their persistent workers end with it."""

    def enter(self, loader: Iterable[Any], **options: Any) -> Iterable[Any]:
        copied = changed(loader, **options)
        if isinstance(copied, Loader):
            self.callback(copied.close)
        elif isinstance(copied, torch.utils.data.DataLoader):
            self.callback(setattr, copied, "_iterator", None)
            if copied.num_workers and copied.persistent_workers:
                next(iter(copied), None)  # starts the workers, so that no timed epoch is the first
        return copied


def _batches_in(loader: Iterable[Any]) -> int | None:
    """Return the number of batches of an epoch; None if the loader has no length."""
    try:
        return len(loader) or None  # type: ignore[arg-type]
    except TypeError:
        return None


def _tried(
    survey: Diagnosis, training: _Training, batch: Any, changes: Sequence[Change], loaders: Sequence[Iterable[Any]],
    run_s: float, ends_s: float, on_step: Callable[[str], None],
) -> Diagnosis:  # fmt: skip
    """Run rounds: training unchanged and with each change, in random order, for `run_s` seconds each, with the step
    before and after. `loaders`: the present one, then one per change. End when enough is known, or by `ends_s`."""
    shuffled = random.Random(0)
    workers = [survey.loading.workers, *(change.pipeline.workers for change in changes)]
    runs: list[list[_Trained]] = [[] for _ in loaders]
    alone: list[Repeated] = []
    half = Budget(_MOST_BATCHES, run_s / 2)
    found = survey
    for number in count(1):
        begin_s = time.perf_counter()
        on_step(f"round {number}: training unchanged" + (", and with each change" if changes else ""))
        alone.append(training.repeat(batch, half))
        for at in shuffled.sample(range(len(loaders)), len(loaders)):
            ran = _train(loaders[at], training, run_s, max(workers[at], 1), survey.epoch_batches)
            if ran is None:
                return replace(found, notes=(_ENDED,))
            runs[at].append(ran)
        # Also after training, so that a drift in the machine's speed affects step and training alike.
        alone.append(training.repeat(batch, half))
        found = _found(survey, changes, runs, alone)
        if any(of[-1].ended for of in runs):
            return replace(found, notes=(_ENDED,))
        now_s = time.perf_counter()
        if now_s + (now_s - begin_s) > ends_s or (number >= _ROUNDS and _is_known(found)):
            break
    return found


def _found(
    survey: Diagnosis, changes: Sequence[Change], runs: Sequence[Sequence[_Trained]], alone: Sequence[Repeated]
) -> Diagnosis:
    now, *others = runs
    step = together(alone)
    # The step alone was measured apart from training. Where training on the same batches was faster, it was too slow.
    same = [now, *(of for change, of in zip(changes, others, strict=True) if not change.has_own_step)]
    fastest = max(geometric_mean(ran.images_per_s for ran in of) for of in same)
    factor = min(survey.loading.images / fastest / step.mean_s, 1.0)
    found = replace(
        survey,
        step=step.step.times(factor),
        step_cores=step.cores,
        copied_s=max(survey.copied_s - survey.step.mean_s, 0.0) + factor * step.mean_s,
        rates=tuple(ran.images_per_s for ran in now),
        within=median(ran.within for ran in now),
        noise=noise_of([*([ran.images_per_s for ran in of] for of in runs), [one.mean_s for one in alone]]),
        batches=now[-1].batches,
        start_s=median(ran.start_s for ran in now),
    )
    tried = [
        (change, [ran.images_per_s for ran in of], median(ran.within for ran in of))
        for change, of in zip(changes, others, strict=True)
    ]
    return found.with_trials(tried)


def _is_known(found: Diagnosis) -> bool:
    """Return whether the present rate, and the gain of each change that may be the best, are precise enough."""
    gains = [one.gain for one in found.tried]
    most = max((gain.low for gain in gains), default=1.0)
    matters = [gain for gain in gains if gain.high >= max(WORTH_WHILE, most)]
    return all(one.error <= _ENOUGH for one in [found.images_per_s, *matters])


@contextmanager
def _restored(*loaders: Iterable[Any]) -> Generator[None, None, None]:
    """Restore presize's loaders and torch's random state on the CPU at exit. Silence its warning of many workers."""
    states = [(loader, loader.state_dict()) for loader in loaders if isinstance(loader, (Loader, CountingLoader))]
    with torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        try:
            yield
        finally:
            for loader, state in states:
                loader.load_state_dict(state)


class _Training(NamedTuple):
    step: Callable[[Any], Any]
    device: torch.device
    clock: Clock

    def repeat(self, batch: Any, budget: Budget) -> Repeated:
        """Repeat the step on one batch that is already on the device."""
        return repeat(self.clock, self.step, batch, budget, lambda batch: to_device(batch, self.device))


def _copied_s(training: _Training, batch: Any, resident: Repeated, budget: Budget) -> float:
    """Return the seconds of a step that first copies the batch from the host to the device."""
    if training.device.type == "cpu" or not any(tensor.device.type == "cpu" for tensor in tensors_of(batch)):
        return resident.mean_s
    return repeat(training.clock, training.step, on_host(batch, training.device), budget).mean_s


def _layout_step(training: _Training, batch: Any, part: Budget) -> Times | None:
    """Return the time of the step on the batch in channels-last memory; None if that is not faster."""
    other = in_channels_last(batch)
    if other is None:
        return None
    half = part._replace(seconds=part.seconds / 2)
    pairs = [[training.repeat(one, half) for one in (batch, other)] for _ in range(2)]
    present, changed_step = map(together, zip(*pairs, strict=True))
    return changed_step.step if present.mean_s >= _FASTER * changed_step.mean_s else None


def _own_python(training: _Training, batch: Any, resident: Repeated, part: Budget) -> tuple[float, str] | None:
    """Return Diagnosis.own_python from profiled steps. `resident`: the step without a profiler."""
    profiles: list[Profile] = []

    def profiled(batch: Any) -> None:
        profiles.append(Profile(time.thread_time))
        profiles[-1].runcall(training.step, batch)

    training._replace(step=profiled).repeat(batch, Budget(_PROFILED_STEPS, part.seconds))
    # Take the median step, because any of them may collect garbage of other code.
    frames = sorted(map(own_python, profiles), key=lambda frames: sum(frames.values()))[len(profiles) // 2]
    own_s = sum(frames.values())
    return (own_s, next(iter(frames))) if own_s >= _OWN_PYTHON * min(resident.samples_s) else None


class _Trained(NamedTuple):
    """Result of training on the batches of a loader."""

    images_per_s: float  # includes the start of an epoch of known length
    within: float  # standard error of this rate, as a share, from the spread of its parts
    start_s: float  # to the first batch of an epoch
    batches: int
    ended: bool  # whether the loader ran out of batches


_Edge = tuple[float, int]
"""A moment, and the number of images trained on until then."""


def _train(
    loader: Iterable[Any], training: _Training, seconds: float, burst: int, epoch_batches: int | None
) -> _Trained | None:
    """Train for `seconds` on whole epochs. If an epoch takes longer, count whole bursts instead, after the first burst
    and a quarter of the time, in which new processes allocate memory. Returns None if there is no batch."""
    done = images = skipped = 0

    def edge() -> _Edge:
        training.clock.wait()
        return time.perf_counter(), images

    epochs, bursts, starts = [edge()], list[_Edge](), list[float]()
    begin_s, _ = epochs[0]
    while True:
        before = done
        with closing(taken(an_epoch(loader))) as batches:
            for batch in batches:
                if done == before:
                    starts.append(time.perf_counter() - epochs[-1][0])
                images += count_images(batch)
                try:
                    training.step(batch)
                except Exception as error:
                    raise failed("step", done, "steps", error) from error
                del batch  # frees its memory for the next one
                done += 1
                if before or done % burst:  # only the first epoch, at the end of a burst
                    continue
                now = time.perf_counter()
                if not bursts:
                    if now - begin_s >= seconds / 4 or done >= _MOST_BATCHES:
                        bursts, skipped = [edge()], done
                    continue
                bursts.append((now, images))
                enough = done - skipped >= LEAST and now - bursts[0][0] >= seconds / 2
                if done - skipped >= _MOST_BATCHES or (enough and now - begin_s >= seconds):
                    of = None if epoch_batches is None else epoch_batches * images / done
                    rate = with_start(_rates([bursts[0], edge()])[0], starts[0], of)
                    return _Trained(rate, _within(bursts), starts[0], done, ended=False)
        if not done:
            return None
        ended = done == before  # as an iterator that was used up
        if not ended:
            epochs.append(edge())
        spent = done >= LEAST and epochs[-1][0] - begin_s >= seconds
        if ended or spent or done >= _MOST_BATCHES:
            (rate,) = _rates([epochs[0], epochs[-1]])
            return _Trained(rate, _within(epochs), median(starts), done, ended)


def _rates(edges: Sequence[_Edge]) -> list[float]:
    """Return the rate from each edge to the next."""
    return [
        (images - images_before) / max(now_s - before_s, SHORTEST_S)
        for (before_s, images_before), (now_s, images) in pairwise(edges)
    ]


def _within(edges: Sequence[_Edge]) -> float:
    """Return the standard error of the mean rate between edges, as a share, from the spread of parts; 0 if too few."""
    rates = _rates(edges[:: max((len(edges) - 1) // _CHUNKS, 1)])
    return stdev(rates) / fmean(rates) / math.sqrt(len(rates)) if len(rates) >= _CHUNKS // 2 else 0.0


def _notes(found: Diagnosis) -> Iterator[str]:
    if not found.loading.chosen:
        how = "during" if found.loading.workers else "between"
        yield f"Only the batches of this loader can be observed; it seems to load them {how} steps."
    # Another memory layout of batches can make the step itself faster or slower.
    for name, other, step in found.alternatives:
        its_s, step_s = step.mean_s * found.loading.images / other.images, found.step.mean_s
        if max(its_s / step_s, step_s / its_s) >= _OTHER_STEP:
            yield f"{name}: a step on its batches takes {seconds_text(its_s)} instead of {seconds_text(step_s)}."
