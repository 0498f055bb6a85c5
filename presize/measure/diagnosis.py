"""The model of a training: what diagnose measures of a loader and a step, what follows, and its text and page. Pure;
no torch.

Measured, each of them repeatedly, in seconds a batch:

    load      one worker, alone, makes a batch and hands it over; from it, by simulation, any number of workers
    step      training on one batch of the loader that stays on the device, before and after each run of training
    start     from the beginning of an epoch to its first batch
    trained   training on the batches of the loader, over whole epochs or whole bursts of its workers

    U     = step / trained      the share of the time that the step works
    1 / U                       how many times as fast training would be if loading cost nothing
    epoch = start + n · trained of n batches
    rate  = images / trained, never above images / step, ± by the spread of rounds (presize.measure.stages.Interval)
    gain  = rate with a change / rate without it, round by round, ± likewise

A simulation of the pipeline (presize.measure.simulation) only chooses what to try. Then training is run with each
change. Nothing repairs the simulation by a measurement: the diagnosis says by how much they disagree.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

from presize.formatting import duration, factor_text, plural, rate_text, seconds_text
from presize.measure.profile import PARTS, Part
from presize.measure.simulation import Pipeline, Times, fewest_workers, simulate, sweep
from presize.measure.simulation_report import PictureVariant, picture, picture_policy
from presize.measure.stages import VAGUE, Interval, Stages, explanation, factor_interval, headline, rate_interval
from presize.pages import charts
from presize.pages.html import notebook_html, template
from presize.system.resources import is_asynchronous

WORDS: dict[Part, str] = {
    "read": "reading files",
    "decode": "decoding",
    "augment": "cropping and augmenting",
    "collate": "collating batches",
    "other": "other code",
}

WORTH_WHILE = 1.05  # advice with a smaller gain is not given: runs differ by that much
_TRIED = 1.03  # simulated gain from which a change is tried
_UNSIMULATED = {"pin_memory", "persistent_workers"}  # tried wherever they could help
_LONG_START = 0.05  # share of an epoch before its first batch from which that is worth a word
_LEAST_CORES = 0.1  # loading that keeps less than that of a core busy does not need cores
_BATCHES, _LONG = 200, 1000  # that are simulated to choose a number of workers, and to predict a rate
_ANIMATED = 60
_ALIKE = 0.05  # shares of the time that differ by less count as the same
_COUNTS: Sequence[int] = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)


@dataclass(frozen=True)
class Loading:
    """Measurements of a loader while nothing trains."""

    images: float  # in a batch
    load: Times  # of one worker, alone, to make a batch and hand it over
    in_process: Times  # to make a batch in the training process
    handover_s: float  # that training takes to receive a batch that is ready
    cores: float  # that making one batch keeps busy
    workers: int  # 0 if batches are made in the training process
    prefetch: int  # batches requested of each worker ahead
    in_order: bool | None  # whether batches come in the order in which they were requested; None if they always do
    chosen: bool  # whether the number of workers can be chosen: not of an unknown kind of iterable
    batches_per_s: float  # of all workers together
    first_batch_s: float  # from the start of the loader
    persistent: bool | None = None  # whether workers live on from epoch to epoch; None where that cannot be chosen
    pinned: bool = False  # whether its batches are in pinned memory, or on the device already
    worker_s: tuple[float, ...] = ()  # mean of each worker for a batch while all of them work
    parts: dict[Part, float] = field(default_factory=dict)  # seconds of `load` by part; empty if not known
    functions: tuple[tuple[str, Part, float], ...] = ()  # (name, part, share of all own time), the longest first
    frames: Mapping[str, float] = field(default_factory=dict)  # share of time of other code, by function of the user's

    def known(self) -> dict[str, Any]:
        """All of it as plain values of JSON."""
        same = "images handover_s cores workers prefetch in_order persistent first_batch_s worker_s functions frames"
        return {name: getattr(self, name) for name in same.split()} | {
            "load_s": self.load.mean_s,
            "load_cv": self.load.cv,
            "in_process_s": self.in_process.mean_s,
            "images_per_s": self.images * self.batches_per_s,
            "parts_s": self.parts,
        }


class Alternative(NamedTuple):
    """Another loader: what using it means ("Read the LMDB dataset"), what was measured of it, and the time of training
    on one of its batches, already on the device, whose memory layout can make that faster."""

    name: str
    loading: Loading
    step: Times


class Change(NamedTuple):
    what: str  # what to do, as a sentence
    options: Mapping[str, Any]
    """What to change of the loader: "num_workers", "prefetch_factor", "in_order", "pin_memory", "persistent_workers",
    "channels_last" -> value."""
    pipeline: Pipeline  # with it, to simulate
    alternative: int | None = None  # the number of the other loader that it reads; None for the present one


class Trial(NamedTuple):
    """A change that was tried: images/s of training with it, round by round and together, and the gain."""

    change: Change
    rates: tuple[float, ...]
    images_per_s: Interval
    gain: Interval

    @classmethod
    def of(cls, change: Change, rates: Sequence[float], within: float, now: Sequence[float], now_within: float) -> Self:
        """`now`: the present rates. `within`: standard error within a round, as a share."""
        gains = [rate / before for rate, before in zip(rates, now, strict=True)]
        return cls(change, tuple(rates), Interval.of(rates, within), Interval.of(gains, max(within, now_within)))

    @property
    def what(self) -> str:
        return self.change.what


@dataclass(frozen=True)
class Diagnosis:
    """Measurements of a loader and a training step, and conclusions."""

    loading: Loading  # without training
    step: Times  # on a batch that is already on the device
    step_cores: float  # that the step keeps busy
    copied_s: float  # of a step that first copies a batch from pinned memory to the device
    rates: tuple[float, ...]  # images/s of training, round by round, with the start of an epoch of known length
    batches: int  # that were trained on in a round
    start_s: float  # from the beginning of an epoch to its first batch
    epoch_batches: int | None  # None if not known
    cores: float  # that this process may use
    device: str  # of the step, as torch calls it
    alternatives: tuple[Alternative, ...] = ()
    within: float = 0.0  # standard error of the rates within a round, as a share
    tried: tuple[Trial, ...] = ()
    layout_step: Times | None = None  # on the same batch in channels-last memory; None where that is not faster
    own_python: tuple[float, str] | None = None  # CPU seconds of a step in the user's Python, and most of it in what
    storage_images_per_s: float | None = None  # with nothing in the page cache; None if not measured
    notes: tuple[str, ...] = ()  # sentences
    seconds: float = 0.0  # that the diagnosis took

    @cached_property
    def images_per_s(self) -> Interval:
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

    @property
    def start_share(self) -> float:
        """The share of an epoch that passes before its first batch; 0 if not known."""
        return 0.0 if self.epoch_batches is None else min(self.start_s / (self.epoch_batches * self.trained_s), 1.0)

    # What to simulate, and to try

    def pipeline(self, other: Alternative | None = None, workers: int | None = None) -> Pipeline:
        """The pipeline to simulate: as it is, or with another loader, or another number of workers."""
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
        """Simulated images/s of training, the start of an epoch included. Never above what the step alone makes."""
        rate = simulate(pipeline, batches=_LONG).batches_per_s(max(1, pipeline.workers * pipeline.prefetch))
        rate = min(rate, 1 / (pipeline.step.mean_s + pipeline.copy.mean_s))
        return self.loading.images * with_start(rate, self.start_s, self.epoch_batches)

    @cached_property
    def simulated_now(self) -> float:
        return self.simulated(self.pipeline())

    @property
    def disagreement(self) -> float:
        """By what share the simulated present differs from the measured one."""
        return abs(math.log(self.simulated_now / self.images_per_s.value))

    @cached_property
    def by_workers(self) -> dict[int, float]:
        """Simulated rate with each number of workers, times the simulated present; empty if it cannot be chosen."""
        counts = self._counts(self.loading) if self.loading.chosen else []
        return {count: self.simulated(self.pipeline(workers=count)) / self.simulated_now for count in counts}

    def _counts(self, loading: Loading) -> list[int]:
        """Numbers of workers to try: 0, 1, 2, 3, 4, 6, 8, ... up to as many as keep all cores busy. Where loading
        waits more than it works, that is more than there are cores."""
        most = max(loading.workers, min(math.ceil(self.cores / max(loading.cores, _LEAST_CORES)), _COUNTS[-1]))
        return sorted({0, loading.workers, most} | {count for count in _COUNTS if count <= most})

    def _best_workers(self, other: Alternative | None = None) -> int:
        """The fewest workers that are about as fast as any, at least one; as many as it has where it has no choice."""
        loading = self.loading if other is None else other.loading
        if not loading.chosen:
            return loading.workers
        counts = [count for count in self._counts(loading) if count]
        batches = max(_BATCHES, 4 * counts[-1] * loading.prefetch)
        return fewest_workers(sweep(self.pipeline(other), counts, batches=batches))

    def changes(self) -> list[Change]:
        """Return the changes worth trying, the most promising first: other loaders; another memory layout, where that
        makes the step faster; and, where compute is not the bottleneck, what makes the simulated present faster."""
        found = []
        for number, other in enumerate(self.alternatives):
            best = self._best_workers(other)
            how = f" with {plural(best, 'worker')}" if other.loading.chosen else ""
            options = {"num_workers": best} if best != other.loading.workers else {}
            found.append(Change(f"{other.name}{how}.", options, self.pipeline(other, best), number))
        if self.layout_step is not None:
            what = "Give the step batches in channels-last memory: images.to(memory_format=torch.channels_last)."
            found.append(Change(what, {"channels_last": True}, replace(self.pipeline(), step=self.layout_step)))
        if self.stages.bottleneck != "compute" and self.loading.chosen:
            changes = self._loader_changes()
            found += [one for one in changes if one.options.keys() & _UNSIMULATED or self._promise(one) >= _TRIED]
        return sorted(found, key=self._promise, reverse=True)

    def _promise(self, change: Change) -> float:
        """Return the largest speed-up that a change may bring."""
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
        if is_asynchronous(self.device) and not loading.pinned:
            yield Change("Pin memory: pin_memory=True.", {"pin_memory": True}, now)
        if loading.workers and loading.persistent is False and self.start_share >= _LONG_START:
            what = "Keep workers from epoch to epoch: persistent_workers=True."
            yield Change(what, {"persistent_workers": True}, now)

    # What came of it

    @cached_property
    def advice(self) -> tuple[Trial, ...]:
        """Trials that made training at least WORTH_WHILE times as fast, and by more than the error of that, best
        first."""
        worth = [one for one in self.tried if one.gain.value >= WORTH_WHILE and one.gain.low > 1]
        return tuple(sorted(worth, key=lambda one: -one.gain.value))

    @property
    def undecided(self) -> list[str]:
        """Trials that may bring much or nothing, in sentences: too few batches came to tell."""
        vague = [one for one in self.tried if one.gain.error > VAGUE]
        return [one.what for one in vague if one.gain.low <= 1 < WORTH_WHILE <= one.gain.high]

    @property
    def result(self) -> str:
        """Cost of loading in plain words, without a full stop; `headline` is its reason."""
        hardly = "Training hardly waits: if loading cost nothing, it" if self.stages.bottleneck == "compute" else ""
        bound = factor_text(self.stages.bound)
        return f"{hardly or 'If loading cost nothing, training'} would be {bound} times as fast"

    @property
    def headline(self) -> str:
        """The bottleneck in a few words."""
        return headline(self.stages, "training step" if self.device == "cpu" else "GPU")

    @property
    def explanation(self) -> str:
        """Explanation of the bottleneck and the best advice, in one paragraph."""
        loading, is_compute = self.loading, self.stages.bottleneck == "compute"
        said = [explanation(self.stages, round(loading.images))]
        if loading.parts and not is_compute:
            part = max(loading.parts, key=loading.parts.__getitem__)
            share = loading.parts[part] / sum(loading.parts.values())
            load = seconds_text(loading.load.mean_s)
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
                f"{how}{best.what[:-1]}: {rate_interval(best.images_per_s)} images/s, "
                f"{factor_interval(best.gain)} times the present {rate_text(self.images_per_s.value)}."
            )
            if best.gain.low > self.stages.bound:
                said.append("That is more than loading costs, since a step on its batches is faster, too.")
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

    def evidence(self) -> Iterator[tuple[str, str]]:
        """Yield (topic, figures), the most important first."""
        loading = self.loading
        yield "training now", f"{rate_interval(self.images_per_s)} images/s with {plural(loading.workers, 'worker')}"
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
            fastest, slowest = seconds_text(min(loading.worker_s)), seconds_text(max(loading.worker_s))
            yield "each worker", f"{fastest} to {slowest} per batch while all {len(loading.worker_s)} work"
        if self.device != "cpu":
            memory = "pinned memory" if is_asynchronous(self.device) else "memory"
            yield "copying", f"{seconds_text(max(self.copied_s - self.step.mean_s, 0))} per batch from {memory}"
        if self.storage_images_per_s is not None:
            yield "disk", f"{rate_text(self.storage_images_per_s)} images/s with nothing in the page cache"
        yield "cores", f"{self.cores:g}"
        simulated = f"{rate_text(self.simulated_now)} images/s for the pipeline as it is"
        yield "simulated", f"{simulated}, {self.disagreement:.0%} from what was measured"
        yield "rounds", f"{len(self.rates)}, of {plural(self.batches, 'batch', 'batches')} each"

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, what to do, and the evidence, without the rates by workers."""
        advice = [
            (one.what, f"{rate_text(one.images_per_s.value)} images/s, {factor_interval(one.gain)} ×")
            for one in self.advice
        ]
        return notebook_html(self.headline, [self.explanation, *self.notes], [*advice, *self.evidence()])

    def known(self) -> dict[str, Any]:
        """All of it as plain values of JSON."""
        same = "verdict possible_images_per_s rates disagreement storage_images_per_s cores notes seconds"
        stalls = self.stages.stalls._asdict()
        return {name: getattr(self, name) for name in same.split()} | {
            "bottleneck": self.stages.bottleneck,
            "utilisation": stalls["utilisation"],
            "stalls": {name: stalls[name] for name in ("copy", "preparation")},
            "images_per_s": asdict(self.images_per_s),
            "advice": [
                {
                    "what": one.what,
                    "images_per_s": asdict(one.images_per_s),
                    "gain": asdict(one.gain),
                    "workers": one.change.pipeline.workers,
                    "prefetch": one.change.pipeline.prefetch,
                }
                for one in self.advice
            ],
            "tried": [{"what": one.what, "images_per_s": one.rates} for one in self.tried],
            "step": {
                "resident_s": self.step.mean_s, "copied_s": self.copied_s, "trained_s": self.trained_s,
                "channels_last_s": None if self.layout_step is None else self.layout_step.mean_s,
                "own_python_s": None if self.own_python is None else self.own_python[0],
                "cores": self.step_cores, "device": self.device,
            },
            "epoch": {"batches": self.epoch_batches, "start_s": self.start_s, "start_share": self.start_share},
            "loading": self.loading.known(),
            "alternatives": {
                other.name: other.loading.known() | {"resident_s": other.step.mean_s} for other in self.alternatives
            },
            "workers": {str(workers): gain for workers, gain in self.by_workers.items()},
            "simulated_images_per_s": self.simulated_now,
        }  # fmt: skip


