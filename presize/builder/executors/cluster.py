"""Tasks carried out by the workers of an engine, which see SRC and OUT as this machine does."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import chain, islice
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import pyarrow as pa

import presize
from presize.builder.executors.dask import Dask
from presize.builder.executors.errand import Courier, Errand, Outcome, make_courier
from presize.builder.executors.ray import Ray
from presize.builder.executors.spark import Spark
from presize.builder.output_dir import BuildJournal
from presize.builder.shard_table import ShardDone
from presize.builder.tasks.task import Task
from presize.builder.tasks.trial import suffixes_of, try_codecs, with_plugins
from presize.errors import BuildError, OptionError, PresizeWarning
from presize.options import RunOptions

_CHECK_S = 1.0
_PATIENT_CHECKS = 10
"""With nothing done for so many, it is said when there are no workers. Those of a cluster that starts come sooner."""
_AHEAD = 2
"""Errands handed out for each that can run: a worker that has finished one finds the next."""


class Result(Protocol):
    """A future of concurrent.futures, or like one."""

    def result(self) -> bytes | str: ...
    def add_done_callback(self, fn: Callable[[Any], object], /) -> object: ...


class EngineConnection(Protocol):
    """One to a scheduler, which has what a lost worker was doing done again, a few times."""

    def slots(self) -> int:
        """How many errands run at the same time, as things are."""

    def submit(self, courier: Courier, version: str, errand: bytes) -> Result:
        """Have ``courier(version, errand)`` called by a worker."""

    def check(self) -> None:
        """Raise an exception of any kind when the scheduler is lost."""

    def close(self) -> None:
        """Take back what no worker has begun, and disconnect."""


ENGINES: dict[str, Callable[[str], EngineConnection]] = {"dask": Dask, "ray": Ray, "spark": Spark}


def run_on_cluster(tasks: list[Task], run: RunOptions) -> Iterator[ShardDone]:
    """Carry out `tasks`, as the shards are finished.

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
        yield from _outcomes(engine, tasks, run)


def _reason(error: Exception) -> str:
    """The first line of what an engine says."""
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


def _outcomes(engine: EngineConnection, tasks: list[Task], run: RunOptions) -> Iterator[ShardDone]:
    ended: SimpleQueue[Result] = SimpleQueue()
    courier, waiting, under_way = make_courier(), iter(_errands(tasks, run)), 0
    while True:
        with _calling(run):
            room = _AHEAD * engine.slots() - under_way
        for errand in islice(waiting, max(room, 0 if under_way else 1)):
            pickled = pickle.dumps(errand)
            with _calling(run):
                engine.submit(courier, presize.__version__, pickled).add_done_callback(ended.put)
            under_way += 1
        if not under_way:
            return
        with _calling(run):
            answer = _next(ended, engine, run).result()
        under_way -= 1
        yield _shard(answer)


def _next(ended: SimpleQueue[Result], engine: EngineConnection, run: RunOptions) -> Result:
    checks = 0
    while True:
        try:
            return ended.get(timeout=_CHECK_S)
        except Empty:
            engine.check()
        checks += 1
        if checks == _PATIENT_CHECKS and not engine.slots():
            warnings.warn(
                f"scheduler: {run.engine} at {run.scheduler} has no workers; the build waits until one comes",
                PresizeWarning, stacklevel=2,
            )  # fmt: skip


def _shard(answer: bytes | str) -> ShardDone:
    if isinstance(answer, str):
        raise BuildError(f"a worker cannot take part: {answer}")
    outcome: Outcome = pickle.loads(answer)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _errands(tasks: list[Task], run: RunOptions) -> Iterator[Errand]:
    each = (suffixes_of(pa.chunked_array([task.paths.split("\0")])) for task in tasks)  # not all names at once
    suffixes = sorted(set(chain.from_iterable(each)))
    codecs = with_plugins(try_codecs(tasks[0].options), suffixes)
    out = tasks[0].sidecar.parent
    state = BuildJournal.read(out)
    if state is None:
        raise BuildError(f"the state of the build in OUT {out} has gone; run again to resume")
    return (Errand(task, run.timeout_s, codecs, suffixes, state.identity) for task in tasks)
