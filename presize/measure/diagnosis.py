"""Measured times of a loader and a training step -> the bottleneck, what would help, and by how much. Pure; no torch.

What could help is found by presize.measure.simulation, from the measured times. Then it is tried: training is run with
each change in turn, in rounds, and what it gives is what those runs gave. Nothing repairs the simulation by a
measurement: where they disagree, the diagnosis says by how much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from presize.formatting import factor_text, plural, rate_text, seconds_text
from presize.measure.profile import Part
from presize.measure.simulation import Pipeline, Timeline, Times, fewest_workers, simulate, sweep
from presize.measure.stages import VAGUE, Interval, Stages, explanation, headline, interval_text
from presize.pages.html import notebook_html

LEAST_CORES = 0.1
"""Loading that keeps less than that of a core busy does not need cores."""

WORDS: dict[Part, str] = {
    "read": "reading files",
    "decode": "decoding",
    "augment": "cropping and augmenting",
    "collate": "collating batches",
    "other": "other code",
}


@dataclass(frozen=True)
class Loading:
    """How a loader makes batches while nothing trains.

    Attributes:
        images: Images in a batch.
        load: Time of one worker, alone, to load a batch and hand it over.
        in_process: Time to load a batch in the training process.
        handover_s: Seconds that training takes to receive a batch that is ready.
        cores: CPU cores that loading one batch keeps busy.
        workers: Loader processes; 0 if batches are made in the training process.
        prefetch: Batches requested of each worker ahead.
        in_order: Whether batches come in the order in which they were requested; None if they always do.
        chosen: Whether the number of workers can be chosen. For an unknown kind of iterable it cannot.
        persistent: Whether workers live on from epoch to epoch; None where that cannot be chosen.
        batches_per_s: Rate of all workers together.
        first_batch_s: Seconds to the first batch.
        pinned: Whether its batches are in pinned memory, or on the device already.
        worker_s: Mean seconds per batch of each worker while all of them work.
        parts: Seconds of `load` by part; empty if not known.
        functions: (name, part, share of all own time) of the functions that took longest, the longest first.
        frames: Share of all time that is other code of a function outside of installed packages, by its name.
    """

    images: float
    load: Times
    in_process: Times
    handover_s: float
    cores: float
    workers: int
    prefetch: int
    in_order: bool | None
    chosen: bool
    batches_per_s: float
    first_batch_s: float
    persistent: bool | None = None
    pinned: bool = False
    worker_s: tuple[float, ...] = ()
    parts: dict[Part, float] = field(default_factory=dict)
    functions: tuple[tuple[str, Part, float], ...] = ()
    frames: Mapping[str, float] = field(default_factory=dict)

    @property
    def slowest(self) -> tuple[Part, float] | None:
        """The part that takes most of a worker's time, and its share; None if the parts are not known."""
        if not self.parts:
            return None
        part = max(self.parts, key=self.parts.__getitem__)
        return part, self.parts[part] / sum(self.parts.values())

    def known(self) -> dict[str, Any]:
        """All of it as plain values of JSON."""
        return {
            "images": self.images,
            "load_s": self.load.mean_s,
            "load_cv": self.load.cv,
            "in_process_s": self.in_process.mean_s,
            "handover_s": self.handover_s,
            "cores": self.cores,
            "workers": self.workers,
            "prefetch": self.prefetch,
            "in_order": self.in_order,
            "persistent": self.persistent,
            "images_per_s": self.images * self.batches_per_s,
            "first_batch_s": self.first_batch_s,
            "worker_s": list(self.worker_s),
            "parts_s": dict(self.parts),
            "functions": [list(function) for function in self.functions],
            "frames": dict(self.frames),
        }


class Alternative(NamedTuple):
    """Another loader to try.

    Attributes:
        name: What using it means, in words: "Read the LMDB dataset".
        loading: What was measured of it.
        step: Time of training on one of its batches, already on the device. Another memory layout can make it faster.
    """

    name: str
    loading: Loading
    step: Times


class Change(NamedTuple):
    """Something to try.

    Attributes:
        what: What to do, as a sentence.
        options: What to change of the loader: "num_workers", "prefetch_factor", "in_order", "pin_memory",
            "persistent_workers", "channels_last" -> value.
        pipeline: The training with it, to simulate.
        alternative: The number of the other loader that it reads; None for the present one.
    """

    what: str
    options: Mapping[str, Any]
    pipeline: Pipeline
    alternative: int | None = None


