"""Spark: each errand is a job of one task, begun by a thread of its own."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from presize.builder.executors.address import check_listening

if TYPE_CHECKING:
    from presize.builder.executors.errand import Courier

_THREADS = 4096
"""At most; one is started for each errand that is under way, twice as many as the cluster has cores."""


class Spark:
    """An application on the master at an address such as ``spark://HOST:7077``, or "yarn", as spark-submit takes them.
    A session that this process has already is used, and left as it is.

    Raises:
        ImportError: pyspark is not installed.
        Exception: of any kind, when nothing listens there, or Spark cannot be started.
    """

    def __init__(self, address: str) -> None:
        from pyspark.sql import SparkSession

        if address.startswith("spark://"):
            check_listening(address)
        self._ours = SparkSession.getActiveSession() is None
        settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF"}
        self._session = SparkSession.builder.master(address).appName("presize").config(map=settings).getOrCreate()
        self._threads = ThreadPoolExecutor(_THREADS, "presize-spark")

    def slots(self) -> int:
        context = self._session.sparkContext._jsc.sc()
        if context.isLocal() or context.getExecutorMemoryStatus().size() > 1:  # the driver is in it, too
            cores: int = context.defaultParallelism()
            return cores
        return 0  # where Spark says 2

    def submit(self, courier: Courier, version: str, errand: bytes) -> Future[bytes | str]:
        return self._threads.submit(self._job, courier, version, errand)

    def _job(self, courier: Courier, version: str, errand: bytes) -> bytes | str:
        errands = self._session.sparkContext.parallelize([errand], 1)
        answer: bytes | str = errands.map(lambda one: courier(version, one)).first()
        return answer

    def check(self) -> None:
        self.slots()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._session.sparkContext.cancelAllJobs()
        if self._ours:
            self._session.stop()
