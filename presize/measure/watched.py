"""How long a script waited for the batches of its loaders -> the verdict on each, in words and for machines. Pure.

Seconds are those of the script's own loop: the wait for each batch, and the time from a batch to the request of the
next one, which is the step and whatever else the loop does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from presize.formatting import factor_text, plural, printable, rate_text, seconds_text
from presize.measure.simulation import regular_stops
from presize.measure.stages import (
    UNKNOWN_ERROR,
    Bottleneck,
    Interval,
    Quantiles,
    bottleneck,
    bottleneck_words,
    interval_text,
)

LEAST_BATCHES = 10
"""Batches after the first of an epoch without which nothing is said."""

_CHUNKS = 10
_SLOW_SHARE = 0.6
_NOTHING_ELSE = 0.99
_LONG_START = 0.05
_BUSY, _IDLE = 0.85, 0.5
"""Shares of a core from which a worker is at its limit, and below which it mostly waits."""


@dataclass(frozen=True)
class Watched:
    """A loader that a script iterated.

    Attributes:
        name: What it is, in words.
        workers: Loader processes.
        prefetch: Batches requested of each worker ahead; None without workers.
        in_order: Whether batches come in the order in which they were requested; None where that cannot be chosen.
        persistent: Whether workers live on from epoch to epoch; None where that cannot be chosen.
        pinned: Whether its batches are copied to pinned memory; None where that cannot be chosen, or brings nothing.
        cores: CPU cores that may be used.
        images: Images in a batch, on average; 0 where that is not known.
        starts_s: Seconds from the beginning of each epoch to its first batch.
        waits_s: Seconds that the script waited for each other batch.
        steps_s: Seconds from each batch to the request of the next one, without those of epochs of other loaders that
            ran meanwhile.
        idle_s: Seconds of `waits_s` in which the GPU had nothing to do; None without CUDA.
        worker_cores: Cores that a worker kept busy, on average; None where that is not known.
    """

    name: str
    workers: int
    prefetch: int | None
    in_order: bool | None
    persistent: bool | None
    pinned: bool | None
    cores: float
    images: float
    starts_s: Sequence[float]
    waits_s: Sequence[float]
    steps_s: Sequence[float]
    idle_s: float | None = None
    worker_cores: float | None = None

    @property
    def batches(self) -> int:
        return len(self.starts_s) + len(self.waits_s)

    @property
    def is_known(self) -> bool:
        """Whether there were enough batches to say something."""
        return len(self.waits_s) >= LEAST_BATCHES

    @property
    def seconds(self) -> float:
        """Seconds of its epochs."""
        return sum(self.starts_s) + sum(self.waits_s) + sum(self.steps_s)

    @property
    def wait(self) -> float:
        """The share of its epochs that training waited for batches, 0 to 1; of a GPU, that it was idle meanwhile."""
        waited_s = sum(self.waits_s) if self.idle_s is None else self.idle_s
        return (sum(self.starts_s) + waited_s) / self.seconds if self.seconds else 0.0

    @property
    def start(self) -> float:
        """The share of its epochs that passed before their first batches."""
        return sum(self.starts_s) / self.seconds if self.seconds else 0.0

    @property
    def bottleneck(self) -> Bottleneck:
        return bottleneck(1 - self.wait)

    @cached_property
    def images_per_s(self) -> Interval:
        """The rate of training between the first and the last batch of an epoch, from tenths of all batches; in
        batches/s where the images in them are not known."""
        times = [wait + step for wait, step in zip(self.waits_s, self.steps_s, strict=False)]
        size = max(len(times) // _CHUNKS, 2 * self.workers, 1)  # workers that begin together deliver together
        chunks = [times[at : at + size] for at in range(0, len(times) - size + 1, size)]
        rates = [(self.images or 1) * len(chunk) / sum(chunk) for chunk in chunks if sum(chunk) > 0]
        return Interval.of(rates) if rates else Interval(0.0, UNKNOWN_ERROR)

    @property
    def unit(self) -> str:
        """What is counted."""
        return "images" if self.images else "batches"

    @property
    def headline(self) -> str:
        """The bottleneck, in a sentence."""
        return f"{bottleneck_words(1 - self.wait)}: training waits {self.wait:.0%} of the time for batches"

    def sentences(self) -> Iterator[str]:
        """Yield what was seen, and what to try."""
        if self.wait > _NOTHING_ELSE:
            yield "The script does next to nothing but wait for batches."
        else:
            gain = factor_text(1 / (1 - self.wait))
            yield f"If loading cost nothing, training would be {gain} times as fast."
        every = self._stops_every
        if every:
            yield f"It stops before every {every}th batch: workers that begin together deliver together."
        if self.worker_cores is not None and self.workers:
            yield f"Each worker keeps {self.worker_cores:.0%} of a core busy."
        if self.bottleneck != "compute":
            yield from self._advice()

    @property
    def _stops_every(self) -> int | None:
        return regular_stops(self.waits_s, 2 * (self.workers or 1), self.seconds)

    @property
    def _slow_share(self) -> float:
        """The share of the waiting that one batch in ten takes."""
        waits = sorted(self.waits_s, reverse=True)
        return sum(waits[: len(waits) // 10]) / (sum(waits) or 1)

    def _advice(self) -> Iterator[str]:
        if self.workers > 1 and self.prefetch and self._slow_share >= _SLOW_SHARE and not self._stops_every:
            also = " or in_order=False (the order of samples then varies)" if self.in_order else ""
            yield (
                f"{self._slow_share:.0%} of the waiting is for one batch in ten: slow batches hold up the others. "
                f"Try prefetch_factor={2 * self.prefetch}{also}."
            )
        if self.workers == 0:
            count = max(1, min(4, int(self.cores)))
            yield f"Try num_workers={count}: now batches are made between steps."
        elif self.worker_cores is not None:
            spare = self.cores - self.workers
            if self.worker_cores >= _BUSY and spare >= 1:
                more = self.workers + int(spare)
                yield f"Try num_workers={more}: the workers are at their limit, and {plural(spare, 'core')} are left."
            elif self.worker_cores >= _BUSY:
                yield "The workers are at their limit, and so are the cores: make less work of an image, by presizing."
            elif self.worker_cores < _IDLE:
                yield "The workers wait, too: for the disk, for cores, or for their batches to be taken."
        if self.start >= _LONG_START:
            again = self.persistent is False and self.workers and len(self.starts_s) > 1
            how = "Try persistent_workers=True: " if again else ""
            yield f"{how}{self.start:.0%} of the time passes before the first batch of an epoch."
        if self.pinned is False:
            yield "Try pin_memory=True: batches are copied to the GPU from pageable memory."

    def known(self) -> dict[str, Any]:
        """All of it as plain values of JSON."""
        waits = Quantiles.of(self.waits_s) if self.waits_s else None
        return {
            "name": self.name,
            "headline": self.headline if self.is_known else None,
            "sentences": list(self.sentences()) if self.is_known else [],
            "bottleneck": self.bottleneck,
            "images_per_s": self.images_per_s.known(),
            "wait": self.wait,
            "start": self.start,
            "epochs": len(self.starts_s),
            "batches": self.batches,
            "images": self.images,
            "unit": self.unit,
            "seconds": self.seconds,
            "workers": self.workers,
            "worker_cores": self.worker_cores,
            "wait_p50_s": None if waits is None else waits.p50_s,
            "wait_p99_s": None if waits is None else waits.p99_s,
        }


def watched_text(found: Sequence[Watched], ranks: Sequence[dict[str, Any] | None] = ()) -> str:
    """The verdict on each loader, and on ranks: the `known` of the first loader of each."""
    lines: list[str] = []
    for one in found:
        lines.append(f"{printable(one.name)}:")
        if not one.is_known:
            lines.append(f"  {plural(one.batches, 'batch', 'batches')} came: too few to say anything.")
            continue
        rate = one.images_per_s
        step_s = sum(one.steps_s) / max(len(one.steps_s), 1)
        lines += [f"  {one.headline}.", *(f"  {sentence}" for sentence in one.sentences())]
        of = f" of {one.images:.0f}" if one.images else ""
        lines.append(
            f"  {interval_text(rate, rate_text)} {one.unit}/s in {plural(one.batches, 'batch', 'batches')}"
            f"{of}; {seconds_text(step_s)} from a batch to the next request, the step and all else in the loop, then "
            f"{seconds_text(sum(one.waits_s) / len(one.waits_s))} of waiting."
        )
    if not found:
        lines.append("No DataLoader or Loader was iterated: there is nothing to diagnose.")
    waits = {rank: known["wait"] for rank, known in enumerate(ranks) if known is not None}
    if len(waits) > 1:
        slowest = max(waits, key=waits.__getitem__)
        shares = ", ".join(f"{rank}: {wait:.0%}" for rank, wait in waits.items())
        lines.append(f"Ranks wait for batches (share of the time): {shares}.")
        if waits[slowest] > 2 * min(waits.values()) and waits[slowest] - min(waits.values()) > 1 - _BUSY:
            lines.append(f"Rank {slowest} is the straggler: the others wait for it in each step.")
    return "\n".join(lines)


def compared_text(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What changed from one result of ``diagnose --json`` to another, loader by loader. Raises KeyError where one of
    them is of something else."""
    lines = []
    pairs = zip(_parts(before), _parts(after), strict=False)
    for (name, old), (_, new) in pairs:
        was, now = (Interval(**one["images_per_s"]) for one in (old, new))
        if not was.value or not now.value:
            lines.append(f"{printable(name)}: too few batches came to compare")
            continue
        gain = Interval(now.value / was.value, (was.error**2 + now.error**2) ** 0.5)
        verdict = "faster" if gain.low > 1 else "slower" if gain.high < 1 else "no difference that could not be chance"
        lines.append(
            f"{printable(name)}: {interval_text(was, rate_text)} → {interval_text(now, rate_text)} "
            f"{old.get('unit', 'images')}/s, {interval_text(gain, factor_text)} times: {verdict}"
        )
        lines.append(f"  waiting for batches: {_waiting(old):.0%} → {_waiting(new):.0%} of the time")
    return "\n".join(lines)


def _parts(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    loaders: list[dict[str, Any]] | None = found.get("loaders")
    return [("training", found)] if loaders is None else [(one["name"], one) for one in loaders]


def _waiting(one: dict[str, Any]) -> float:
    share: float = one["wait"] if "wait" in one else 1 - one["utilisation"]
    return share
