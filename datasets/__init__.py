"""presize.datasets: reading of datasets in PyTorch. All code that needs torch is here."""

from __future__ import annotations

if __name__ != "presize.datasets":
    raise ImportError(
        f"this folder is the source of presize.datasets, not a package named {__name__!r}: "
        "run from another folder, or import presize.datasets"
    )

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    said = 'presize.datasets needs torch, which is not installed: pip install "presize[torch]"'
    raise ModuleNotFoundError(said, name="torch") from None

from importlib import import_module
from typing import TYPE_CHECKING, Any

from presize.datasets.collate import collate
from presize.datasets.crops import CenterCrop, RandomCrop, RandomResizedCrop, Resize
from presize.datasets.dataset import LMDBDataset
from presize.datasets.folder import FolderDataset
from presize.datasets.fuse import Fused, fuse
from presize.datasets.loader import Loader
from presize.datasets.make_loader import make_loader
from presize.datasets.reading.order import Sequential, ShardShuffled, Shuffled, Weighted, class_balanced
from presize.datasets.sampler import EpochSampler

if TYPE_CHECKING:
    from presize.datasets.timing.diagnose import diagnose
    from presize.datasets.timing.epochs import NoModel, time_epoch

__all__ = [
    "CenterCrop",
    "EpochSampler",
    "FolderDataset",
    "Fused",
    "LMDBDataset",
    "Loader",
    "NoModel",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "Sequential",
    "ShardShuffled",
    "Shuffled",
    "Weighted",
    "class_balanced",
    "collate",
    "diagnose",
    "fuse",
    "make_loader",
    "time_epoch",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import the names that only measuring needs when they are first used, so that reading does without them."""
    homes = {"diagnose": "diagnose", "NoModel": "epochs", "time_epoch": "epochs"}
    if name in homes:
        return getattr(import_module(f"presize.datasets.timing.{homes[name]}"), name)
    raise AttributeError(f"module 'presize.datasets' has no attribute {name!r}")
