"""Tasks mapped over processes, or one after the other. The only importer of joblib."""

from __future__ import annotations
import importlib.metadata
import os
import shutil
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
import joblib
import numpy as np
import PIL
import pyarrow as pa
import pyarrow.compute as pc
from joblib.externals import loky
from joblib.externals.loky.process_executor import TerminatedWorkerError
from presize.build import estimate
from presize.build.reuse import find_reuse
from presize.build.resume import begin, check_may_update, is_all_of
from presize.codecs import transcode
from presize.errors import BuildError, ImageError, OptionError, SourceError
from presize.options import BuildOptions, RunOptions
from presize.build.plan import Plan, make_plan
from presize.build.publish import publish, shard_name
from presize.sources.scan import scan
from presize.build.state import Place, check_ours, lock
from presize.store.filenames import NAME_MAX_BYTES, file_names, is_safe
from presize.store.manifest import OUR_NAMES, Manifest
from presize.system.files import writing
from presize.system.resources import usable_cores
from presize.build.task import Task, write_shard
from presize.build.sidecar import ShardDone, Sidecar
from presize.build.update import Changes


def run_tasks(
    found: Iterable[Sidecar | None], waiting: list[Task], run: RunOptions, place: Place
) -> Generator[ShardDone, None, None]:
    """The shards `found` finished, then those of `waiting` as they are finished."""
    yield from (sidecar.done for sidecar in found if sidecar is not None)
    jobs = min(run.jobs or usable_cores(), len(waiting))
    try:
        if jobs <= 1 or run.engine == "sequential":
            yield from map(write_shard, waiting)
        else:
            yield from _parallel(waiting, jobs)
    finally:
        place.clear_temporary()


def _parallel(tasks: list[Task], jobs: int) -> Iterator[ShardDone]:
    parallel = joblib.Parallel(
        n_jobs=jobs, backend="loky", return_as="generator_unordered", batch_size=1, max_nbytes=None
    )
    # A build that stops early means to: no news of tasks that were not waited for. (A filter would not do:
    # joblib's threads put the warnings module's filters back while it warns.)
    parallel._warn_exit_early = lambda: None
    results: Generator[ShardDone, None, None] | None = None
    try:
        # Workers inherit the mask: a Ctrl-C on the terminal is for the driver, which ends them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            results = parallel(map(joblib.delayed(write_shard), tasks))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # a Ctrl-C that came meanwhile is raised here
        yield from results
    except TerminatedWorkerError as error:
        raise BuildError(
            "a worker process was killed, most often for want of memory; run again to resume, with fewer --jobs"
        ) from error
    finally:
        if results is not None:
            results.close()
        # Idle workers would stay for minutes, keep their memory, and hang whoever forks meanwhile.
        loky.get_reusable_executor(reuse=True).shutdown(wait=True)
