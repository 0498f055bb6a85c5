"""A server of S3, a place on it, and a proxy before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servers import BUCKET, Proxy, cutting, point_to, s3


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of an S3 server."""
    with pytest.MonkeyPatch.context() as patch, s3(patch) as port:
        yield port


@pytest.fixture
def url(server: int, request: pytest.FixtureRequest) -> str:  # noqa: ARG001
    """A place of its own."""
    return f"s3://{BUCKET}/{request.path.stem}/{request.node.name.replace('_', '-')}"


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What lies before the server."""
    with cutting(server, most=None) as proxy:
        point_to(monkeypatch, proxy.port)
        yield proxy
