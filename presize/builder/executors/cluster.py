"""Runs tasks on the workers of Dask, Ray or Spark, which see SRC and OUT at the same paths as this machine.

Engines are called directly, not through joblib, which cancels all tasks when one fails, and returns results of Ray and
Spark only when all have ended.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import chain, count, islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import pyarrow as pa

import presize
from presize.builder.executors.local import StoppedError, Workers
from presize.builder.fingerprint import CodecFingerprint, codec_fingerprint, suffixes_of
from presize.builder.output_dir import BuildJournal
from presize.builder.plan import other_codecs
from presize.builder.shard_table import ShardDone
from presize.builder.tasks.task import Task
from presize.errors import BuildError, OptionError, PresizeWarning
from presize.options import RunOptions
from presize.sources.source_files import Url

CHECK_S = 1.0
"""Interval of checks of the scheduler while no task ends."""
PATIENT_CHECKS = 10
"""Number of checks before a warning about a cluster without workers. Workers of a starting cluster come sooner."""
_AHEAD = 2
"""Tasks submitted per slot, so that a worker that has finished one finds the next."""
_WATCH_S = 0.5
CONNECT_S = 8
"""Time limit for an answer of Dask's scheduler."""
_LISTENING_S = 5
_SPARK_THREADS = 4096
"""Maximum number of threads. Each submitted task starts one: twice as many as the cluster has cores."""
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""Start of a gRPC connection: the preface, and an empty SETTINGS frame (RFC 9113, 3.4 and 6.5)."""


class RemoteTask(NamedTuple):
    """A task, with the codecs of the driver, the suffixes of all sources, and the identity of the build."""

    task: Task
    timeout_s: float
    codecs: CodecFingerprint
    suffixes: list[str]
    identity: dict[str, Any]

    @property
    def out(self) -> Path:
        return self.task.sidecar.parent

    def is_wanted(self) -> bool:
        """Return True if OUT is still being built, with the identity sent with this task."""
        journal = BuildJournal.read(self.out)
        return journal is not None and journal.identity == self.identity


TaskResult = ShardDone | Exception
"""Result of a task, or the exception that it raised, bugs in presize included. Exceptions are returned, because engines
would retry a task that raises."""

RunRemote = Callable[[bytes], bytes | str]
"""Runs a pickled RemoteTask on a worker. Returns a pickled TaskResult, or why the worker cannot take part."""


def make_run_remote(version: str) -> RunRemote:
    """Return a function that engines pickle by value, so that a worker without this version of presize can say so."""

    def run_remote(pickled: bytes) -> bytes | str:
        import socket
        import sys

        try:
            import presize
        except ImportError as error:
            return f"{socket.gethostname()}: {sys.executable} cannot import presize ({error})"
        if presize.__version__ != version:
            return f"{socket.gethostname()}: it has presize {presize.__version__}, but the build has {version}"
        from presize.builder.executors.cluster import run_on_this_worker

        return run_on_this_worker(pickled)

    return run_remote


def run_on_this_worker(pickled: bytes) -> bytes | str:
    """Run a pickled RemoteTask on this worker, which has this version of presize. See RunRemote."""
    remote: RemoteTask = pickle.loads(pickled)
    if reason := _obstacle(remote):
        return f"{socket.gethostname()}: {reason}"
    try:
        with closing(Workers(remote.timeout_s)) as workers, _while_wanted(remote, workers):
            result: TaskResult = workers.write(remote.task)
    except StoppedError:
        result = BuildError(f"the build in OUT {remote.out} has ended or been replaced")
    except Exception as error:  # raised by the driver
        result = error
    return pickle.dumps(result)


def _obstacle(remote: RemoteTask) -> str:
    """Return why this worker would not produce what the driver would; empty if it would."""
    for name, path in (("SRC", remote.task.source), ("OUT", remote.out)):
        if isinstance(path, Url):  # reading reports its errors
            continue
        try:
            os.stat(path)
        except OSError as error:
            return f"{name} {path}: {error.strerror}; all workers have to see it at that path"
    if not remote.is_wanted():
        return f"OUT {remote.out} is a different folder there; it has to be on a file system that all workers share"
    here = codec_fingerprint(remote.task.options, remote.suffixes)
    return "" if here.digest == remote.codecs.digest else other_codecs(remote.codecs.versions, here.versions)


@contextmanager
def _while_wanted(remote: RemoteTask, workers: Workers) -> Iterator[None]:
    """Kill `workers` when the build in OUT is replaced: this process may be cut off from a driver that has ended."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_WATCH_S):
            if not remote.is_wanted():
                return workers.kill()

    watcher = threading.Thread(target=watch, name="presize-watch-build", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


class Engine(Protocol):
    """Connection to the scheduler at an address, which reruns the tasks of lost workers. The constructor raises
    ImportError if the library is not installed, and any exception if no scheduler answers."""

    def slots(self) -> int:
        """Return the number of tasks that can run at the same time now."""

    def submit(self, run_remote: RunRemote, task: bytes) -> Any:
        """Have a worker call ``run_remote(task)``. Returns a future like those of concurrent.futures."""

    def check(self) -> None:
        """Raise an exception of any kind when the scheduler is lost."""
        self.slots()

    def close(self) -> None:
        """Cancel the tasks that no worker has started, and disconnect."""


class Dask:
    """Client of the Dask scheduler at an address such as ``tcp://HOST:8786``. Threads of its workers run tasks."""

    def __init__(self, address: str) -> None:
        from distributed import Client

        try:  # first, because a client that cannot connect takes a minute to fail
            with ThreadPoolExecutor(1) as thread:  # this one may have a running event loop, as in a notebook
                thread.submit(lambda: asyncio.run(asyncio.wait_for(_check_scheduler(address), CONNECT_S))).result()
        except TimeoutError:
            raise TimeoutError(f"no answer within {CONNECT_S} s") from None
        self._client = Client(address, timeout=CONNECT_S, set_as_default=False)

    def slots(self) -> int:
        return sum(self._client.nthreads().values())

    def submit(self, run_remote: RunRemote, task: bytes) -> Any:
        return self._client.submit(run_remote, task, pure=False)

    def check(self) -> None:
        if self._client.status != "running":
            raise OSError(f"the scheduler at {self._client.scheduler.address} is lost")

    def close(self) -> None:
        self._client.close(timeout=2)


async def _check_scheduler(address: str) -> None:
    """Raise OSError, ValueError or TimeoutError unless a Dask scheduler is at `address`."""
    from distributed.core import rpc

    async with rpc(address) as scheduler:
        if (await scheduler.identity())["type"] != "Scheduler":
            raise ValueError("expected a Dask scheduler, got a Dask worker")


class Ray(Engine):
    """Driver of the Ray cluster with its head at ``HOST:6379``, or "auto". Each task takes one core."""

    def __init__(self, address: str) -> None:
        import ray

        self._ray: Any = ray
        self._remote: Any = None
        self._ours = not ray.is_initialized()
        if self._ours:
            if address != "auto":
                check_listening(address, by_grpc=True)
            ray.init(address, log_to_driver=False, logging_level="critical")

    def slots(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 0))

    def submit(self, run_remote: RunRemote, task: bytes) -> Future[bytes | str]:
        if self._remote is None:
            self._remote = self._ray.remote(num_cpus=1)(run_remote)  # once, as this sends it to the cluster
        done: Future[bytes | str] = self._remote.remote(task).future()
        return done

    def close(self) -> None:
        if self._ours:
            self._ray.shutdown()


