"""A loader measured without training: time per batch, what that time goes to, rate of all workers. Pure; no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from presize.measure.profile import Part
from presize.measure.simulation import Times
from presize.measure.stages import Quantiles

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
