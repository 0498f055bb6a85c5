"""What was measured of a loader and a training step -> what holds training back, what would help, and by how much.
Pure; no torch.

Gains come from presize.measure.simulate: the pipeline as it is and as it could be, from the same measured times. What
the simulation says of the pipeline as it is, is compared with what was measured of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

from presize.measure.profile import Part
from presize.measure.simulate import Pipeline, Timeline, Times, fewest_workers, simulate, sweep
from presize.measure.stages import NO_GAIN, Quantiles, Stages, shown, verdict

WORTH_WHILE = 1.05
"""Advice whose gain is smaller is not given: runs differ by that."""

_BATCHES, _LONG = 200, 1000
_CHANCE = 0.03
_MOST_WORKERS = 64
LEAST_CORES = 0.1
"""Loading that keeps less than that of a core busy does not need cores."""
_MOST_UNEXPLAINED = 3.0
_PICTURE_BATCHES = 60

WORDS: dict[Part, str] = {
    "read": "reading files",
    "decode": "decoding",
    "augment": "cropping and augmenting",
    "collate": "collating batches",
    "other": "other code",
}


@dataclass(frozen=True)
class Loading:
    """How a loader makes batches without a training step beside it.

    images: in a batch. load: seconds of one worker, alone, for one batch, handing it over included; here: of making
        one where training runs. handover_s: of training to take one that is there. cores: how many loading keeps busy.
    workers: how many there are, 0 where batches are made in the training process. chosen: whether that number can
        be chosen; it cannot for an iterable that nothing is known of. prefetch, in_order: as in Pipeline; in_order None
        where batches always come in order.
    batches_per_s: of all workers together. first_batch_s: until the first batch was there.
    worker_s: of each worker, the mean seconds a batch with all of them at work.
    saturation: (workers, batches/s) of so many workers that the cores have to do, without a step; None if not measured.
    parts: what the seconds of `load` went to; empty if that is not known. functions: (name, part, share of all own
        time), the longest first.
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
    worker_s: tuple[float, ...] = ()
    saturation: tuple[int, float] | None = None
    parts: dict[Part, float] = field(default_factory=dict)
    functions: tuple[tuple[str, Part, float], ...] = ()

    @property
    def slowest(self) -> tuple[Part, float] | None:
        """The part that takes most of a worker's time, and its share."""
        if not self.parts:
            return None
        part = max(self.parts, key=self.parts.__getitem__)
        return part, self.parts[part] / sum(self.parts.values())


class Alternative(NamedTuple):
    """Another loader. name: what using it means, in words. step: as of a Diagnosis, on one of its batches: memory laid
    out otherwise can make a step faster."""

    name: str
    loading: Loading
    step: Times


class Advice(NamedTuple):
    """what: to do, in words. images_per_s: predicted. gain: times as fast as now. pipeline: what was simulated."""

    what: str
    images_per_s: float
    gain: float
    pipeline: Pipeline


