"""Measured times of a loader and a training step -> the bottleneck, what would help, and by how much. Pure; no torch.

Gains are predicted by presize.measure.simulation, which runs the pipeline as it is and as it could be with the measured
times. Comparing its result for the pipeline as it is with the measurement shows how far to trust it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

from presize.formatting import factor_text, plural, rate_text, seconds_text
from presize.measure.profile import Part
from presize.measure.simulation import Pipeline, Timeline, Times, fewest_workers, simulate, sweep
from presize.measure.stages import Quantiles, Stages, explanation, headline
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
        batches_per_s: Rate of all workers together.
        first_batch_s: Seconds to the first batch.
        worker_s: Mean seconds per batch of each worker while all of them work.
        saturation: (workers, batches/s) of a saturation run: enough workers to keep all cores busy, and no step. None
            if there was none.
        parts: Seconds of `load` by part; empty if not known.
        functions: (name, part, share of all own time) of the functions that took longest, the longest first.
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
            "in_process_s": self.in_process.mean_s,
            "handover_s": self.handover_s,
            "load_cv": self.load.cv,
            "load_quantiles_s": asdict(Quantiles.of(self.load.samples_s or (self.load.mean_s,))),
            "cores": self.cores,
            "workers": self.workers,
            "prefetch": self.prefetch,
            "in_order": self.in_order,
            "images_per_s": self.images * self.batches_per_s,
            "first_batch_s": self.first_batch_s,
            "worker_s": list(self.worker_s),
            "saturation": None if self.saturation is None else list(self.saturation),
            "parts_s": dict(self.parts),
            "functions": [list(function) for function in self.functions],
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


WORTH_WHILE = 1.05
"""Advice with a smaller gain is not given: runs differ by that much."""

_BATCHES, _LONG = 200, 1000
_CHANCE = 0.03
_MOST_WORKERS = 64
_MOST_UNEXPLAINED = 3.0
_PICTURE_BATCHES = 60
_COUNTS: Sequence[int] = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)


class Advice(NamedTuple):
    """One thing to do, and what it should bring.

    Attributes:
        what: What to do, as a sentence.
        images_per_s: Predicted rate of training.
        gain: That rate over the present one.
        pipeline: What was simulated to predict it.
        step_gain: The part of `gain` that comes from a faster step, as the layout of its batches is another.
    """

    what: str
    images_per_s: float
    gain: float
    pipeline: Pipeline
    step_gain: float = 1.0

    @property
    def loading_gain(self) -> float:
        """The part of `gain` that comes from loading: times `step_gain` it is `gain`."""
        return self.gain / self.step_gain

    @property
    def split(self) -> str:
        """Where the gain comes from, in words; empty where it comes from loading alone."""
        if max(self.step_gain, 1 / self.step_gain) < WORTH_WHILE:
            return ""
        return (
            f"{factor_text(self.loading_gain)} × from loading, "
            f"{factor_text(self.step_gain)} × from the layout of its batches"
        )


@dataclass(frozen=True)
class Diagnosis:
    """What was measured of a loader and a training step, and what follows from it.

    Attributes:
        loading: The loader, measured without training.
        step: Time of training on a batch that is already on the device.
        step_cores: CPU cores that the step keeps busy.
        copied_s: Seconds of a step that first copies a batch from pinned memory to the device.
        trained_s: Seconds of a step of training with the loader, over `batches` less the first `warmup_steps`.
        batches: Batches that were trained on.
        warmup_steps: Steps at the start that do not count.
        cores: CPU cores that this process may use.
        device: What the step runs on, "cpu" or "cuda".
        load_slowdown: Time to load a batch during training over that without training; 1 if not known.
        step_slowdown: Time of the step during training over that on one batch; 1 if not known.
        alternatives: Other loaders that were measured.
        unpinned_s: Like `copied_s`, from memory that is not pinned; None without CUDA.
        pinned: Whether the loader's batches are in pinned memory.
        storage_images_per_s: Rate of the storage with nothing in the page cache; None if not measured.
        notes: Remarks for the reader, in sentences.
        seconds: Seconds that the diagnosis took.
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
        """Measured rate of training."""
        return self.loading.images / self.trained_s

    @cached_property
    def free_cores(self) -> float:
        """Cores that loading can really use, fewer than `cores` by as much as the saturation run was slower than it
        should be: hyper-threads that share a core, or other processes, leave less than there seems to be."""
        if self.loading.saturation is None:
            return self.cores
        workers, rate = self.loading.saturation
        at_work = min(workers, self.cores / max(self.loading.cores, LEAST_CORES))
        return self.cores * min(rate * self.loading.load.mean_s / at_work, 1.0)

    @cached_property
    def _unexplained(self) -> tuple[float, float]:
        """How much slower loading and the step were in training than sharing cores explains, as two factors."""
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
        """What to simulate: the pipeline as it is, or with another loader, or another number of workers."""
        loading, step = (self.loading, self.step) if other is None else (other.loading, other.step)
        workers = loading.workers if workers is None else workers
        pipeline = self._pipeline(loading, workers, step)
        slower_load, slower_step = self._unexplained
        if workers == 0:  # then nothing is done at the same time
            return pipeline
        return replace(pipeline, load=pipeline.load.times(slower_load), step=pipeline.step.times(slower_step))

    def _pipeline(self, loading: Loading, workers: int, step: Times) -> Pipeline:
        """A pipeline from what was measured of loading alone and of the step alone."""
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
        """The pipeline as it is, over enough batches to average out chance."""
        return simulate(self.pipeline(), batches=_LONG)

    @property
    def agreement(self) -> float:
        """Simulated rate of the pipeline as it is over the measured one: 1 is a perfect simulation."""
        return self.simulated.batches_per_s(self.warmup_steps) * self.trained_s

    @property
    def _correction(self) -> float:
        """What predictions are divided by: `agreement` if it is further from 1 than chance explains, given how many
        batches there were and how much they vary; else 1."""
        chance = _CHANCE + 2 * self.loading.load.cv / math.sqrt(self.batches)
        return self.agreement if abs(math.log(self.agreement)) > chance else 1.0

    def predict(self, pipeline: Pipeline) -> float:
        """Predicted images/s of training with another pipeline, over many batches of the present size.

        If the simulation of the present pipeline is off by some factor, this one is taken to be off by the same. No
        prediction is faster than the step and the copy alone.
        """
        rate = simulate(pipeline, batches=_LONG).batches_per_s(max(1, pipeline.workers * pipeline.prefetch))
        return self.loading.images * min(rate / self._correction, 1 / (pipeline.step.mean_s + pipeline.copy.mean_s))

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What would make training at least WORTH_WHILE times as fast, best first."""
        found = [self._alternative_advice(other) for other in self.alternatives]
        if self.stages.bottleneck != "compute":
            found += [*self._workers_advice(), *self._pinning_advice()]
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
            found.append(self._advised(f"Use {plural(best, 'worker')} instead of {loading.workers}.", pipeline))
        if loading.workers > 1:
            now = self.pipeline()
            if loading.in_order:
                what = "Take batches as they come: in_order=False (the order of samples then varies)."
                found.append(self._advised(what, replace(now, in_order=False)))
            more = 2 * loading.prefetch
            found.append(self._advised(f"Prefetch {more} batches per worker.", replace(now, prefetch=more)))
        return found

    def _pinning_advice(self) -> list[Advice]:
        if self.unpinned_s is None or self.pinned:
            return []
        faster_s = self.trained_s - (self.unpinned_s - self.copied_s)
        if faster_s <= 0:
            return []
        rate = self.loading.images / faster_s
        return [Advice("Pin memory: pin_memory=True.", rate, rate / self.images_per_s, self.pipeline())]

    def _alternative_advice(self, other: Alternative) -> Advice:
        chosen = other.loading.chosen
        best = self._best_workers(other) if chosen else other.loading.workers
        how = f" with {plural(best, 'worker')}" if chosen else ""
        pipeline = self.pipeline(other, best)
        advised = self._advised(f"{other.name}{how}.", pipeline)
        same_step = replace(pipeline, step=self.pipeline(workers=best).step)
        return advised._replace(step_gain=advised.images_per_s / self.predict(same_step))

    def _advised(self, what: str, pipeline: Pipeline) -> Advice:
        rate = self.predict(pipeline)
        return Advice(what, rate, rate / self.images_per_s, pipeline)

    def _best_workers(self, other: Alternative | None = None) -> int:
        """The fewest workers that are about as fast as any, at least one."""
        loading = self.loading if other is None else other.loading
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
        """Predicted images/s for each number of workers; for the present one alone if it cannot be chosen."""
        counts = self._counts(self.loading) if self.loading.chosen else [self.loading.workers]
        return {count: self.predict(self.pipeline(workers=count)) for count in counts}

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
            said.append(f"A worker takes {load} per batch, {share:.0%} of it for {WORDS[part]}.")
        if self.advice:
            best = self.advice[0]
            split = f" ({best.split})" if best.split else ""
            said.append(
                f"{best.what[:-1]}: that should give {rate_text(best.images_per_s)} images/s, "
                f"{factor_text(best.gain)} times the present {rate_text(self.images_per_s)}{split}."
            )
        elif not is_compute:
            said.append("Nothing that was simulated would make it more than 5% faster.")
        return " ".join(said)

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
        yield "training now", f"{rate_text(self.images_per_s)} images/s with {plural(loading.workers, 'worker')}"
        possible = f"{rate_text(loading.images / self.step.mean_s)} images/s: {seconds_text(self.step.mean_s)} per step"
        yield "step alone", f"{possible}, {seconds_text(self.trained_s)} with the loader"
        alone = f"{rate_text(loading.images * loading.batches_per_s)} images/s"
        yield "loader alone", f"{alone}; first batch after {seconds_text(loading.first_batch_s)}"
        load = f"{seconds_text(loading.load.mean_s)} ± {loading.load.cv:.0%} per batch of {loading.images:.0f}"
        yield "one worker", f"{load}, {loading.cores:.0%} of it on a core"
        if loading.load.samples_s:
            times = Quantiles.of(loading.load.samples_s)
            yield (
                "  percentiles",
                f"p50 {seconds_text(times.p50_s)}, p95 {seconds_text(times.p95_s)}, p99 {seconds_text(times.p99_s)}",
            )
        for part, seconds in sorted(loading.parts.items(), key=lambda pair: -pair[1]):
            if seconds >= 0.005 * loading.load.mean_s:
                yield f"  {WORDS[part]}", f"{seconds / loading.load.mean_s:.0%}, {seconds_text(seconds)}"
        if loading.worker_s and len(loading.worker_s) > 1:
            yield "each worker", ", ".join(map(seconds_text, loading.worker_s)) + " per batch while all of them work"
        if self.unpinned_s is not None:
            pinned, unpinned = (seconds_text(max(s - self.step.mean_s, 0)) for s in (self.copied_s, self.unpinned_s))
            yield "copying", f"{pinned} per batch from pinned memory, {unpinned} from pageable memory"
        elif self.device == "cpu":
            yield "copying", "none: training runs on the CPU, where pinned memory does not help"
        if self.storage_images_per_s is not None:
            yield "disk", f"{rate_text(self.storage_images_per_s)} images/s with nothing in the page cache"
        cores = f"{self.cores:g}"
        if loading.saturation is not None:
            workers, rate = loading.saturation
            cores += f": {plural(workers, 'worker')} load {rate_text(loading.images * rate)} images/s without training"
            cores += f", as {self.free_cores:.1f} cores would"
        yield "cores", cores
        simulated = loading.images * self.simulated.batches_per_s(self.warmup_steps)
        yield "simulated", f"{rate_text(simulated)} images/s for the pipeline as it is"

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, what to do, and the evidence, without the rates by workers."""
        advice = [
            (one.what, f"{rate_text(one.images_per_s)} images/s, {factor_text(one.gain)} ×") for one in self.advice
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
            "images_per_s": self.images_per_s,
            "possible_images_per_s": self.loading.images / self.step.mean_s,
            "advice": [
                {
                    "what": advice.what,
                    "images_per_s": advice.images_per_s,
                    "gain": advice.gain,
                    "loading_gain": advice.loading_gain,
                    "step_gain": advice.step_gain,
                    "workers": advice.pipeline.workers,
                    "prefetch": advice.pipeline.prefetch,
                }
                for advice in self.advice
            ],
            "step": {
                "resident_s": self.step.mean_s, "copied_s": self.copied_s, "unpinned_s": self.unpinned_s,
                "trained_s": self.trained_s, "cores": self.step_cores, "device": self.device,
            },
            "loading": self.loading.known(),
            "alternatives": {
                other.name: {**other.loading.known(), "resident_s": other.step.mean_s} for other in self.alternatives
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
