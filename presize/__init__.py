"""presize: resize an image folder once, pack it as LMDB shards, and train without waiting for data.

>>> from presize import build_dataset                   # doctest: +SKIP
>>> build_dataset("RAW", "OUT")                         # doctest: +SKIP
>>> from presize.datasets import LMDBDataset            # doctest: +SKIP
>>> image, label = LMDBDataset("OUT")[0]                # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from presize.builder.derive import DeriveOptions, DeriveResult, derive_dataset, plan_derive
    from presize.builder.like import Likeness, like_dataset, options_to_update
    from presize.builder.parts import PartResult, build_part
    from presize.builder.progress_bar import ProgressBar
    from presize.builder.repair import Repair, repair_dataset
    from presize.builder.run import BuildResult, build_dataset, plan_build
    from presize.builder.to_url import build_to_url
    from presize.errors import PresizeError
    from presize.options import BuildOptions, BuildPart, ErrorBudget, ImageOptions, RunOptions, Size, SourceOptions
    from presize.pages.gallery import view_dataset
    from presize.sources.sample import make_samples
    from presize.store.dataset import Dataset
    from presize.store.export import export_dataset
    from presize.store.verify import Problem, VerifyResult, verify_dataset

__version__ = "0.1.0"

_HOMES = {
    "builder.derive": ("DeriveOptions", "DeriveResult", "derive_dataset", "plan_derive"),
    "builder.like": ("Likeness", "like_dataset", "options_to_update"),
    "builder.parts": ("PartResult", "build_part"),
    "builder.progress_bar": ("ProgressBar",),
    "builder.repair": ("Repair", "repair_dataset"),
    "builder.run": ("BuildResult", "build_dataset", "plan_build"),
    "builder.to_url": ("build_to_url",),
    "store.dataset": ("Dataset",),
    "errors": ("PresizeError",),
    "store.export": ("export_dataset",),
    "options": ("BuildOptions", "ErrorBudget", "ImageOptions", "BuildPart", "RunOptions", "Size", "SourceOptions"),
    "sources.sample": ("make_samples",),
    "store.verify": ("Problem", "VerifyResult", "verify_dataset"),
    "pages.gallery": ("view_dataset",),
}
__all__ = [
    "BuildOptions",
    "BuildPart",
    "BuildResult",
    "Dataset",
    "DeriveOptions",
    "DeriveResult",
    "ErrorBudget",
    "ImageOptions",
    "Likeness",
    "PartResult",
    "PresizeError",
    "Problem",
    "ProgressBar",
    "Repair",
    "RunOptions",
    "Size",
    "SourceOptions",
    "VerifyResult",
    "build_dataset",
    "build_part",
    "build_to_url",
    "derive_dataset",
    "export_dataset",
    "like_dataset",
    "make_samples",
    "options_to_update",
    "plan_build",
    "plan_derive",
    "repair_dataset",
    "verify_dataset",
    "view_dataset",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import what is asked for, and no more: a build's workers start with few modules."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"presize.{module}"), name)
    raise AttributeError(f"module 'presize' has no attribute {name!r}")
