"""Tasks mapped over processes, or one after the other. The only importer of joblib."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterable, Iterator

import joblib
from joblib.externals import loky
from joblib.externals.loky.process_executor import TerminatedWorkerError

from presize.build.sidecar import ShardDone, Sidecar
from presize.build.state import Place
from presize.build.task import Task, write_shard
from presize.errors import BuildError
from presize.options import RunOptions
from presize.system.resources import usable_cores


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
