"""Options of a benchmark, of one run of it, and of a diagnosis: frozen dataclasses that check themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal, get_args

from presize.errors import OptionError
from presize.formatting import plural
from presize.option_fields import check_above_0, check_each_once, check_options, check_range, documented, option
from presize.options import MAX_SIDE, Size
from presize.system.resources import is_asynchronous, usable_cores

Variant = Literal["pil", "raw", "presized", "lmdb", "loader"]
Model = Literal["small", "resnet50"]
BenchModel = Literal["none", Model]
Pinning = Literal["on", "off", "both"]
Task = Literal["measure", "prove", "probe"]

# In order of display: the raw folder with Pillow and torchvision's transforms, the raw and the presized folder with
# FolderDataset, and the LMDB dataset with LMDBDataset in a DataLoader, and with Loader.
VARIANTS: Final[tuple[Variant, ...]] = get_args(Variant)
READS: Final[dict[Variant, str]] = {
    "pil": "raw", "raw": "raw", "presized": "presized", "lmdb": "lmdb", "loader": "lmdb",
}  # fmt: skip
PINNINGS: Final[dict[Pinning, tuple[bool, ...]]] = {"on": (True,), "off": (False,), "both": (True, False)}


@documented
@dataclass(frozen=True)
class BenchOptions:
    """Options of a benchmark."""

    variants: tuple[Variant, ...] | None = option(None, "Variants to run.", unset="all", flag="--variant")
    models: tuple[BenchModel, ...] = option(
        ("none", "small"), "Models to train; none times only the loader.", flag="--model"
    )
    device: str = option("cpu", "Device to train on, such as cuda, xpu or mps.", metavar="DEVICE")
    workers: tuple[int, ...] | None = option(
        None, "Loader processes; may be repeated.", unset="all cores", metavar="N", high=4096
    )
    pin_memory: tuple[bool, ...] | None = option(
        None,
        "Pinning of batches by DataLoaders, which needs CUDA or XPU; both values to compare them. "
        "None for (True,) on CUDA and XPU, (False,) elsewhere.",
        flag=None,
    )
    prefetch: int = option(2, "Batches ahead per worker.", metavar="N", low=1, high=64)
    batch: int = option(64, "Images per batch.", metavar="N", low=1, high=2**20)
    crop: int = option(224, "Side of random crops, in pixels.", metavar="PX", low=1, high=MAX_SIDE)
    size: Size | None = option(
        None,
        "Size of the datasets to build.",
        unset="that of a given dataset, else 256", metavar="N|WxH", parse=Size.parse,
    )  # fmt: skip
    epochs: int = option(
        3,
        "Epochs in each run.",
        "Rates leave out the first, unless it is the only one.",
        metavar="N", low=1, high=1000,
    )  # fmt: skip
    steps: int | None = option(
        None, "End epochs after N batches.", unset="whole epochs", metavar="N", low=1, high=2**48
    )
    repeats: int = option(3, "Runs per configuration.", "Each is a separate process.", metavar="N", low=1, high=1000)
    cold: bool = option(False, "Also measure with cold files, dropped from the page cache.", "Cold runs are one epoch.")
    images: int | None = option(None, "Read N random samples.", unset="all", metavar="N", low=1, high=2**48)
    seed: int = option(0, "Random seed.", metavar="N", high=2**62)

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("variants", "models", "workers", "pin_memory"):
            values = getattr(self, name)
            if values == ():
                raise OptionError(f"{name}: expected at least one, got ()")
            check_each_once(name, values or ())
        for side in self.size or ():
            check_range("size", side, 1, MAX_SIDE)
        if True in (self.pin_memory or ()) and not is_asynchronous(self.device):
            raise OptionError("pin_memory: pinned memory needs CUDA or XPU; leave it out, or choose --device cuda")

    def runs(self, variants: Sequence[Variant]) -> list[Run]:
        """Return the runs of one repeat, unordered: all combinations of variants and options, one pinning of Loader."""
        workers = self.workers or (usable_cores(),)
        pins = is_asynchronous(self.device)
        pinned = self.pin_memory or (pins,)
        caches = (False, True) if self.cold else (False,)
        same = {name: getattr(self, name) for name in ("device", "prefetch", "batch", "crop", "steps", "seed")}
        return [
            # Files are cold in the first epoch only; then they are in the page cache.
            Run(variant, model, workers=n, pin_memory=pin, cold=cold, epochs=1 if cold else self.epochs, **same)
            for model, n, pin, cold, variant in product(self.models, workers, pinned, caches, variants)
            # Loader pins memory by itself wherever that helps.
            if variant != "loader" or pin == pins
        ]


@documented
@dataclass(frozen=True)
class DiagnoseOptions:
    """Options of a diagnosis."""

    model: Model = option(
        "small", "Model to train.", "One or two cores train the small CNN about as fast as they read."
    )
    device: str | None = option(None, "Device to train on.", unset="an accelerator, else cpu", metavar="DEVICE")
    workers: int = option(1, "Loader processes.", metavar="N", high=1024)
    prefetch: int = option(2, "Batches ahead per worker.", metavar="N", low=1, high=64)
    batch: int = option(64, "Images per batch.", metavar="N", low=1, high=2**20)
    crop: int = option(224, "Side of random crops, in pixels.", metavar="PX", low=1, high=MAX_SIDE)
    seconds: float = option(60.0, "Measure for S seconds at most.", "Ends once errors are below 10%.", metavar="S")
    seed: int = option(0, "Random seed of order and crops.", metavar="N")

    def __post_init__(self) -> None:
        check_options(self)
        check_above_0("seconds", self.seconds)


@dataclass(frozen=True)
class Run:
    """One run of a benchmark, sent to a separate process as JSON. Fields without a comment are as in BenchOptions."""

    variant: Variant
    model: BenchModel
    device: str
    workers: int
    pin_memory: bool
    cold: bool
    prefetch: int
    batch: int
    crop: int
    epochs: int
    steps: int | None
    seed: int
    task: Task = "measure"  # time epochs; "prove" reads every sample once, "probe" finds the device
    root: str = ""  # folder or dataset that the variant reads
    numbers: str | None = None  # file (.npy, int64) with the numbers of the samples to read; None for all

    def __str__(self) -> str:
        """Return ``loader, small on cpu, 2 workers, cold``."""
        what = "no model" if self.model == "none" else self.model
        words = [self.variant, f"{what} on {self.device}", plural(self.workers, "worker")]
        return ", ".join(words + ["pinned"] * self.pin_memory + ["cold"] * self.cold)
