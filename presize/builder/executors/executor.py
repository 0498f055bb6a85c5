"""Chooses the executor of a build's tasks. No other module knows where they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from presize.builder.executors.local import in_processes
from presize.builder.shard_table import ShardDone
from presize.builder.tasks.task import Task, write_shard
from presize.options import RunOptions

Executor = Callable[[list[Task]], Iterator[ShardDone]]
"""Runs one or more tasks, in any order, and yields each shard as it is finished. Raises the first error that a task
raises. Closing the iterator early stops the other tasks."""


def executor_for(run: RunOptions) -> Executor:
    """Return the executor for `run`. It does not connect to a cluster before it is called."""
    if run.engine == "sequential":
        return partial(map, write_shard)
    if run.engine == "processes":
        return partial(in_processes, jobs=run.jobs, timeout_s=run.timeout_s)
    from presize.builder.executors.cluster import in_cluster  # imports asyncio: a tenth of the start-up time

    return partial(in_cluster, run=run)
