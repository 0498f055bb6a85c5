"""Slow proxy for epochs.py: forwards connections to a port at MB_PER_S in total, and closes each after CUT_S seconds.

    python benchmarks/remote/slow_store.py PORT MB_PER_S CUT_S

Prints its own port. CUT_S 0 closes none.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress

_CHUNK = 1 << 17


class Throttle:
    """A rate limit that all threads share."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate, self._lock, self._free_at = bytes_per_s, threading.Lock(), time.monotonic()

    def wait(self, nbytes: int) -> None:
        """Wait until these bytes may pass. An idle period earns no credit."""
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + nbytes / self._rate
            wait = self._free_at - time.monotonic()
        time.sleep(max(0.0, wait))


def serve(client: socket.socket, port: int, throttle: Throttle, cut_s: float) -> None:
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        asking = threading.Thread(target=pass_on, args=(client, server, None, 0.0), daemon=True)
        asking.start()
        pass_on(server, client, throttle, cut_s)


def pass_on(one: socket.socket, other: socket.socket, throttle: Throttle | None, cut_s: float) -> None:
    end = time.monotonic() + cut_s
    with suppress(OSError):
        while chunk := one.recv(_CHUNK):
            if cut_s and time.monotonic() > end:
                break
            if throttle is not None:
                throttle.wait(len(chunk))
            other.sendall(chunk)
    for socket_ in (one, other):
        with suppress(OSError):
            socket_.shutdown(socket.SHUT_RDWR)


def main() -> None:
    port, throttle, cut_s = int(sys.argv[1]), Throttle(float(sys.argv[2]) * 1e6), float(sys.argv[3])
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            client, _ = listening.accept()
            threading.Thread(target=serve, args=(client, port, throttle, cut_s), daemon=True).start()


if __name__ == "__main__":
    main()