class Trial(NamedTuple):
    """A change that was tried: images/s of training with it, round by round, and their standard error within a round,
    as a share."""

    change: Change
    rates: tuple[float, ...]
    within: float = 0.0

    @property
    def images_per_s(self) -> Interval:
        return Interval.of(self.rates, self.within)


class Advice(NamedTuple):
    """One thing to do, and what it brought.

    Attributes:
        what: What to do, as a sentence.
        images_per_s: Rate of training with it.
        gain: That rate over the present one, round by round.
        pipeline: What to simulate to see it.
    """

    what: str
    images_per_s: Interval
    gain: Interval
    pipeline: Pipeline


WORTH_WHILE = 1.05
"""Advice with a smaller gain is not given: runs differ by that much."""

_TRIED = 1.03
"""Simulated gain from which a change is tried."""

_UNSIMULATED = {"pin_memory", "persistent_workers"}
"""What the simulation does not know, and is tried wherever it could help."""

_LONG_START = 0.05
"""The share of an epoch before its first batch from which that is worth a word."""

_LAYOUT = "Give the step batches in channels-last memory: images.to(memory_format=torch.channels_last)."

_BATCHES, _LONG = 200, 1000
_MOST_WORKERS = 64
_PICTURE_BATCHES = 60
_COUNTS: Sequence[int] = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)


