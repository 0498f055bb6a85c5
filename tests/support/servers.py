"""Local servers: S3 by moto, HTTP, and a proxy before them that cuts connections."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from builds import SMALL, files
from presize.options import BuildOptions, RunOptions
from presize.remote.bucket import Bucket
from presize.remote.fetch import fetch_dataset

BUCKET = "data"
URL = f"s3://{BUCKET}/sets/64"
"""The dataset of tests/remote."""
SHARDS = BuildOptions(SMALL.image, shard_samples=8)
UPDATE = RunOptions(engine="sequential", report=False, update=True)


class StopError(Exception):
    """Raised by tests to end something early."""


def stop(*_: object) -> None:
    raise StopError


def fetched(url: str, folder: Path) -> dict[str, str]:
    """Copy the dataset at `url` to `folder`, and return its files."""
    fetch_dataset(url, folder)
    return files(folder)


def names(url: str) -> list[str]:
    """List everything at `url`."""
    return [found.path for found in Bucket(url).list()]


@contextmanager
def s3(patch: pytest.MonkeyPatch) -> Iterator[int]:
    """Run an S3 server with an empty bucket, with the environment pointing to it, and yield its port."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        point_to(patch, port)
        boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}").create_bucket(Bucket=BUCKET)
        yield port
    finally:
        server.stop()


def point_to(patch: pytest.MonkeyPatch, port: int) -> None:
    """Point the environment to an S3 server on this port."""
    patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    patch.setenv("AWS_REGION", "us-east-1")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def upload(folder: Path, prefix: str) -> None:
    """Upload all files below a folder into the bucket of the environment."""
    import boto3

    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.put_object(
                Bucket=BUCKET, Key=f"{prefix}/{path.relative_to(folder).as_posix()}", Body=path.read_bytes()
            )


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def http(folder: Path, handler: type[_Quiet] = _Quiet) -> Iterator[int]:
    """Run a web server of `folder` without range requests, and yield its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=os.fspath(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def silent_http(folder: Path, silent: str) -> Iterator[tuple[int, threading.Event]]:
    """Run a web server of `folder` that never answers requests with `silent` in the path. Yield its port, and an event
    that is set by such a request."""
    asked, closing = threading.Event(), threading.Event()

    class Silent(_Quiet):
        def do_GET(self) -> None:
            if silent in self.path:
                asked.set()
                closing.wait()
            else:
                super().do_GET()

    with http(folder, Silent) as port:
        try:
            yield port, asked
        finally:
            closing.set()


class Proxy:
    """Proxy to a local port that cuts each connection after `most` bytes of answers, or `most_asked` bytes of requests,
    and counts these in `cut`. It removes the header `left_out` from requests, and applies `damage` to answers. `asked`
    and `put` are the paths of requests, in order."""

    def __init__(self, port: int, most: int | None) -> None:
        self._to, self.most, self.cut = port, most, 0
        self.most_asked: int | None = None
        self.left_out = ""
        self.damage: Callable[[bytes], bytes] = bytes
        self.asked: list[str] = []
        self.put: list[str] = []
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._start(self._accept)

    def _start(self, function: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=function, args=args))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._to)) as server:
            asking = threading.Thread(target=self._ask, args=(client, server))
            asking.start()
            self._answer(server, client, self.most)
            asking.join()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        passed = 0
        with suppress(OSError):
            while chunk := client.recv(1 << 14):
                passed += len(chunk)
                if self.most_asked is not None and passed > self.most_asked:
                    self.cut += 1
                    break
                text = chunk.decode("latin-1")
                self.asked += re.findall(r"^GET (\S+)", text, re.MULTILINE)
                self.put += re.findall(r"^PUT (\S+)", text, re.MULTILINE)
                if self.left_out:
                    chunk = re.sub(rf"{self.left_out}: .*\r\n".encode(), b"", chunk, flags=re.IGNORECASE)
                server.sendall(chunk)
        self._end(client, server)

    def _answer(self, server: socket.socket, client: socket.socket, most: int | None) -> None:
        passed = 0
        with suppress(OSError):
            while chunk := server.recv(1 << 14):
                passed += len(chunk)
                if most is not None and passed > most:
                    self.cut += 1
                    break
                client.sendall(self.damage(chunk))
        self._end(server, client)

    def _end(self, one: socket.socket, other: socket.socket) -> None:
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Wait for the open connections, and accept no more."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()


def flipping(times: float) -> Callable[[bytes], bytes]:
    """Return a function that damages this many JPEGs in transit, by one byte each."""
    left = [times]

    def damage(answer: bytes) -> bytes:
        if not answer.endswith(b"\xff\xd9") or left[0] == 0:
            return answer
        left[0] -= 1
        at = max(0, len(answer) - 9)
        return answer[:at] + bytes([answer[at] ^ 1]) + answer[at + 1 :]

    return damage


@contextmanager
def cutting(port: int, most: int | None) -> Iterator[Proxy]:
    proxy = Proxy(port, most)
    try:
        yield proxy
    finally:
        proxy.close()
