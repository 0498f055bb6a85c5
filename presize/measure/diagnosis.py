"""Model of training: what diagnose measures of a loader and a step, the conclusions, and their text and page. Pure; no
torch.

Each of these is measured several times, in seconds per batch:

    load      a single worker makes a batch and hands it over; a simulation predicts any number of workers from it
    step      training on one batch of the loader that stays on the device, before and after each round of training;
              never longer than training on the same batches from any loader takes
    start     from the beginning of an epoch to its first batch
    trained   training on the batches of the loader, over whole epochs or whole bursts of its workers

    U     = step / trained      share of the time that the step works
    1 / U                       speed-up of training if loading cost nothing
    epoch = start + n · trained for n batches
    rate  = images / trained, ± by the spread of rounds (presize.measure.stages.Interval), of all rates and of the step
            together where that is larger
    gain  = rate with a change / rate without it, round by round, ± likewise

A simulation of the pipeline (presize.measure.simulation) only chooses the changes to try. Training then runs with each
change. The simulation is not fitted to the measurements: the diagnosis reports by how much they disagree.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

WORTH_WHILE = 1.05  # smallest gain that becomes advice: runs differ by that much
_TRIED = 1.03  # smallest simulated gain for which a change is tried
_UNSIMULATED = {"pin_memory", "persistent_workers"}  # tried wherever they could help
_LONG_START = 0.05  # share of an epoch before its first batch that is worth reporting
_LEAST_CORES = 0.1  # loading that keeps less of a core busy counts as keeping this much busy
_BATCHES, _LONG = 200, 1000  # simulated batches to choose a number of workers, and to predict a rate
_ANIMATED = 60
_ALIKE = 0.05  # utilisations that differ by less count as equal
_COUNTS: Sequence[int] = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)


@dataclass(frozen=True)
class Loading:
    """Measurements of a loader while nothing trains."""

    images: float  # per batch
    load: Times  # for a single worker to make a batch and hand it over
    in_process: Times  # to make a batch in the training process
    handover_s: float  # for training to receive a finished batch
    cores: float  # kept busy by making one batch
    workers: int  # 0 if batches are made in the training process
    prefetch: int  # batches requested ahead per worker
    in_order: bool | None  # whether batches come in the order of requests; None if they always do
    chosen: bool  # whether the number of workers can be chosen; False for an unknown kind of iterable
    batches_per_s: float  # of all workers together
    first_batch_s: float  # from the start of the loader
    persistent: bool | None = None  # whether workers survive the end of an epoch; None if that cannot be chosen
    pinned: bool = False  # whether batches are in pinned memory, or already on the device
    worker_s: tuple[float, ...] = ()  # mean time of each worker per batch while all of them work
    parts: dict[Part, float] = field(default_factory=dict)  # seconds of `load` by part; empty if not known
    functions: tuple[tuple[str, Part, float], ...] = ()  # (name, part, share of all own time), longest first
    frames: Mapping[str, float] = field(default_factory=dict)  # share of time of other code, by function of the user

    def known(self) -> dict[str, Any]:
        """Return everything as plain values of JSON."""
        same = "images handover_s cores workers prefetch in_order persistent first_batch_s worker_s functions frames"
        return {name: getattr(self, name) for name in same.split()} | {
            "load_s": self.load.mean_s,
            "load_cv": self.load.cv,
            "in_process_s": self.in_process.mean_s,
            "images_per_s": self.images * self.batches_per_s,
            "parts_s": self.parts,
        }


class Alternative(NamedTuple):
    """Another loader to try."""

    name: str  # advice to use it, such as "Read the LMDB dataset"
    loading: Loading
    step: Times  # on one of its batches that is already on the device; its memory layout can make that faster


class Change(NamedTuple):
    what: str  # advice, as a sentence
    options: Mapping[str, Any]
    """New options of the loader: "num_workers", "prefetch_factor", "in_order", "pin_memory", "persistent_workers",
    "channels_last" -> value."""
    pipeline: Pipeline  # with the change, to simulate
    alternative: int | None = None  # number of the other loader to use; None for the present one

    @property
    def has_own_step(self) -> bool:
        """True if batches differ from the present ones, and with them the time of the step."""
        return self.alternative is not None or "channels_last" in self.options


class Trial(NamedTuple):
    """Result of trying a change: images/s of training with it, by round and together, and the gain."""

    change: Change
    rates: tuple[float, ...]
    images_per_s: Interval
    gain: Interval

    @property
    def what(self) -> str:
        return self.change.what


@dataclass(frozen=True)
class Diagnosis:
    """Measurements of a loader and a training step, and conclusions."""

    loading: Loading  # without training
    step: Times  # on a batch that is already on the device
    step_cores: float  # kept busy by the step
    copied_s: float  # a step that first copies a batch from pinned memory to the device
    rates: tuple[float, ...]  # images/s of training, by round; they include the start of an epoch of known length
    batches: int  # number trained on in a round
    start_s: float  # from the beginning of an epoch to its first batch
    epoch_batches: int | None  # None if not known
    cores: float  # available to this process
    device: str  # of the step, in torch's words
    alternatives: tuple[Alternative, ...] = ()
    within: float = 0.0  # standard error of the rates within a round, as a share
    noise: float = 0.0  # spread of all rates and of the step together (presize.measure.stages.noise_of)
    tried: tuple[Trial, ...] = ()
    layout_step: Times | None = None  # on the same batch in channels-last memory; None if that is not faster
    own_python: tuple[float, str] | None = None  # CPU seconds of a step in the user's Python; function with most of it
    storage_images_per_s: float | None = None  # with an empty page cache; None if not measured
    notes: tuple[str, ...] = ()  # sentences
    seconds: float = 0.0  # duration of the diagnosis

    @cached_property
    def images_per_s(self) -> Interval:
        return Interval.of(self.rates, self.within, self.noise)

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
        """Share of an epoch that passes before its first batch; 0 if not known."""
        return 0.0 if self.epoch_batches is None else min(self.start_s / (self.epoch_batches * self.trained_s), 1.0)

    def with_trials(self, changes: Iterable[tuple[Change, Sequence[float], float]]) -> Self:
        """Return the diagnosis with the results of changes: their rates, by round, and `within` of these."""
        trials = []
        for change, rates, within in changes:
            gains = [rate / before for rate, before in zip(rates, self.rates, strict=True)]
            gain = Interval.of(gains, max(within, self.within))  # a drift of the machine cancels out
            trials.append(Trial(change, tuple(rates), Interval.of(rates, within, self.noise), gain))
        return replace(self, tried=tuple(trials))

    # Simulating, and choosing what to try

    def pipeline(self, other: Alternative | None = None, workers: int | None = None) -> Pipeline:
        """Return the pipeline to simulate: unchanged, with another loader, or with another number of workers."""
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
        """Return simulated images/s, including the start of an epoch. At most the rate of the step with its copy."""
        rate = simulate(pipeline, batches=_LONG).batches_per_s(max(1, pipeline.workers * pipeline.prefetch))
        rate = min(rate, 1 / (pipeline.step.mean_s + pipeline.copy.mean_s))
        return self.loading.images * with_start(rate, self.start_s, self.epoch_batches)

    @cached_property
    def simulated_now(self) -> float:
        return self.simulated(self.pipeline())

    @property
    def disagreement(self) -> float:
        """Difference between the simulated and the measured present rate, as a share."""
        return abs(math.log(self.simulated_now / self.images_per_s.value))

    @cached_property
    def by_workers(self) -> dict[int, float]:
        """Simulated speed-up for each number of workers, over the simulated present; empty if it cannot be chosen."""
        counts = self._counts(self.loading) if self.loading.chosen else []
        return {count: self.simulated(self.pipeline(workers=count)) / self.simulated_now for count in counts}

    def _counts(self, loading: Loading) -> list[int]:
        """Return the numbers of workers to try: 0, 1, 2, 3, 4, 6, 8, ... up to the number that keeps all cores busy.
        That is more than the number of cores if loading also waits."""
        most = max(loading.workers, min(math.ceil(self.cores / max(loading.cores, _LEAST_CORES)), _COUNTS[-1]))
        return sorted({0, loading.workers, most} | {count for count in _COUNTS if count <= most})

    def _best_workers(self, other: Alternative | None = None) -> int:
        """Return the fewest workers, at least one, that are about as fast as any; the present ones if not `chosen`."""
        loading = self.loading if other is None else other.loading
        if not loading.chosen:
            return loading.workers
        counts = [count for count in self._counts(loading) if count]
        batches = max(_BATCHES, 4 * counts[-1] * loading.prefetch)
        return fewest_workers(sweep(self.pipeline(other), counts, batches=batches))

    def changes(self) -> list[Change]:
        """Return the changes worth trying, most promising first: other loaders, another memory layout if it makes the
        step faster, and, unless compute is the bottleneck, options that make the simulated pipeline faster."""
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
        """Return the largest speed-up that a change promises."""
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
            what = "Take batches as they finish: in_order=False (the order of samples then varies)."
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

    # Conclusions
    @cached_property
    def advice(self) -> tuple[Trial, ...]:
        """Trials that made training at least WORTH_WHILE times as fast, by more than the error, best first."""
        worth = [one for one in self.tried if one.gain.value >= WORTH_WHILE and one.gain.low > 1]
        return tuple(sorted(worth, key=lambda one: -one.gain.value))

    @property
    def undecided(self) -> list[str]:
        """Advice of trials that had too few batches to tell a gain from none, in sentences."""
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
                f"{seconds_text(own_s)} of a step of {seconds_text(self.step.mean_s)} is CPU time of Python in the "
                f"training loop, most of it in {frame}; faster loading does not change that."
            )
        if self.advice:
            best = self.advice[0]
            how = "The step itself can become faster. " if is_compute else ""
            said.append(
                f"{how}{best.what[:-1]}: {rate_interval(best.images_per_s)} images/s, "
                f"{factor_interval(best.gain)} times the present {rate_text(self.images_per_s.value)}."
            )
            if best.gain.low > self.stages.bound:
                said.append("The gain exceeds the cost of loading because steps on the new batches are also faster.")
        if self.undecided:
            said.append(f"Too few batches to measure these changes: {' '.join(self.undecided)} Measure for longer.")
        elif not self.advice and not is_compute:
            said.append("No change that was tried made training more than 5% faster.")
        return " ".join(said)

    def _frame(self, part: Part) -> str:
        """Return words for the function that takes most of the part "other", preferably one of the user's; empty for
        other parts."""
        loading = self.loading
        if part != "other":
            return ""
        half = loading.parts.get("other", 0.0) / (2 * loading.load.mean_s)
        frames = [*loading.frames, *(name for name, of, share in loading.functions if of == "other" and share > half)]
        return f", most of it in {frames[0]}" if frames else ""

    @property
    def verdict(self) -> str:
        """The bottleneck and the best advice, in one paragraph."""
        return f"{self.headline}. {self.explanation}"

    def evidence(self) -> Iterator[tuple[str, str]]:
        """Yield (topic, figures), most important first."""
        loading = self.loading
        yield "training now", f"{rate_interval(self.images_per_s)} images/s with {plural(loading.workers, 'worker')}"
        possible = f"{rate_text(self.possible_images_per_s)} images/s: {seconds_text(self.step.mean_s)} per step"
        yield "step alone", f"{possible}, {seconds_text(self.trained_s)} with the loader"
        alone = f"{rate_text(loading.images * loading.batches_per_s)} images/s"
        yield "loader alone", f"{alone}; first batch after {seconds_text(loading.first_batch_s)}"
        if self.epoch_batches is not None:
            start = f"{plural(self.epoch_batches, 'batch', 'batches')}, the first after {seconds_text(self.start_s)}"
            yield "epoch", f"{start}, {self.start_share:.1%} of the epoch"
        load = f"{seconds_text(loading.load.mean_s)} ± {loading.load.cv:.0%} per batch of {loading.images:.0f}"
        yield "one worker", f"{load}, {loading.cores:.0%} of it CPU time"
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
        simulated = f"{rate_text(self.simulated_now)} images/s for the present pipeline"
        yield "simulated", f"{simulated}, {self.disagreement:.0%} from the measured rate"
        yield "rounds", f"{len(self.rates)}, of {plural(self.batches, 'batch', 'batches')} each"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the verdict, the advice and the evidence, without the rates by workers."""
        advice = [
            (one.what, f"{rate_text(one.images_per_s.value)} images/s, {factor_interval(one.gain)} ×")
            for one in self.advice
        ]
        return notebook_html(self.headline, [self.explanation, *self.notes], [*advice, *self.evidence()])

    def known(self) -> dict[str, Any]:
        """Return everything as plain values of JSON."""
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
    """Return the mean rate over an epoch that begins with `start_s` without a batch. `epoch`: its length in the units
    of the rate; None for an endless one."""
    return rate if epoch is None else epoch / (start_s + epoch / rate)


def diagnosis_text(found: Diagnosis, width: int = 100) -> str:
    """Return result, verdict, advice with gains, and evidence, in lines of at most `width` characters."""
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
    """Return simulations of the present pipeline and of the best advice, with the measured figures."""
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
    """Return a self-contained page. `of`: name of what was diagnosed. All text is escaped."""
    loaders = {"now": found.loading, **{other.name: other.loading for other in found.alternatives}}
    spent = {
        name: {WORDS[part]: loading.parts.get(part, 0.0) for part in PARTS}
        for name, loading in loaders.items()
        if loading.parts
    }
    found_charts = []
    if spent:
        totals = {name: seconds_text(sum(parts.values())) for name, parts in spent.items()}
        found_charts.append(charts.shares("Time of one worker per batch", spent, totals))
    if gains := {plural(count, "worker"): (gain, gain, gain) for count, gain in found.by_workers.items()}:
        found_charts.append(charts.bars("Simulated speed of training, now = 1", gains))
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