class Spark(Engine):
    """Application on a Spark master such as ``spark://HOST:7077``, or "yarn". Threads start a job for each task."""

    def __init__(self, address: str) -> None:
        from pyspark.sql import SparkSession

        if address.startswith("spark://"):
            check_listening(address)
        self._ours = SparkSession.getActiveSession() is None
        settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF"}
        self._session = SparkSession.builder.master(address).appName("presize").config(map=settings).getOrCreate()
        self._threads = ThreadPoolExecutor(_SPARK_THREADS, "presize-spark")

    def slots(self) -> int:
        context = self._session.sparkContext._jsc.sc()
        if context.isLocal() or context.getExecutorMemoryStatus().size() > 1:  # the driver is one of them
            cores: int = context.defaultParallelism()
            return cores
        return 0  # defaultParallelism would be 2

    def submit(self, run_remote: RunRemote, task: bytes) -> Future[bytes | str]:
        return self._threads.submit(lambda: self._session.sparkContext.parallelize([task], 1).map(run_remote).first())

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._session.sparkContext.cancelAllJobs()
        if self._ours:
            self._session.stop()


ENGINES: dict[str, Callable[[str], Engine]] = {"dask": Dask, "ray": Ray, "spark": Spark}


def check_listening(address: str, by_grpc: bool = False) -> None:
    """Raise OSError unless something listens (that speaks gRPC, if `by_grpc`): engines would retry for minutes."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None:
        raise OSError("expected HOST:PORT")
    with socket.create_connection((host, port), timeout=_LISTENING_S) as connection:
        if by_grpc:
            connection.sendall(_HTTP2)
            answer = connection.recv(9)
            if answer[3:4] != _HTTP2[-6:-5]:
                raise OSError("the server there does not speak gRPC")


def in_cluster(tasks: list[Task], run: RunOptions) -> Iterator[ShardDone]:
    """Run `tasks` on the engine that `run` names. Raises OptionError if it is not installed, BuildError if its
    scheduler is lost or a worker would make other bytes, and the errors of write_shard."""
    try:
        engine = ENGINES[run.engine](run.scheduler or "")
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        raise OptionError(
            f'engine: {run.engine} needs {module}, which is not installed: pip install "presize[{run.engine}]"'
        ) from None
    except Exception as error:  # engines raise their own classes, all of them about the scheduler
        raise BuildError(f"scheduler: cannot connect to {run.engine} at {run.scheduler}: {_reason(error)}") from error
    with closing(engine):
        yield from _results(engine, tasks, run)


def _reason(error: Exception) -> str:
    """Return the first line of an engine's error."""
    said = (error.strerror or "") if isinstance(error, OSError) else ""
    return (said or str(error)).strip().partition("\n")[0] or type(error).__name__


