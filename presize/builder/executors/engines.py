"""Connections to the schedulers of Dask, Ray and Spark; their libraries are imported here alone, when asked for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from presize.builder.executors.remote_task import RunRemote

if TYPE_CHECKING:
    import distributed

CONNECT_S = 8
"""How long Dask's scheduler may take to answer."""
_LISTENING_S = 5
_SPARK_THREADS = 4096
"""At most; one is started for each task that is under way, twice as many as the cluster has cores."""
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a connection of gRPC begins: the preface, and settings without any (RFC 9113, 3.4 and 6.5)."""


class Result(Protocol):
    """A future of concurrent.futures, or like one."""

    def result(self) -> bytes | str: ...
    def add_done_callback(self, fn: Callable[[Any], object], /) -> object: ...


class Engine(Protocol):
    """A connection to a scheduler, which repeats a few times what a lost worker was doing.

    Made with the address of the scheduler. Raises ImportError when its library is not installed, and an exception of
    any kind when no scheduler answers.
    """

    def slots(self) -> int:
        """Return how many tasks run at the same time, as things are."""

    def submit(self, run_remote: RunRemote, task: bytes) -> Result:
        """Have a worker call ``run_remote(task)``."""

    def check(self) -> None:
        """Raise an exception of any kind when the scheduler is lost."""

    def close(self) -> None:
        """Take back what no worker has begun, and disconnect."""


class Dask:
    """A client of the scheduler at an address such as ``tcp://HOST:8786``; threads of its workers run tasks."""

    def __init__(self, address: str) -> None:
        from distributed import Client

        try:  # first, since a client that cannot connect takes a minute
            asyncio.run(asyncio.wait_for(_check_scheduler(address), CONNECT_S))
        except TimeoutError:
            raise TimeoutError(f"no answer within {CONNECT_S} s") from None
        self._client = Client(address, timeout=CONNECT_S, set_as_default=False)

    def slots(self) -> int:
        return sum(self._client.nthreads().values())

    def submit(self, run_remote: RunRemote, task: bytes) -> distributed.Future:
        return self._client.submit(run_remote, task, pure=False)

    def check(self) -> None:
        if self._client.status != "running":
            raise OSError(f"the scheduler at {self._client.scheduler.address} is lost")

    def close(self) -> None:
        self._client.close(timeout=2)


async def _check_scheduler(address: str) -> None:
    """Raise OSError, ValueError or TimeoutError unless a scheduler of Dask is at `address`."""
    from distributed.core import rpc

    async with rpc(address) as scheduler:
        if (await scheduler.identity())["type"] != "Scheduler":
            raise ValueError("what answers is a worker of Dask, and no scheduler")


class Ray:
    """A driver of the cluster whose head is at an address such as ``HOST:6379``; "auto" finds one on this machine.

    Each task takes one core. A connection that this process has already is used, and left as it is.
    """

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
            self._remote = self._ray.remote(num_cpus=1)(run_remote)  # which sends it to the cluster, each time
        done: Future[bytes | str] = self._remote.remote(task).future()
        return done

    def check(self) -> None:
        self.slots()

    def close(self) -> None:
        if self._ours:
            self._ray.shutdown()


class Spark:
    """An application on the master at an address such as ``spark://HOST:7077``, or "yarn", as spark-submit takes them.

    Each task is a job, begun by a thread of its own. A session that this process has already is used, and left as it
    is.
    """

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
        if context.isLocal() or context.getExecutorMemoryStatus().size() > 1:  # the driver is in it, too
            cores: int = context.defaultParallelism()
            return cores
        return 0  # where Spark says 2

    def submit(self, run_remote: RunRemote, task: bytes) -> Future[bytes | str]:
        return self._threads.submit(lambda: self._session.sparkContext.parallelize([task], 1).map(run_remote).first())

    def check(self) -> None:
        self.slots()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._session.sparkContext.cancelAllJobs()
        if self._ours:
            self._session.stop()


ENGINES: dict[str, Callable[[str], Engine]] = {"dask": Dask, "ray": Ray, "spark": Spark}


def check_listening(address: str, by_grpc: bool = False) -> None:
    """Raise OSError unless a connection to ``HOST:PORT`` or ``scheme://HOST:PORT`` is accepted, and answered as gRPC
    does if it has to be: engines would ask again for minutes."""
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
                raise OSError("something else listens there")