def with_start(rate: float, start_s: float, epoch: float | None) -> float:
    """The rate over an `epoch`, its length in what the rate counts, that begins with `start_s` without a batch. None:
    there is no end."""
    return rate if epoch is None else epoch / (start_s + epoch / rate)


def diagnosis_text(found: Diagnosis, width: int = 100) -> str:
    """The result, why, what to do and its gain, and the evidence, in lines of at most `width` characters."""
    lines = [f"{found.result}.", "", *textwrap.wrap(found.verdict, width), ""]
    if found.advice:
        lines.append("What to do (gains do not add up):")
        for advice in found.advice:
            rate, gain = rate_interval(advice.images_per_s), factor_interval(advice.gain)
            lines.append(f"  {rate:>12} images/s, {gain:>10} ×   {advice.what}")
        lines.append("")
    known = list(found.evidence())
    column = max(len(what) for what, _ in known)
    lines += [f"{what.ljust(column)}  {how}" for what, how in known]
    if found.by_workers:
        gains = "   ".join(f"{workers}: {factor_text(gain)}" for workers, gain in found.by_workers.items())
        lines += textwrap.wrap(
            f"{'by workers'.ljust(column)}  {gains} times as fast, simulated", width,
            subsequent_indent=" " * (column + 2),
        )  # fmt: skip
    if found.notes:
        lines += ["", *(line for note in found.notes for line in textwrap.wrap(note, width))]
    lines += ["", f"The diagnosis took {duration(found.seconds)}."]
    return "\n".join(lines)