@dataclass(frozen=True)
class Diagnosis:
    """What was measured of a loader and a training step, and what follows from it.

    Attributes:
        loading: The loader, measured without training.
        step: Time of training on a batch that is already on the device.
        step_cores: CPU cores that the step keeps busy.
        copied_s: Seconds of a step that first copies a batch from pinned memory to the device.
        rates: Images/s of training with the loader, the start of an epoch included where its length is known, round by
            round.
        within: Their standard error within a round, as a share.
        batches: Batches that were trained on in a round.
        start_s: Seconds from the beginning of an epoch to its first batch.
        epoch_batches: Batches in an epoch; None if not known.
        cores: CPU cores that this process may use.
        device: What the step runs on, "cpu" or "cuda".
        alternatives: Other loaders that were measured.
        tried: The changes that were tried.
        layout_step: Time of the step on the same batch in channels-last memory; None where that is not faster.
        own_python: CPU seconds of the step that are spent in Python of its own, and the name of the function outside of
            installed packages that takes most of them; None where that is little.
        storage_images_per_s: Rate of the storage with nothing in the page cache; None if not measured.
        notes: Remarks for the reader, in sentences.
        seconds: Seconds that the diagnosis took.
    """

    loading: Loading
    step: Times
    step_cores: float
    copied_s: float
    rates: tuple[float, ...]
    batches: int
    start_s: float
    epoch_batches: int | None
    cores: float
    device: str
    alternatives: tuple[Alternative, ...] = ()
    within: float = 0.0
    tried: tuple[Trial, ...] = ()
    layout_step: Times | None = None
    own_python: tuple[float, str] | None = None
    storage_images_per_s: float | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @cached_property
    def images_per_s(self) -> Interval:
        """Rate of training."""
        return Interval.of(self.rates, self.within)

    @property
    def trained_s(self) -> float:
        """Seconds of a step of training."""
        return self.loading.images / self.images_per_s.value

    @property
    def possible_images_per_s(self) -> float:
        """Rate of the step alone, on a batch that is already on the device."""
        return self.loading.images / self.step.mean_s

    @property
    def stages(self) -> Stages:
        return Stages(self.step.mean_s, self.copied_s, self.trained_s)

    def pipeline(self, other: Alternative | None = None, workers: int | None = None) -> Pipeline:
        """What to simulate: the pipeline as it is, or with another loader, or another number of workers."""
        loading, step = (self.loading, self.step) if other is None else (other.loading, other.step)
        workers = loading.workers if workers is None else workers
        load, handover_s = (loading.load, loading.handover_s) if workers else (loading.in_process, 0.0)
        images = self.loading.images / loading.images
        return Pipeline(
            load=load.times(images),
            step=step.times(images),
            workers=workers,
            prefetch=loading.prefetch,
            copy=Times(max(self.copied_s - self.step.mean_s, 0.0) + handover_s),
            in_order=loading.in_order is not False,
            cores=self.cores,
            load_cores=loading.cores,
            step_cores=self.step_cores,
        )

    def simulated(self, pipeline: Pipeline) -> float:
        """Simulated images/s of training, by batches of the present size, the start of an epoch included. Never above
        what the step alone makes."""
        rate = simulate(pipeline, batches=_LONG).batches_per_s(max(1, pipeline.workers * pipeline.prefetch))
        return with_start(
            self.loading.images * min(rate, 1 / (pipeline.step.mean_s + pipeline.copy.mean_s)),
            self.start_s,
            None if self.epoch_batches is None else self.epoch_batches * self.loading.images,
        )

    @cached_property
    def simulated_now(self) -> float:
        """Simulated images/s of the pipeline as it is."""
        return self.simulated(self.pipeline())

    @property
    def disagreement(self) -> float:
        """By what share the simulated present differs from the measured one."""
        return abs(math.log(self.simulated_now / self.images_per_s.value))

    def changes(self) -> list[Change]:
        """What is worth trying, the most promising first: the other loaders, with as many workers as suffice; another
        memory layout, where that makes the step faster; and, where compute is not the bottleneck, what makes the
        simulated present faster."""
        found = []
        for number, other in enumerate(self.alternatives):
            best = self._best_workers(other)
            how = f" with {plural(best, 'worker')}" if other.loading.chosen else ""
            options = {"num_workers": best} if best != other.loading.workers else {}
            found.append(Change(f"{other.name}{how}.", options, self.pipeline(other, best), number))
        if self.layout_step is not None:
            found.append(Change(_LAYOUT, {"channels_last": True}, replace(self.pipeline(), step=self.layout_step)))
        if self.stages.bottleneck != "compute" and self.loading.chosen:
            for one in self._loader_changes():
                if one.options.keys() & _UNSIMULATED or self._promise(one) >= _TRIED:
                    found.append(one)
        return sorted(found, key=self._promise, reverse=True)

    def _promise(self, change: Change) -> float:
        """How many times as fast as the present a change may make training."""
        if "persistent_workers" in change.options:
            return 1 / max(1 - self.start_share, 0.01)
        return self.simulated(change.pipeline) / self.simulated_now

    def _loader_changes(self) -> Iterator[Change]:
        loading, now = self.loading, self.pipeline()
        best = self._best_workers()
        if best != loading.workers:
            what = f"Use {plural(best, 'worker')} instead of {loading.workers}."
            yield Change(what, {"num_workers": best}, self.pipeline(workers=best))
        if loading.workers > 1 and loading.in_order:
            what = "Take batches as they come: in_order=False (the order of samples then varies)."
            yield Change(what, {"in_order": False}, replace(now, in_order=False))
        if loading.workers > 1:
            more = 2 * loading.prefetch
            what = f"Prefetch {more} batches per worker."
            yield Change(what, {"prefetch_factor": more}, replace(now, prefetch=more))
        if self.device == "cuda" and not loading.pinned:
            yield Change("Pin memory: pin_memory=True.", {"pin_memory": True}, now)
        if loading.workers and loading.persistent is False and self.start_share >= _LONG_START:
            what = "Keep workers from epoch to epoch: persistent_workers=True."
            yield Change(what, {"persistent_workers": True}, now)

    @property
    def start_share(self) -> float:
        """The share of an epoch that passes before its first batch; 0 if not known."""
        return 0.0 if self.epoch_batches is None else min(self.start_s / (self.epoch_batches * self.trained_s), 1.0)

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What made training at least WORTH_WHILE times as fast, and by more than the error of that, best first."""
        found = [Advice(one.change.what, one.images_per_s, self.gain(one), one.change.pipeline) for one in self.tried]
        worth = [advice for advice in found if advice.gain.value >= WORTH_WHILE and advice.gain.low > 1]
        return tuple(sorted(worth, key=lambda advice: -advice.gain.value))

    @property
    def undecided(self) -> list[str]:
        """What was tried and may bring much or nothing, in sentences: too few batches came to tell."""
        gains = [(one.change.what, self.gain(one)) for one in self.tried]
        return [what for what, gain in gains if gain.error > VAGUE and gain.low <= 1 < WORTH_WHILE <= gain.high]

    def gain(self, trial: Trial) -> Interval:
        """How many times as fast as the present one each round of another training was."""
        gains = [rate / now for rate, now in zip(trial.rates, self.rates, strict=True)]
        return Interval.of(gains, max(trial.within, self.within))

    def _best_workers(self, other: Alternative | None = None) -> int:
        """The fewest workers that are about as fast as any, at least one; as many as it has where that cannot be
        chosen."""
        loading = self.loading if other is None else other.loading
        if not loading.chosen:
            return loading.workers
        counts = [count for count in self._counts(loading) if count]
        batches = max(_BATCHES, 4 * counts[-1] * loading.prefetch)
        return fewest_workers(sweep(self.pipeline(other), counts, batches=batches))

    def _counts(self, loading: Loading) -> list[int]:
        """Numbers of workers to try: 0, 1, 2, 3, 4, 6, 8, ... up to as many as keep all cores busy. Where loading
        waits more than it works, that is more than there are cores."""
        most = max(loading.workers, min(math.ceil(self.cores / max(loading.cores, LEAST_CORES)), _MOST_WORKERS))
        return sorted({0, loading.workers, most} | {count for count in _COUNTS if count <= most})

    @cached_property
    def by_workers(self) -> dict[int, float]:
        """Simulated rate with each number of workers, times the simulated present; empty if it cannot be chosen."""
        counts = self._counts(self.loading) if self.loading.chosen else []
        return {count: self.simulated(self.pipeline(workers=count)) / self.simulated_now for count in counts}

    @property
    def headline(self) -> str:
        """The bottleneck in a few words."""
        return headline(self.stages, "GPU" if self.device == "cuda" else "training step")

    @property
    def explanation(self) -> str:
        """What stalls training, and the best advice, in one paragraph."""
        said = [explanation(self.stages, round(self.loading.images))]
        is_compute = self.stages.bottleneck == "compute"
        slowest = self.loading.slowest
        if slowest is not None and not is_compute:
            part, share = slowest
            load = seconds_text(self.loading.load.mean_s)
            said.append(f"A worker takes {load} per batch, {share:.0%} of it for {WORDS[part]}{self._frame(part)}.")
        if self.start_share >= _LONG_START:
            said.append(f"{self.start_share:.0%} of an epoch passes before its first batch.")
        if self.own_python is not None:
            own_s, frame = self.own_python
            said.append(
                f"{seconds_text(own_s)} of a step of {seconds_text(self.step.mean_s)} is Python of the training loop "
                f"on a core, most of it in {frame}: faster loading leaves that as it is."
            )
        if self.advice:
            best = self.advice[0]
            how = "What helps makes the step itself faster. " if is_compute else ""
            said.append(
                f"{how}{best.what[:-1]}: {interval_text(best.images_per_s, rate_text)} images/s, "
                f"{interval_text(best.gain, factor_text)} times the present {rate_text(self.images_per_s.value)}."
            )
        if self.undecided:
            said.append(f"Too few batches came to tell what these bring: {' '.join(self.undecided)} Give more seconds.")
        elif not self.advice and not is_compute:
            said.append("Nothing that was tried made it more than 5% faster.")
        return " ".join(said)

    def _frame(self, part: Part) -> str:
        """Whose code it is that takes most of the part "other", in words; empty for other parts."""
        if part != "other" or not self.loading.frames:
            return ""
        return f", most of it in {next(iter(self.loading.frames))}"

    @property
    def verdict(self) -> str:
        """The bottleneck and the best advice, in one paragraph."""
        return f"{self.headline}. {self.explanation}"

    @property
    def picture(self) -> list[tuple[str, Timeline]]:
        """(name, timeline) of the pipeline as it is, and with the best advice."""
        variants = [("as it is", self.pipeline()), *((advice.what[:-1], advice.pipeline) for advice in self.advice[:1])]
        return [(name, simulate(pipeline, batches=_PICTURE_BATCHES)) for name, pipeline in variants]

    def evidence(self) -> Iterator[tuple[str, str]]:
        """Yield (topic, figures), the most important first."""
        loading = self.loading
        rate = interval_text(self.images_per_s, rate_text)
        yield "training now", f"{rate} images/s with {plural(loading.workers, 'worker')}"
        possible = f"{rate_text(self.possible_images_per_s)} images/s: {seconds_text(self.step.mean_s)} per step"
        yield "step alone", f"{possible}, {seconds_text(self.trained_s)} with the loader"
        alone = f"{rate_text(loading.images * loading.batches_per_s)} images/s"
        yield "loader alone", f"{alone}; first batch after {seconds_text(loading.first_batch_s)}"
        if self.epoch_batches is not None:
            start = f"{plural(self.epoch_batches, 'batch', 'batches')}, the first after {seconds_text(self.start_s)}"
            yield "epoch", f"{start}: {self.start_share:.1%} of its time"
        load = f"{seconds_text(loading.load.mean_s)} ± {loading.load.cv:.0%} per batch of {loading.images:.0f}"
        yield "one worker", f"{load}, {loading.cores:.0%} of it on a core"
        for part, seconds in sorted(loading.parts.items(), key=lambda pair: -pair[1]):
            if seconds >= 0.005 * loading.load.mean_s:
                share = f"{seconds / loading.load.mean_s:.0%}, {seconds_text(seconds)}"
                yield f"  {WORDS[part]}", f"{share}{self._frame(part)}"
        if len(loading.worker_s) > 1:
            yield "each worker", ", ".join(map(seconds_text, loading.worker_s)) + " per batch while all of them work"
        if self.device != "cpu":
            yield "copying", f"{seconds_text(max(self.copied_s - self.step.mean_s, 0))} per batch from pinned memory"
        if self.storage_images_per_s is not None:
            yield "disk", f"{rate_text(self.storage_images_per_s)} images/s with nothing in the page cache"
        yield "cores", f"{self.cores:g}"
        simulated = f"{rate_text(self.simulated_now)} images/s for the pipeline as it is"
        yield "simulated", f"{simulated}, {self.disagreement:.0%} from what was measured"
        yield "rounds", f"{len(self.rates)}, of {plural(self.batches, 'batch', 'batches')} each"

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, what to do, and the evidence, without the rates by workers."""
        advice = [
            (one.what, f"{rate_text(one.images_per_s.value)} images/s, {interval_text(one.gain, factor_text)} ×")
            for one in self.advice
        ]
        return notebook_html(self.headline, [self.explanation, *self.notes], [*advice, *self.evidence()])

    def known(self) -> dict[str, Any]:
        """All of it as plain values of JSON."""
        stalls = self.stages.stalls
        return {
            "verdict": self.verdict,
            "bottleneck": self.stages.bottleneck,
            "utilisation": stalls.utilisation,
            "stalls": {"copy": stalls.copy, "preparation": stalls.preparation},
            "images_per_s": self.images_per_s.known(),
            "possible_images_per_s": self.possible_images_per_s,
            "advice": [
                {
                    "what": advice.what,
                    "images_per_s": advice.images_per_s.known(),
                    "gain": advice.gain.known(),
                    "workers": advice.pipeline.workers,
                    "prefetch": advice.pipeline.prefetch,
                }
                for advice in self.advice
            ],
            "tried": [{"what": one.change.what, "images_per_s": list(one.rates)} for one in self.tried],
            "rates": list(self.rates),
            "step": {
                "resident_s": self.step.mean_s, "copied_s": self.copied_s, "trained_s": self.trained_s,
                "channels_last_s": None if self.layout_step is None else self.layout_step.mean_s,
                "own_python_s": None if self.own_python is None else self.own_python[0],
                "cores": self.step_cores, "device": self.device,
            },
            "epoch": {"batches": self.epoch_batches, "start_s": self.start_s, "start_share": self.start_share},
            "loading": self.loading.known(),
            "alternatives": {
                other.name: {**other.loading.known(), "resident_s": other.step.mean_s} for other in self.alternatives
            },
            "workers": {str(workers): gain for workers, gain in self.by_workers.items()},
            "simulated_images_per_s": self.simulated_now,
            "disagreement": self.disagreement,
            "storage_images_per_s": self.storage_images_per_s,
            "cores": self.cores,
            "notes": list(self.notes),
            "seconds": self.seconds,
        }  # fmt: skip


def with_start(images_per_s: float, start_s: float, epoch_images: float | None) -> float:
    """The rate over an epoch of so many images that begins with `start_s` without a batch. None: there is no end."""
    return images_per_s if epoch_images is None else epoch_images / (start_s + epoch_images / images_per_s)
