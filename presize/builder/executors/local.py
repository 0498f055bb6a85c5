"""Runs tasks in worker processes on this machine. The only importer of joblib."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import NoReturn

import joblib

from presize.builder.executors.fork_server import take_server
from presize.builder.shard_table import ShardDone
from presize.builder.tasks.records import CrashPolicy
from presize.builder.tasks.task import Task, write_shard
from presize.errors import BuildError
from presize.system.child import Child, ChildDiedError, ChildStoppedError
from presize.system.resources import limit_of, usable_cores

_ATTEMPTS = 3
"""Number of workers that may die over one shard. After the first, no image can be the cause."""


def in_processes(tasks: list[Task], jobs: int | None, timeout_s: float) -> Iterator[ShardDone]:
    """Run `tasks`, and yield the shards as they are finished. Threads pass each task to one of `jobs` worker processes
    (None: one per core). If a worker dies, its shard is tried again; other workers and the build go on."""
    jobs = min(jobs or usable_cores(), len(tasks))
    workers, running = Workers(timeout_s, jobs), threading.active_count()
    parallel = joblib.Parallel(n_jobs=jobs, backend="threading", return_as="generator_unordered", batch_size=1)
    # No warning about unfinished tasks, because a build that stops early does so on purpose. (A warnings filter would
    # not do: joblib's threads restore the module's filters while it warns.)
    parallel._warn_exit_early = lambda: None
    try:
        with closing(workers), closing(parallel(map(joblib.delayed(workers.write), tasks))) as dones:
            try:
                yield from dones
            finally:
                workers.kill()  # so that their threads end
    except (RuntimeError, AttributeError) as error:  # from joblib's pool, which fails again while it shuts down
        workers.raise_limit(threading.active_count() - running + 1, error)


class StoppedError(Exception):
    """The build has stopped, and nobody waits for this task."""


class Workers:
    """Pool of at most `jobs` worker processes. Each is forked when a thread needs one more."""

    def __init__(self, timeout_s: float, jobs: int = 1) -> None:
        self._jobs = jobs
        self._server = take_server()
        self._policy = CrashPolicy(timeout_s, self._server.turnstile)
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._all: list[Child] = []
        self._killed = False

    def write(self, task: Task) -> ShardDone:
        """Return or raise what write_shard does in a worker process. Thread-safe."""
        policy, died = self._policy, ""
        for _ in range(_ATTEMPTS):
            worker = None
            try:
                worker = self._take()
                done = worker.call(write_shard, task, policy)
            except (ChildDiedError, MemoryError) as error:
                self._drop(worker)
                policy, died = replace(policy, by_image=True), _why(error)
                continue
            except (RuntimeError, OSError, ImportError) as error:
                self.raise_limit(self._number(worker), error)
            self._idle.append(worker)
            return done
        raise BuildError(f"{_ATTEMPTS} worker processes died while writing shard {task.number} {died} to resume")

    def _number(self, worker: Child | None) -> int:
        """Return the number of the worker, from 1; None stands for the next one."""
        with self._lock:
            return self._all.index(worker) + 1 if worker in self._all else len(self._all) + 1

    def raise_limit(self, number: int, error: Exception) -> NoReturn:
        """Raise BuildError if this worker failed because of a limit of this machine, otherwise `error`."""
        why = limit_of(error)
        if why is None:
            raise error
        raise BuildError(
            f"cannot run worker {min(number, self._jobs)} of {self._jobs}: {why}; run again with fewer --jobs to resume"
        ) from None

    def _take(self) -> Child:
        with self._lock:
            if self._killed:
                raise StoppedError
            if self._idle:
                return self._idle.pop()
        try:
            worker = Child(self._policy.silent_s, self._server.fork)
        except OSError as error:
            if limit_of(error) is not None:
                raise
            raise BuildError(f"cannot start a worker process: {error.strerror}; run again to resume") from None
        with self._lock:
            self._all.append(worker)
            if self._killed:
                worker.kill()
        return worker

    def _drop(self, worker: Child | None) -> None:
        """End and forget a worker that died or ran out of memory; None for one that never started."""
        if worker is not None:
            with self._lock:
                self._all.remove(worker)
            worker.close()

    def kill(self) -> None:
        """Kill all workers at once, and those that are about to start. Thread-safe."""
        with self._lock:
            self._killed = True
            for worker in self._all:
                worker.kill()

    def close(self) -> None:
        self.kill()
        self._server.close()


def _why(error: ChildDiedError | MemoryError) -> str:
    """Describe why a worker died, and what to do about it."""
    if isinstance(error, ChildStoppedError) or getattr(error, "code", 0) == -signal.SIGALRM:
        return f"({error}): the last one was stopped, or SRC or OUT does not answer; run again"
    if isinstance(error, MemoryError):
        return f"({str(error) or 'out of memory'}); run again with fewer --jobs"
    return f"({error}), most often from lack of memory; run again with fewer --jobs"
