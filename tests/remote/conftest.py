"""An S3 server with a dataset, a prefix on it for each test, and a proxy before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from servers import BUCKET, Proxy, cutting, point_to, s3, upload


@pytest.fixture(scope="session")
def s3_port(dataset: Path) -> Iterator[int]:
    """Run an S3 server with `dataset` at servers.URL, and yield its port."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # other tests keep their environment
            port = stack.enter_context(s3(patch))
            upload(dataset, "sets/64")
        yield port


@pytest.fixture(autouse=True)
def server(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the port of the S3 server, after pointing the environment to it."""
    point_to(monkeypatch, s3_port)
    return s3_port


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Return a unique prefix in the bucket."""
    return f"{request.path.stem}/{request.node.name.replace('_', '-')}"


@pytest.fixture
def url(prefix: str) -> str:
    """Return the URL of `prefix`."""
    return f"s3://{BUCKET}/{prefix}"


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Run a proxy before the server."""
    with cutting(server, most=None) as proxy:
        point_to(monkeypatch, proxy.port)
        yield proxy
