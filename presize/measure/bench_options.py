"""Options of a benchmark, of one run of it, and of a diagnosis: frozen dataclasses that check themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Final, Literal, Self, get_args

from presize.errors import OptionError
from presize.formatting import plural
from presize.options import MAX_SIDE, Size, check_above_0, check_choice, check_range, check_type
from presize.system.resources import usable_cores

Variant = Literal["pil", "raw", "presized", "lmdb", "loader"]
Model = Literal["small", "resnet50"]
BenchModel = Literal["none", Model]
Device = Literal["cpu", "cuda"]
Pinning = Literal["on", "off", "both"]
Task = Literal["measure", "prove", "probe"]

VARIANTS: Final[tuple[Variant, ...]] = get_args(Variant)
"""In the order in which they are shown: Pillow and torchvision's transforms over the raw folder, FolderDataset over the
raw folder and over the presized one, and over the LMDB dataset LMDBDataset in a DataLoader and Loader."""

PINNINGS: Final[dict[Pinning, tuple[bool, ...]]] = {"on": (True,), "off": (False,), "both": (True, False)}

READS: Final[dict[Variant, str]] = {
    "pil": "raw", "raw": "raw", "presized": "presized", "lmdb": "lmdb", "loader": "lmdb",
}  # fmt: skip
"""What each variant reads."""


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    Attributes:
        variants: Variants to run; None for all that can be had.
        size: Target size of what has to be built; None for that of the dataset given, or else 256 px.
        crop: Side of the random resized crops, in pixels.
        models: Models to train; "none" measures the loader alone.
        device: Where to train.
        workers: Numbers of loader processes to try; None for one number, that of usable cores.
        pin_memory: Whether DataLoaders copy batches to pinned memory, which needs CUDA; both values to compare them.
            None for (True,) with CUDA and (False,) without.
        prefetch: Batches that each worker may be ahead.
        batch: Images per batch.
        epochs: Epochs in each run, the first included.
        repeats: Runs of each kind, each in a process of its own.
        steps: Batches after which an epoch ends; None for whole epochs.
        cold: Whether to measure a first epoch with the files dropped from the page cache, too.
        images: Number of samples to read, drawn at random; None for all.
        seed: Random seed.
    """

    variants: tuple[Variant, ...] | None = None
    size: Size | None = None
    crop: int = 224
    models: tuple[BenchModel, ...] = ("none", "small")
    device: Device = "cpu"
    workers: tuple[int, ...] | None = None
    pin_memory: tuple[bool, ...] | None = None
    prefetch: int = 2
    batch: int = 64
    epochs: int = 3
    repeats: int = 3
    steps: int | None = None
    cold: bool = False
    images: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, values, choices in (("variant", self.variants, Variant), ("model", self.models, BenchModel)):
            if values is not None:
                _check_several(name, values)
                for value in values:
                    check_choice(name, value, choices)
        check_choice("device", self.device, Device)
        if self.size is not None:
            check_type("size", self.size, Size)
            for side in self.size:
                check_range("size", side, 1, MAX_SIDE)
        check_range("crop", self.crop, 1, MAX_SIDE)
        if self.workers is not None:
            _check_several("workers", self.workers)
            for count in self.workers:
                check_range("workers", count, 0, 4096)
        if self.pin_memory is not None:
            _check_several("pin_memory", self.pin_memory)
            for pinned in self.pin_memory:
                check_type("pin_memory", pinned, bool)
            if self.device == "cpu" and True in self.pin_memory:
                raise OptionError(
                    "pin_memory: pinned memory needs a GPU; leave the option out, or choose --device cuda"
                )
        check_range("prefetch", self.prefetch, 1, 64)
        check_range("batch", self.batch, 1, 2**20)
        check_range("epochs", self.epochs, 1, 1000)
        check_range("repeats", self.repeats, 1, 1000)
        check_type("cold", self.cold, bool)
        check_range("seed", self.seed, 0, 2**62)
        for name in ("steps", "images"):
            value = getattr(self, name)
            if value is not None:
                check_range(name, value, 1, 2**48)

    def runs(self, variants: Sequence[Variant]) -> list[Run]:
        """The runs of one repeat, in no particular order: of each variant with each model, number of workers, kind of
        memory and state of the page cache."""
        workers = self.workers or (usable_cores(),)
        pinned = self.pin_memory or (self.device == "cuda",)
        caches = (False, True) if self.cold else (False,)
        return [
            Run(
                variant=variant,
                model=model,
                device=self.device,
                workers=count,
                pin_memory=pin,
                cold=cold,
                prefetch=self.prefetch,
                batch=self.batch,
                crop=self.crop,
                # A first epoch is all there is to see of cold files: they are in the page cache afterwards.
                epochs=1 if cold else self.epochs,
                steps=self.steps,
                seed=self.seed,
            )
            for model, count, pin, cold, variant in product(self.models, workers, pinned, caches, variants)
            # Loader pins its memory whenever it copies to a GPU.
            if variant != "loader" or pin == (self.device == "cuda")
        ]


@dataclass(frozen=True)
class DiagnoseOptions:
    """What to train for a diagnosis, and how long.

    Attributes:
        model: "small", a CNN that a core or two train about as fast as they read, or "resnet50".
        device: Where to train; None for CUDA if there is any.
        workers: Loader processes, from 0.
        prefetch: Batches that each worker may be ahead.
        batch: Images per batch.
        crop: Side of the random resized crops, in pixels.
        steps: Batches after which each part of the diagnosis ends, from 3.
        seconds: Seconds after which it ends if that is earlier, above 0.
        seed: Random seed of order and crops.
    """

    model: Model = "small"
    device: Device | None = None
    workers: int = 1
    prefetch: int = 2
    batch: int = 64
    crop: int = 224
    steps: int = 100
    seconds: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("model", self.model, Model)
        if self.device is not None:
            check_choice("device", self.device, Device)
        check_range("workers", self.workers, 0, 1024)
        check_range("prefetch", self.prefetch, 1, 64)
        check_range("batch", self.batch, 1, 2**20)
        check_range("crop", self.crop, 1, MAX_SIDE)
        check_range("steps", self.steps, 3, 1_000_000)
        check_above_0("seconds", self.seconds)


def _check_several(name: str, values: object) -> None:
    if not isinstance(values, tuple) or not values:
        raise OptionError(f"{name}: expected at least one, got {values!r}")
    if len(set(values)) < len(values):
        raise OptionError(f"{name}: each may be asked for once, got {', '.join(map(str, values))}")


@dataclass(frozen=True)
class Run:
    """One run of a benchmark, which a process of its own gets as JSON.

    Attributes:
        task: "measure" times epochs, "prove" reads every sample once, "probe" looks for the device.
        root: Folder or dataset that the variant reads.
        numbers: NumPy file (.npy, int64) with the numbers of the samples to read; None for all.
        crops: NumPy file (.npy) to save evaluation crops in, for the task "prove"; None saves none.

    The others are as in BenchOptions.
    """

    variant: Variant
    model: BenchModel
    device: Device
    workers: int
    pin_memory: bool
    cold: bool
    prefetch: int
    batch: int
    crop: int
    epochs: int
    steps: int | None
    seed: int
    task: Task = "measure"
    root: str = ""
    numbers: str | None = None
    crops: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def __str__(self) -> str:
        """In words, without paths: ``loader, small on cpu, 2 workers, cold``."""
        what = "no model" if self.model == "none" else self.model
        words = [self.variant, f"{what} on {self.device}", plural(self.workers, "worker")]
        return ", ".join(words + ["pinned"] * self.pin_memory + ["cold"] * self.cold)