def pictured(found: Diagnosis) -> list[PictureVariant]:
    """The pipeline as it is, and with the best advice: simulated, with the figures that were measured."""
    shown = [("as it is", found.pipeline(), found.images_per_s, "As measured", "")]
    for one in found.advice[:1]:
        gain = f", {factor_interval(one.gain)} times the present rate"
        shown.append((one.what[:-1], one.change.pipeline, one.images_per_s, "As tried", gain))
    variants = []
    for name, pipeline, rate, how, gain in shown:
        timeline = simulate(pipeline, batches=_ANIMATED)
        utilisation = min(rate.value * pipeline.step.mean_s / found.loading.images, 1.0)
        said = f"{how}: {rate_interval(rate)} images/s{gain}."
        if abs(timeline.utilisation - utilisation) >= _ALIKE:
            said += f" In the animation, which is simulated, training works {timeline.utilisation:.0%} of the time."
        variants.append(PictureVariant(name, timeline, round(found.loading.images), said, utilisation))
    return variants


def diagnosis_page(found: Diagnosis, of: str) -> str:
    """A self-contained page. `of` names what was diagnosed; it is escaped, like all text."""
    loaders = {"now": found.loading, **{other.name: other.loading for other in found.alternatives}}
    spent = {
        name: {WORDS[part]: loading.parts.get(part, 0.0) for part in PARTS}
        for name, loading in loaders.items()
        if loading.parts
    }
    found_charts = []
    if spent:
        totals = {name: seconds_text(sum(parts.values())) for name, parts in spent.items()}
        found_charts.append(charts.shares("What one worker does for a batch", spent, totals))
    if gains := {plural(count, "worker"): (gain, gain, gain) for count, gain in found.by_workers.items()}:
        found_charts.append(charts.bars("Training, times as fast as now, simulated", gains))
    return template("diagnosis.html").render(
        found=found,
        of=of,
        policy=picture_policy(),
        picture=picture(pictured(found)),
        good=found.stages.bottleneck == "compute",
        evidence=list(found.evidence()),
        charts=found_charts,
        took=duration(found.seconds),
        rate=rate_interval,
        factor=factor_interval,
    )
