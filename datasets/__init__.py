"""presize.datasets: reading in PyTorch. Everything that needs torch lives here."""

if __name__ != "presize.datasets":
    raise ImportError(
        f"this folder is the source of presize.datasets, not a package named {__name__!r}: "
        "run from another folder, or import presize.datasets"
    )

from presize.datasets.folder import FolderDataset
from presize.datasets.lmdb import LMDBDataset

__all__ = ["FolderDataset", "LMDBDataset"]
