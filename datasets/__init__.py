"""presize.datasets: reading in PyTorch. Everything that needs torch lives here."""

if __name__ != "presize.datasets":
    raise ImportError(
        f"this folder is the source of presize.datasets, not a package named {__name__!r}: "
        "run from another folder, or import presize.datasets"
    )

from presize.datasets.collate import collate
from presize.datasets.crops import CenterCrop, RandomCrop, RandomResizedCrop, Resize
from presize.datasets.diagnose import diagnose
from presize.datasets.folder import FolderDataset
from presize.datasets.lmdb import LMDBDataset
from presize.datasets.loader import Loader
from presize.datasets.make_loader import make_loader
from presize.datasets.order import Sequential, ShardShuffled, Shuffled, Weighted, class_balanced
from presize.datasets.sampler import EpochSampler

__all__ = [
    "CenterCrop",
    "EpochSampler",
    "FolderDataset",
    "LMDBDataset",
    "Loader",
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
    "make_loader",
]
