"""presize: resize an image folder once, pack it as LMDB shards, and train without waiting for data.

>>> from presize import build_dataset                   # doctest: +SKIP
>>> build_dataset("RAW", "OUT")                         # doctest: +SKIP
>>> from presize.datasets import LMDBDataset            # doctest: +SKIP
>>> image, label = LMDBDataset("OUT")[0]                # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from presize.errors import (
    BenchError,
    BuildError,
    CrashError,
    DatasetError,
    DiagnosisError,
    ImageError,
    LoaderError,
    NotAnImageError,
    OptionError,
    PresizeError,
    PresizeWarning,
    RemoteError,
    SourceError,
    UnreadableError,
)
from presize.options import (
    KEEP,
    BuildOptions,
    BuildPart,
    ColumnType,
    Companion,
    Coordinates,
    DeriveOptions,
    ErrorBudget,
    ImageOptions,
    RunOptions,
    SampleOptions,
    Size,
    SourceOptions,
)

if TYPE_CHECKING:
    from presize.builder.derive import DeriveResult, derive_dataset, plan_derive
    from presize.builder.like import DatasetOptions, options_of, options_to_update
    from presize.builder.plan import Plan
    from presize.builder.progress_bar import ProgressBar
    from presize.builder.repair import Repair, repair_dataset
    from presize.builder.run import BuildResult, PartResult, build_dataset, build_part, plan_build
    from presize.builder.to_url import build_to_url
    from presize.codecs.jpeg.tiles import cut_jpeg
    from presize.codecs.source_facts import unpack_facts
    from presize.codecs.stored_value import decode_jpeg
    from presize.machine_check import MachineReport, doctor
    from presize.measure.bench import bench
    from presize.measure.bench_options import BenchOptions
    from presize.measure.results import bench_text
    from presize.measure.simulation import Pipeline, Times, fewest_workers, simulate, sweep
    from presize.pages.gallery import view_dataset
    from presize.pages.selection import Filters
    from presize.remote.fetch import FetchResult, fetch_dataset
    from presize.remote.upload import UploadResult, upload_dataset
    from presize.sources.sample import make_samples
    from presize.store.dataset import Dataset
    from presize.store.export import export_dataset
    from presize.store.info import DatasetInfo, info_dataset
    from presize.store.verify import Problem, VerifyResult, verify_dataset

__version__ = "0.1.0"

_HOMES = {
    "builder.derive": "DeriveResult derive_dataset plan_derive",
    "builder.like": "DatasetOptions options_of options_to_update",
    "builder.plan": "Plan",
    "builder.progress_bar": "ProgressBar",
    "builder.repair": "Repair repair_dataset",
    "builder.run": "BuildResult PartResult build_dataset build_part plan_build",
    "builder.to_url": "build_to_url",
    "codecs.jpeg.tiles": "cut_jpeg",
    "codecs.source_facts": "unpack_facts",
    "codecs.stored_value": "decode_jpeg",
    "machine_check": "MachineReport doctor",
    "measure.bench": "bench",
    "measure.bench_options": "BenchOptions",
    "measure.results": "bench_text",
    "measure.simulation": "Pipeline Times fewest_workers simulate sweep",
    "pages.gallery": "view_dataset",
    "pages.selection": "Filters",
    "remote.fetch": "FetchResult fetch_dataset",
    "remote.upload": "UploadResult upload_dataset",
    "sources.sample": "make_samples",
    "store.dataset": "Dataset",
    "store.export": "export_dataset",
    "store.info": "DatasetInfo info_dataset",
    "store.verify": "Problem VerifyResult verify_dataset",
}
"""The public names of modules that are imported when one of their names is asked for."""

__all__ = [
    "KEEP",
    "BenchError",
    "BenchOptions",
    "BuildError",
    "BuildOptions",
    "BuildPart",
    "BuildResult",
    "ColumnType",
    "Companion",
    "Coordinates",
    "CrashError",
    "Dataset",
    "DatasetError",
    "DatasetInfo",
    "DatasetOptions",
    "DeriveOptions",
    "DeriveResult",
    "DiagnosisError",
    "ErrorBudget",
    "FetchResult",
    "Filters",
    "ImageError",
    "ImageOptions",
    "LoaderError",
    "MachineReport",
    "NotAnImageError",
    "OptionError",
    "PartResult",
    "Pipeline",
    "Plan",
    "PresizeError",
    "PresizeWarning",
    "Problem",
    "ProgressBar",
    "RemoteError",
    "Repair",
    "RunOptions",
    "SampleOptions",
    "Size",
    "SourceError",
    "SourceOptions",
    "Times",
    "UnreadableError",
    "UploadResult",
    "VerifyResult",
    "bench",
    "bench_text",
    "build_dataset",
    "build_part",
    "build_to_url",
    "cut_jpeg",
    "decode_jpeg",
    "derive_dataset",
    "doctor",
    "export_dataset",
    "fetch_dataset",
    "fewest_workers",
    "info_dataset",
    "make_samples",
    "options_of",
    "options_to_update",
    "plan_build",
    "plan_derive",
    "repair_dataset",
    "simulate",
    "sweep",
    "unpack_facts",
    "upload_dataset",
    "verify_dataset",
    "view_dataset",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import what is asked for, and no more: a build's workers start with few modules."""
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(f"presize.{module}"), name)
    raise AttributeError(f"module 'presize' has no attribute {name!r}")
