"""Tasks carried out by the workers of an engine, which see SRC and OUT as this machine does."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain, islice
from queue import Empty, SimpleQueue

import pyarrow as pa

import presize
from presize.builder.executors.engines import ENGINES, Engine, Result
from presize.builder.executors.remote_task import RemoteTask, TaskResult, make_run_remote
from presize.builder.fingerprint import codec_fingerprint, suffixes_of
from presize.builder.output_dir import BuildJournal
from presize.builder.shard_table import ShardDone
from presize.builder.tasks.task import Task
from presize.errors import BuildError, OptionError, PresizeWarning
from presize.options import RunOptions

CHECK_S = 1.0
"""How often the scheduler is checked while no task ends."""
PATIENT_CHECKS = 10
"""After so many a cluster without workers is warned of. Those of a cluster that is starting come sooner."""
_AHEAD = 2
"""Tasks handed out for each that can run: a worker that has finished one finds the next."""


def in_cluster(tasks: list[Task], run: RunOptions) -> Iterator[ShardDone]:
    """Carry out `tasks` on the engine that `run` names, and yield the shards as they are finished.

    Warns:
        PresizeWarning: the scheduler has no workers, for which the build waits.

    Raises:
        OptionError: the engine is not installed.
        BuildError: its scheduler cannot be reached or is lost, or a worker would make other bytes.
        Others as write_shard does.
    """
    try:
        engine = ENGINES[run.engine](run.scheduler or "")
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        raise OptionError(
            f'backend: {run.engine} needs {module}, which is not installed: pip install "presize[{run.engine}]"'
        ) from None
    except Exception as error:  # each engine has its own, and all of them are about its scheduler
        raise BuildError(f"scheduler: there is no {run.engine} at {run.scheduler}: {_reason(error)}") from error
    with closing(engine):
        yield from _results(engine, tasks, run)


def _reason(error: Exception) -> str:
    """Return the first line of what an engine says."""
    said = (error.strerror or "") if isinstance(error, OSError) else ""
    return (said or str(error)).strip().partition("\n")[0] or type(error).__name__


@contextmanager
def _calling(run: RunOptions) -> Iterator[None]:
    """Turn whatever an engine raises into a BuildError."""
    try:
        yield
    except Exception as error:
        raise BuildError(
            f"{run.engine} failed: {_reason(error)}; what is finished is kept, run again to resume"
        ) from error


def _results(engine: Engine, tasks: list[Task], run: RunOptions) -> Iterator[ShardDone]:
    ended: SimpleQueue[Result] = SimpleQueue()
    run_remote, waiting, under_way = make_run_remote(presize.__version__), iter(_remote_tasks(tasks, run)), 0
    while True:
        with _calling(run):
            room = _AHEAD * engine.slots() - under_way
        for task in islice(waiting, max(room, 0 if under_way else 1)):
            pickled = pickle.dumps(task)
            with _calling(run):
                engine.submit(run_remote, pickled).add_done_callback(ended.put)
            under_way += 1
        if not under_way:
            return
        with _calling(run):
            answer = _next(ended, engine, run).result()
        under_way -= 1
        if isinstance(answer, str):
            raise BuildError(f"a worker cannot take part: {answer}")
        result: TaskResult = pickle.loads(answer)
        if isinstance(result, Exception):
            raise result
        yield result


def _next(ended: SimpleQueue[Result], engine: Engine, run: RunOptions) -> Result:
    checks = 0
    while True:
        try:
            return ended.get(timeout=CHECK_S)
        except Empty:
            engine.check()
        checks += 1
        if checks == PATIENT_CHECKS and not engine.slots():
            warnings.warn(
                f"scheduler: {run.engine} at {run.scheduler} has no workers; the build waits until one comes",
                PresizeWarning, stacklevel=2,
            )  # fmt: skip


def _remote_tasks(tasks: list[Task], run: RunOptions) -> Iterator[RemoteTask]:
    each = (suffixes_of(pa.chunked_array([task.paths.split("\0")])) for task in tasks)  # not all names at once
    suffixes = sorted(set(chain.from_iterable(each)))
    codecs = codec_fingerprint(tasks[0].options, suffixes)
    out = tasks[0].sidecar.parent
    journal = BuildJournal.read(out)
    if journal is None:
        raise BuildError(f"the state of the build in OUT {out} has gone; run again to resume")
    return (RemoteTask(task, run.timeout_s, codecs, suffixes, journal.identity) for task in tasks)
