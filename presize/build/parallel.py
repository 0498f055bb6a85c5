"""Tasks run in processes, or one after the other in this one. The only importer of joblib."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterable, Iterator

import joblib
from joblib.externals import loky
from joblib.externals.loky.process_executor import TerminatedWorkerError

from presize.build.sidecar import ShardDone
from presize.build.state import Place
from presize.build.task import Task, write_shard
from presize.errors import BuildError
from presize.options import RunOptions
from presize.system.resources import usable_cores


def run_tasks(
    done: Iterable[ShardDone], waiting: list[Task], run: RunOptions, place: Place
) -> Generator[ShardDone, None, None]:
    """What is `done` already, then the tasks of `waiting` as they finish."""
    yield from done
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
    # A build that stops early does so on purpose: no warning about tasks that were not waited for. (A warnings
    # filter would not do, since joblib's threads restore the module's filters while it warns.)
    parallel._warn_exit_early = lambda: None
    results: Generator[ShardDone, None, None] | None = None
    try:
        # Workers inherit the mask: a Ctrl-C on the terminal is for the driver, which ends them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            results = parallel(map(joblib.delayed(write_shard), tasks))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # a pending Ctrl-C is raised here
        yield from results
    except TerminatedWorkerError as error:
        raise BuildError(
            "a worker process was killed, most often because memory ran out; run again with fewer --jobs to resume"
        ) from error
    finally:
        if results is not None:
            results.close()
        # Idle workers would live for minutes, hold their memory, and hang a process that is forked meanwhile.
        loky.get_reusable_executor(reuse=True).shutdown(wait=True)
