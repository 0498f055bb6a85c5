"""presize: resize an image folder once, pack it as LMDB shards, and train without waiting for data.

>>> from presize import build_dataset                   # doctest: +SKIP
>>> build_dataset("RAW", "OUT")                         # doctest: +SKIP
>>> from presize.datasets import LMDBDataset            # doctest: +SKIP
>>> image, label = LMDBDataset("OUT")[0]                # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from presize.errors import BenchError as BenchError
from presize.errors import BuildError as BuildError
from presize.errors import CrashError as CrashError
from presize.errors import DatasetError as DatasetError
from presize.errors import DiagnosisError as DiagnosisError
from presize.errors import ImageError as ImageError
from presize.errors import LoaderError as LoaderError
from presize.errors import NotAnImageError as NotAnImageError
from presize.errors import OptionError as OptionError
from presize.errors import PresizeError as PresizeError
from presize.errors import PresizeWarning as PresizeWarning
from presize.errors import RemoteError as RemoteError
from presize.errors import SourceError as SourceError
from presize.errors import UnreadableError as UnreadableError
from presize.options import KEEP as KEEP
from presize.options import BuildOptions as BuildOptions
from presize.options import BuildPart as BuildPart
from presize.options import ColumnType as ColumnType
from presize.options import Companion as Companion
from presize.options import Coordinates as Coordinates
from presize.options import DeriveOptions as DeriveOptions
from presize.options import ErrorBudget as ErrorBudget
from presize.options import ImageOptions as ImageOptions
from presize.options import RunOptions as RunOptions
from presize.options import SampleOptions as SampleOptions
from presize.options import Size as Size
from presize.options import SourceOptions as SourceOptions

if TYPE_CHECKING:
    from presize.builder.derive import DeriveResult as DeriveResult
    from presize.builder.derive import derive_dataset as derive_dataset
    from presize.builder.derive import plan_derive as plan_derive
    from presize.builder.like import DatasetOptions as DatasetOptions
    from presize.builder.like import options_of as options_of
    from presize.builder.like import options_to_update as options_to_update
    from presize.builder.plan import Plan as Plan
    from presize.builder.progress_bar import ProgressBar as ProgressBar
    from presize.builder.repair import Repair as Repair
    from presize.builder.repair import repair_dataset as repair_dataset
    from presize.builder.run import BuildResult as BuildResult
    from presize.builder.run import PartResult as PartResult
    from presize.builder.run import build_dataset as build_dataset
    from presize.builder.run import build_part as build_part
    from presize.builder.run import plan_build as plan_build
    from presize.builder.to_url import build_to_url as build_to_url
    from presize.codecs.jpeg.tiles import cut_jpeg as cut_jpeg
    from presize.codecs.source_facts import unpack_facts as unpack_facts
    from presize.codecs.stored_value import decode_jpeg as decode_jpeg
    from presize.machine_check import MachineReport as MachineReport
    from presize.machine_check import doctor as doctor
    from presize.measure.bench import bench as bench
    from presize.measure.bench_options import BenchOptions as BenchOptions
    from presize.measure.results import bench_text as bench_text
    from presize.measure.simulation import Pipeline as Pipeline
    from presize.measure.simulation import Times as Times
    from presize.measure.simulation import fewest_workers as fewest_workers
    from presize.measure.simulation import simulate as simulate
    from presize.measure.simulation import sweep as sweep
    from presize.pages.gallery import view_dataset as view_dataset
    from presize.pages.selection import Filters as Filters
    from presize.remote.fetch import FetchResult as FetchResult
    from presize.remote.fetch import fetch_dataset as fetch_dataset
    from presize.remote.upload import UploadResult as UploadResult
    from presize.remote.upload import upload_dataset as upload_dataset
    from presize.sources.sample import make_samples as make_samples
    from presize.store.dataset import Dataset as Dataset
    from presize.store.export import export_dataset as export_dataset
    from presize.store.info import DatasetInfo as DatasetInfo
    from presize.store.info import info_dataset as info_dataset
    from presize.store.verify import Problem as Problem
    from presize.store.verify import VerifyResult as VerifyResult
    from presize.store.verify import verify_dataset as verify_dataset

__version__ = "0.1.0"

_HOMES = {
    "errors": "BenchError BuildError CrashError DatasetError DiagnosisError ImageError LoaderError "
    "NotAnImageError OptionError PresizeError PresizeWarning RemoteError SourceError "
    "UnreadableError",
    "options": "KEEP BuildOptions BuildPart ColumnType Companion Coordinates DeriveOptions ErrorBudget "
    "ImageOptions RunOptions SampleOptions Size SourceOptions",
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
"""Public names by module. A module is imported when one of its names is first used."""

__all__ = [name for names in _HOMES.values() for name in names.split()]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public name lazily, so that a build's workers start with few modules."""
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(f"presize.{module}"), name)
    raise AttributeError(f"module 'presize' has no attribute {name!r}")