@contextmanager
def _calling(run: RunOptions) -> Iterator[None]:
    """Turn any error of an engine into a BuildError."""
    try:
        yield
    except Exception as error:
        raise BuildError(
            f"{run.engine} failed: {_reason(error)}; finished shards are kept; run again to resume"
        ) from error


def _results(engine: Engine, tasks: list[Task], run: RunOptions) -> Iterator[ShardDone]:
    ended: SimpleQueue[Any] = SimpleQueue()
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


def _next(ended: SimpleQueue[Any], engine: Engine, run: RunOptions) -> Any:
    for checks in count(1):
        with suppress(Empty):
            return ended.get(timeout=CHECK_S)
        engine.check()
        if checks == PATIENT_CHECKS and not engine.slots():
            warnings.warn(
                f"scheduler: {run.engine} at {run.scheduler} has no workers; the build waits for one to join",
                PresizeWarning, stacklevel=2,
            )  # fmt: skip


def _remote_tasks(tasks: list[Task], run: RunOptions) -> Iterator[RemoteTask]:
    paths = (task.sources[0].paths.split("\0") for task in tasks)  # lazily, because all names take much memory
    suffixes = sorted(set(chain.from_iterable(suffixes_of(pa.chunked_array([each])) for each in paths)))
    codecs = codec_fingerprint(tasks[0].options, suffixes)
    out = tasks[0].sidecar.parent
    journal = BuildJournal.read(out)
    if journal is None:
        raise BuildError(f"the journal of the build in OUT {out} is missing; run again to resume")
    return (RemoteTask(task, run.timeout_s, codecs, suffixes, journal.identity) for task in tasks)
