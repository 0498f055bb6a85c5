"""Ray: errands are its tasks, of one core each."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from presize.builder.executors.address import check_listening

if TYPE_CHECKING:
    from presize.builder.executors.errand import Courier


class Ray:
    """A driver of the cluster whose head is at an address such as ``HOST:6379``; "auto" finds one on this machine. A
    connection that this process has already is used, and left as it is.

    Raises:
        ImportError: ray is not installed.
        Exception: of any kind, when nothing listens there.
    """

    def __init__(self, address: str) -> None:
        import ray

        self._remote: Any = None
        self._ours = not ray.is_initialized()
        if self._ours:
            if address != "auto":
                check_listening(address, by_grpc=True)
            ray.init(address, log_to_driver=False, logging_level="critical")

    def slots(self) -> int:
        import ray

        return int(ray.cluster_resources().get("CPU", 0))

    def submit(self, courier: Courier, version: str, errand: bytes) -> Future[bytes | str]:
        import ray

        if self._remote is None:
            self._remote = ray.remote(num_cpus=1)(courier)  # which sends it to the cluster, each time
        done: Future[bytes | str] = self._remote.remote(version, errand).future()
        return done

    def check(self) -> None:
        self.slots()

    def close(self) -> None:
        import ray

        if self._ours:
            ray.shutdown()
