"""Dask: its workers' threads run errands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Future

    from presize.builder.executors.errand import Courier

_CONNECT_S = 8


async def _identity(address: str) -> None:
    """Ask a scheduler who it is. Raises OSError, ValueError or TimeoutError where there is none."""
    from distributed.core import rpc

    async with rpc(address) as scheduler:
        if (await scheduler.identity())["type"] != "Scheduler":
            raise ValueError("what answers is a worker of Dask, and no scheduler")


class Dask:
    """A client of the scheduler at an address such as ``tcp://HOST:8786``.

    Raises:
        ImportError: distributed is not installed.
        Exception: of any kind, when no scheduler answers within 8 s.
    """

    def __init__(self, address: str) -> None:
        from distributed import Client

        try:
            asyncio.run(asyncio.wait_for(_identity(address), _CONNECT_S))  # a client that fails to begin takes a minute
        except TimeoutError:
            raise TimeoutError(f"no answer within {_CONNECT_S} s") from None
        self._client = Client(address, timeout=_CONNECT_S, set_as_default=False)

    def slots(self) -> int:
        return sum(self._client.nthreads().values())

    def submit(self, courier: Courier, version: str, errand: bytes) -> Future:
        return self._client.submit(courier, version, errand, pure=False)

    def check(self) -> None:
        if self._client.status != "running":
            raise OSError(f"the scheduler at {self._client.scheduler.address} is lost")

    def close(self) -> None:
        self._client.close(timeout=2)
