"""Whether a scheduler listens where one should be: engines ask again for minutes."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

_SECONDS = 5
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a connection of gRPC begins: the preface, and settings without any (RFC 9113, 3.4 and 6.5)."""


def check_listening(address: str, by_grpc: bool = False) -> None:
    """Raise OSError unless a connection to `address` is accepted.

    Args:
        address: ``HOST:PORT`` or ``scheme://HOST:PORT``.
        by_grpc: whether what listens has to answer as gRPC does.
    """
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None:
        raise OSError("expected HOST:PORT")
    with socket.create_connection((host, port), timeout=_SECONDS) as connection:
        if by_grpc:
            connection.sendall(_HTTP2)
            answer = connection.recv(9)
            if answer[3:4] != _HTTP2[-6:-5]:
                raise OSError("something else listens there")
