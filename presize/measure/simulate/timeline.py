"""What a simulation came to: each load, each step, the queue between them, and what can be read off them. Pure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from presize.measure.simulate.pipeline import Pipeline
from presize.measure.stages import bottleneck


@dataclass
class Load:
    """One batch being loaded by one worker.

    Attributes:
        worker: Its number, from 0.
        batch: Its number, from 0.
        begin_s: When loading began, in seconds from the start.
        work_s: Seconds that it takes with all the cores that it wants.
        end_s: When it was done; None if the simulation ended first.
    """

    worker: int
    batch: int
    begin_s: float
    work_s: float
    end_s: float | None = None


@dataclass
class SimulatedStep:
    """One batch on its way through training.

    Attributes:
        batch: Its number, from 0.
        ready_s: When it could have been taken, in seconds from the start.
        taken_s: When training took it.
        wait_s: Seconds that training had waited for it.
        work_s: Seconds that the step takes with all the cores that it wants.
        begin_s: When it had been copied and the step began; None if the simulation ended first.
        end_s: When the step was done; None if the simulation ended first.
    """

    batch: int
    ready_s: float
    taken_s: float
    wait_s: float
    work_s: float
    begin_s: float | None = None
    end_s: float | None = None


@dataclass(frozen=True)
class Timeline:
    """What happened in a simulation, in seconds from its start.

    Attributes:
        pipeline: What was simulated.
        seconds: Length of the simulation.
        loads: Batches loaded, in the order in which that began.
        ready: (seconds, batch) of each batch that was finished, in that order.
        steps: Training steps, in the order in which they began.
        step_work_s: Work done in steps, in the seconds that it takes with all the cores that they want.
    """

    pipeline: Pipeline
    seconds: float
    loads: tuple[Load, ...]
    ready: tuple[tuple[float, int], ...]
    steps: tuple[SimulatedStep, ...]
    step_work_s: float

    @property
    def batches(self) -> int:
        """Steps that were completed."""
        return sum(step.end_s is not None for step in self.steps)

    @property
    def utilisation(self) -> float:
        """Share of the time that the training step took, from 0 to 1: U of presize.measure.stages."""
        return self.step_work_s / self.seconds if self.seconds else 0.0

    @property
    def stall(self) -> float:
        """Share of the time that training waited for a batch, from 0 to 1.

        What is neither utilisation nor stall went into copies, and into steps that were short of cores.
        """
        return math.fsum([*self.waits_s, self._last_wait_s]) / self.seconds if self.seconds else 0.0

    @property
    def waits_s(self) -> list[float]:
        """Seconds that training waited for the batch of each step."""
        return [step.wait_s for step in self.steps]

    @property
    def _last_wait_s(self) -> float:
        """Seconds waited for a batch that had not come when the simulation ended."""
        end_s = self.steps[-1].end_s if self.steps else 0.0
        return 0.0 if end_s is None else self.seconds - end_s

    def batches_per_s(self, warmup_steps: int = 0) -> float:
        """Mean rate over the whole simulation.

        Args:
            warmup_steps: Leave out so many steps at the start, and count whole rounds of as many after them: workers
                that start together deliver their first batches together.
        """
        ends = [step.end_s for step in self.steps if step.end_s is not None]
        rounds = len(ends) // warmup_steps - 1 if warmup_steps else 0
        span_s = ends[warmup_steps * (rounds + 1) - 1] - ends[warmup_steps - 1] if rounds > 0 else 0.0
        if span_s > 0:
            return warmup_steps * rounds / span_s
        return len(ends) / self.seconds if self.seconds else 0.0

    def queue(self) -> list[tuple[float, int]]:
        """Length of the queue of finished batches: (seconds, length from then on) for each change."""
        changes = Counter(at for at, _ in self.ready)
        changes.subtract(step.taken_s for step in self.steps)
        lengths = [(0.0, 0)]
        for at, change in sorted(changes.items()):
            if change:
                lengths.append((at, lengths[-1][1] + change))
        return lengths

    def queue_mean(self) -> float:
        """Mean length of the queue of finished batches, over time."""
        queue = self.queue()
        ends = [*(at for at, _ in queue[1:]), self.seconds]
        spent = math.fsum((end - at) * length for (at, length), end in zip(queue, ends, strict=True))
        return spent / self.seconds if self.seconds else 0.0

    def stops_every(self) -> int | None:
        """n if training stalls regularly, before every n-th batch; None otherwise.

        That is how n workers that start together and take equally long show. Regular means that at least 4/5 of the
        waiting, that for the first batch left out, falls on every n-th batch, and that those stalls are about equally
        long (coefficient of variation up to 1/4).
        """
        waits = np.array(self.waits_s[1:])
        if waits.sum() <= 0.01 * self.seconds:
            return None
        found = []
        for period in range(2, min(2 * max(self.pipeline.workers, 1), len(waits) // 3) + 1):
            stops = max((waits[first::period] for first in range(period)), key=np.sum)
            if stops.std() <= stops.mean() / 4:
                found.append((stops.sum() / waits.sum(), -period))
        share, period = max(found, default=(0.0, 0))
        return -period if share >= 0.8 else None

    def known(self) -> dict[str, Any]:
        """The timeline as JSON has it, times in seconds rounded to the nanosecond."""

        def line(*values: float | None) -> list[float | None]:
            return [value if value is None else round(value, 9) for value in values]

        return {
            "batches": self.batches,
            "seconds": round(self.seconds, 9),
            "batches_per_s": round(self.batches_per_s(), 9),
            "utilisation": round(self.utilisation, 9),
            "stall": round(self.stall, 9),
            "bottleneck": bottleneck(self.utilisation),
            "stops_every": self.stops_every(),
            "workers": self.pipeline.workers,
            "prefetch": self.pipeline.prefetch,
            "loads": [line(load.worker, load.batch, load.begin_s, load.end_s) for load in self.loads],
            "steps": [line(step.batch, step.ready_s, step.taken_s, step.begin_s, step.end_s) for step in self.steps],
            "queue": [line(*change) for change in self.queue()],
        }
