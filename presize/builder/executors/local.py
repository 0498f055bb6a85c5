"""Tasks in worker processes of this machine. The only importer of joblib."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import TracebackType
from typing import Self

import joblib

from presize.builder.shard_table import ShardDone
from presize.builder.tasks.records import CrashPolicy
from presize.builder.tasks.task import Task, write_shard
from presize.errors import BuildError
from presize.system.child import Child, ChildDiedError
from presize.system.files import anonymous_file
from presize.system.resources import usable_cores

_ATTEMPTS = 3
"""How many workers may die over one shard. After the first no image can be the cause."""


def in_processes(tasks: list[Task], jobs: int | None, timeout_s: float) -> Iterator[ShardDone]:
    """Carry out `tasks`, and yield the shards as they are finished.

    Threads hand out the tasks, each to a worker process of its own (`jobs` of them; None for as many as there are
    cores): a worker that dies takes its shard along, and neither other workers nor the build.
    """
    jobs = min(jobs or usable_cores(), len(tasks))
    parallel = joblib.Parallel(n_jobs=jobs, backend="threading", return_as="generator_unordered", batch_size=1)
    # A build that stops early does so on purpose: no warning about tasks that were not waited for. (A warnings
    # filter would not do, since joblib's threads restore the module's filters while it warns.)
    parallel._warn_exit_early = lambda: None
    with Workers(timeout_s) as workers, closing(parallel(map(joblib.delayed(workers.write), tasks))) as dones:
        try:
            yield from dones
        finally:
            workers.kill()  # so that their threads end


class StoppedError(Exception):
    """The build has stopped, and nobody waits for this task."""


class Workers:
    """Worker processes, each started when a thread needs one more."""

    def __init__(self, timeout_s: float) -> None:
        self._policy = CrashPolicy(timeout_s, anonymous_file("presize-turnstile"))
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._all: list[Child] = []
        self._killed = False

    def write(self, task: Task) -> ShardDone:
        """Return or raise what write_shard does; from any thread."""
        policy, died = self._policy, ""
        for _ in range(_ATTEMPTS):
            worker = None
            try:
                worker = self._take()
                done = worker.call(write_shard, task, policy)
            except (ChildDiedError, MemoryError) as error:
                self._drop(worker)
                policy, died = replace(policy, by_image=True), str(error) or "memory ran out"
                continue
            self._idle.append(worker)
            return done
        raise BuildError(
            f"{_ATTEMPTS} worker processes died over shard {task.number} ({died}), most often because memory ran out; "
            "run again with fewer --jobs to resume"
        )

    def _take(self) -> Child:
        with self._lock:
            if self._killed:
                raise StoppedError
            if self._idle:
                return self._idle.pop()
        try:
            worker = Child(keep=[self._policy.turnstile])
        except OSError as error:
            raise BuildError(
                f"cannot start a worker process: {error.strerror}; run again with fewer --jobs to resume"
            ) from None
        with self._lock:
            self._all.append(worker)
            if self._killed:
                worker.kill()
        return worker

    def _drop(self, worker: Child | None) -> None:
        """End a worker that died or whose memory ran out, and forget it; None for one that never began."""
        if worker is not None:
            with self._lock:
                self._all.remove(worker)
            worker.close()

    def kill(self) -> None:
        """End all of them at once, from any thread, and those that are about to start."""
        with self._lock:
            self._killed = True
            for worker in self._all:
                worker.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        os.close(self._policy.turnstile)