@dataclass(frozen=True)
class Diagnosis:
    """What was measured. All times in seconds.

    loading: of the loader in question. alternatives: others.
    step: of training on a batch that is on the device already; step_cores: how many of the CPU's that keeps busy.
    copied_s: of a step that copies one page-locked batch to the device first; unpinned_s: one that is not page-locked,
        None without CUDA. pinned: whether the loader's batches are.
    trained_s: a step of training with the loader, over `batches` less the first `warmup_steps`. load_slowdown,
        step_slowdown:
        how many times as long as alone loading a batch, and a step, took there; 1 where that is not known.
    cores: that this process may use. storage_images_per_s: that the disk gives when nothing is in the page cache;
        None where that was not measured.
    device: what the step runs on, "cpu" or "cuda". notes: what else has to be said. seconds: that diagnosing took.
    """

    loading: Loading
    step: Times
    step_cores: float
    copied_s: float
    trained_s: float
    batches: int
    warmup_steps: int
    cores: float
    device: str
    load_slowdown: float = 1.0
    step_slowdown: float = 1.0
    alternatives: tuple[Alternative, ...] = ()
    unpinned_s: float | None = None
    pinned: bool = False
    storage_images_per_s: float | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def stages(self) -> Stages:
        return Stages(self.step.mean_s, self.copied_s, self.trained_s)

    @property
    def images_per_s(self) -> float:
        """Of training as it is."""
        return self.loading.images / self.trained_s

    @cached_property
    def free_cores(self) -> float:
        """Cores that there really are: as many fewer as a saturation of workers made fewer batches than it should.
        Two cores that share their units, or other processes, leave less than there are."""
        if self.loading.saturation is None:
            return self.cores
        workers, rate = self.loading.saturation
        at_work = min(workers, self.cores / max(self.loading.cores, LEAST_CORES))
        return self.cores * min(rate * self.loading.load.mean_s / at_work, 1.0)

    @cached_property
    def _unexplained(self) -> tuple[float, float]:
        """How many times as long loading and the step took in training as they would by sharing cores alone."""
        timeline = simulate(self._pipeline(self.loading, self.loading.workers, self.step), batches=_BATCHES)
        loads = [
            (load.end_s - load.begin_s) / load.work_s
            for load in timeline.loads
            if load.end_s is not None and load.work_s
        ]
        steps = [
            (step.end_s - step.begin_s) / step.work_s
            for step in timeline.steps
            if step.begin_s is not None and step.end_s is not None and step.work_s
        ]
        measured = self.load_slowdown, self.step_slowdown
        load, step = (
            min(max(slowdown / fmean(found), 1 / _MOST_UNEXPLAINED), _MOST_UNEXPLAINED)
            for slowdown, found in zip(measured, (loads, steps), strict=True)
        )
        return load, step

    def pipeline(self, other: Alternative | None = None, workers: int | None = None) -> Pipeline:
        """To simulate: as it is, or with another loader or other workers."""
        loading, step = (self.loading, self.step) if other is None else (other.loading, other.step)
        workers = loading.workers if workers is None else workers
        pipeline = self._pipeline(loading, workers, step)
        slower_load, slower_step = self._unexplained
        if workers == 0:  # then nothing is done at the same time
            return pipeline
        return replace(pipeline, load=pipeline.load.times(slower_load), step=pipeline.step.times(slower_step))

    def _pipeline(self, loading: Loading, workers: int, step: Times) -> Pipeline:
        """By what was measured of loading and of the step alone."""
        load, handover_s = (loading.load, loading.handover_s) if workers else (loading.in_process, 0.0)
        images = self.loading.images / loading.images
        return Pipeline(
            load=load.times(images),
            step=step.times(images),
            workers=workers,
            prefetch=loading.prefetch,
            copy=Times(max(self.copied_s - self.step.mean_s, 0.0) + handover_s),
            in_order=loading.in_order is not False,
            cores=self.free_cores,
            load_cores=loading.cores,
            step_cores=self.step_cores,
        )

    @cached_property
    def simulated(self) -> Timeline:
        """The pipeline as it is, for so long that chance does not count."""
        return simulate(self.pipeline(), batches=_LONG)

    @property
    def agreement(self) -> float:
        """Images/s as simulated over images/s as measured: 1 is a perfect simulation."""
        return self.simulated.batches_per_s(self.warmup_steps) * self.trained_s

    @property
    def _correction(self) -> float:
        """What predictions are divided by: the agreement, where it is further from 1 than what so few batches, that
        vary so much, can be by chance."""
        chance = _CHANCE + 2 * self.loading.load.cv / math.sqrt(self.batches)
        return self.agreement if abs(math.log(self.agreement)) > chance else 1.0

    def predict(self, pipeline: Pipeline) -> float:
        """Images/s of training with another pipeline, over many batches of as many images as now.

        Where the simulation of the pipeline as it is was off by some factor, the other's is taken to be off by the
        same; but never faster than its step and copy alone.
        """
        rate = simulate(pipeline, batches=_LONG).batches_per_s(max(1, pipeline.workers * pipeline.prefetch))
        return self.loading.images * min(rate / self._correction, 1 / (pipeline.step.mean_s + pipeline.copy.mean_s))

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What would make training faster by WORTH_WHILE or more, best first."""
        if self.stages.stalls.utilisation >= NO_GAIN:
            return ()
        found = list(self._workers_advice())
        found += map(self._alternative_advice, self.alternatives)
        if self.unpinned_s is not None and not self.pinned:
            faster_s = self.trained_s - (self.unpinned_s - self.copied_s)
            if faster_s > 0:
                rate = self.loading.images / faster_s
                gain = rate / self.images_per_s
                found.append(Advice("Page-lock batches: pin_memory=True.", rate, gain, self.pipeline()))
        worth = [advice for advice in found if advice.gain >= WORTH_WHILE]
        return tuple(sorted(worth, key=lambda advice: -advice.gain))

    def _workers_advice(self) -> list[Advice]:
        loading = self.loading
        if not loading.chosen:
            return []
        found = []
        best = self._best_workers()
        if best != loading.workers:
            pipeline = self.pipeline(workers=best)
            found.append(self._advised(f"Use {workers_shown(best)} instead of {loading.workers}.", pipeline))
        if loading.workers > 1:
            now = self.pipeline()
            if loading.in_order:
                what = "Take batches as they come: in_order=False (the order of samples then varies)."
                found.append(self._advised(what, replace(now, in_order=False)))
            more = 2 * loading.prefetch
            found.append(self._advised(f"Prefetch {more} batches a worker.", replace(now, prefetch=more)))
        return found

    def _alternative_advice(self, other: Alternative) -> Advice:
        chosen = other.loading.chosen
        best = self._best_workers(other) if chosen else other.loading.workers
        how = f" with {workers_shown(best)}" if chosen else ""
        return self._advised(f"{other.name}{how}.", self.pipeline(other, best))

    def _advised(self, what: str, pipeline: Pipeline) -> Advice:
        rate = self.predict(pipeline)
        return Advice(what, rate, rate / self.images_per_s, pipeline)

    def _best_workers(self, other: Alternative | None = None) -> int:
        """Of those that can be had: nobody trains without workers who can have them."""
        loading = self.loading if other is None else other.loading
        counts = [count for count in self._counts(loading) if count]
        batches = max(_BATCHES, 4 * counts[-1] * loading.prefetch)
        return fewest_workers(sweep(self.pipeline(other), counts, batches=batches))

    def _counts(self, loading: Loading) -> list[int]:
        """0 workers, 1, 2, 3, 4, 6, 8, ... and as many as keep all cores busy: more than there are where loading waits
        more than it works."""
        most = max(loading.workers, min(math.ceil(self.cores / max(loading.cores, LEAST_CORES)), _MOST_WORKERS))
        return sorted({0, loading.workers, most} | {count for count in _COUNTS if count <= most})

    @cached_property
    def by_workers(self) -> dict[int, float]:
        """Images/s with other numbers of workers; with those that there are, if that cannot be chosen."""
        counts = self._counts(self.loading) if self.loading.chosen else [self.loading.workers]
        return {count: self.predict(self.pipeline(workers=count)) for count in counts}

    @property
    def verdict(self) -> str:
        """One paragraph."""
        stages = self.stages
        said = [verdict(stages, round(self.loading.images))]
        if stages.stalls.utilisation < NO_GAIN:
            slowest = self.loading.slowest
            if slowest is not None:
                part, share = slowest
                load = seconds_shown(self.loading.load.mean_s)
                said.append(f"A worker needs {load} for a batch, {share:.0%} of it for {WORDS[part]}.")
            if self.advice:
                best = self.advice[0]
                said.append(
                    f"{best.what[:-1]}: that should give {shown(best.images_per_s)} images/s, {best.gain:.1f} times "
                    f"the {shown(self.images_per_s)} of now."
                )
            else:
                said.append("Nothing that was tried in simulation would help by more than 5 %.")
        return " ".join(said)

    @property
    def picture(self) -> list[tuple[str, Timeline]]:
        """(name, timeline) of the pipeline as it is, and of the best advice."""
        variants = [("as it is", self.pipeline()), *((advice.what[:-1], advice.pipeline) for advice in self.advice[:1])]
        return [(name, simulate(pipeline, batches=_PICTURE_BATCHES)) for name, pipeline in variants]

    def known(self) -> dict[str, Any]:
        """All of it as plain values of JSON."""
        stalls = self.stages.stalls
        return {
            "verdict": self.verdict,
            "utilisation": stalls.utilisation,
            "stalls": {"copy": stalls.copy, "preparation": stalls.preparation},
            "images_per_s": self.images_per_s,
            "possible_images_per_s": self.loading.images / self.step.mean_s,
            "advice": [
                {
                    "what": advice.what,
                    "images_per_s": advice.images_per_s,
                    "gain": advice.gain,
                    "workers": advice.pipeline.workers,
                    "prefetch": advice.pipeline.prefetch,
                }
                for advice in self.advice
            ],
            "step": {
                "resident_s": self.step.mean_s, "copied_s": self.copied_s, "unpinned_s": self.unpinned_s,
                "trained_s": self.trained_s, "cores": self.step_cores, "device": self.device,
            },
            "loading": _plain(self.loading),
            "alternatives": {
                other.name: {**_plain(other.loading), "resident_s": other.step.mean_s} for other in self.alternatives
            },
            "workers": {str(workers): rate for workers, rate in self.by_workers.items()},
            "storage_images_per_s": self.storage_images_per_s,
            "cores": self.cores,
            "free_cores": self.free_cores,
            "load_slowdown": self.load_slowdown,
            "step_slowdown": self.step_slowdown,
            "agreement": self.agreement,
            "notes": list(self.notes),
            "seconds": self.seconds,
        }  # fmt: skip


_COUNTS: Sequence[int] = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)


def workers_shown(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def seconds_shown(seconds: float) -> str:
    """In three digits.

    >>> [seconds_shown(seconds) for seconds in (0.0001234, 0.05, 2)]
    ['0.123 ms', '50 ms', '2 s']
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _plain(loading: Loading) -> dict[str, Any]:
    return {
        "images": loading.images,
        "load_s": loading.load.mean_s,
        "in_process_s": loading.in_process.mean_s,
        "handover_s": loading.handover_s,
        "load_cv": loading.load.cv,
        "load_quantiles_s": asdict(Quantiles.of(loading.load.samples_s or (loading.load.mean_s,))),
        "cores": loading.cores,
        "workers": loading.workers,
        "prefetch": loading.prefetch,
        "in_order": loading.in_order,
        "images_per_s": loading.images * loading.batches_per_s,
        "first_batch_s": loading.first_batch_s,
        "worker_s": list(loading.worker_s),
        "saturation": None if loading.saturation is None else list(loading.saturation),
        "parts_s": dict(loading.parts),
        "functions": [list(function) for function in loading.functions],
    }
