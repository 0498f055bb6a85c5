"""Choice of the executor of a build's tasks: nothing else knows where they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from presize.builder.executors.local import in_processes
from presize.builder.shard_table import ShardDone
from presize.builder.tasks.task import Task, write_shard
from presize.options import RunOptions

Executor = Callable[[list[Task]], Iterator[ShardDone]]
"""Carries out tasks, at least one, in any order, and yields each shard as it is finished. Raises the first error that a
task raises; closed before its end, it stops the others."""


def executor_for(run: RunOptions) -> Executor:
    """Return the executor that `run` asks for. It connects to no cluster before it is called."""
    if run.engine == "sequential":
        return partial(map, write_shard)
    if run.engine == "processes":
        return partial(in_processes, jobs=run.jobs, timeout_s=run.timeout_s)
    from presize.builder.executors.cluster import in_cluster  # asyncio takes a tenth of the time of starting

    return partial(in_cluster, run=run)
