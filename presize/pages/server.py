"""Serves pages of a dataset, only to a browser on this machine.

The address contains a random token, which other users of the machine and other pages in the browser cannot guess. The
Host header must name this machine, with any port, since ports may be forwarded; so a domain that resolves to 127.0.0.1
gets nothing (DNS rebinding). Filters parses the query string of the only page: no part of an address is a file path.
"""

from __future__ import annotations

import hmac
import re
import secrets
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

from presize.errors import OptionError, PresizeError
from presize.formatting import printable
from presize.pages.gallery import gallery_page
from presize.pages.samples import ViewedDataset
from presize.pages.selection import Filters

ADDRESS = "127.0.0.1"

# Names of this machine in /etc/hosts of common distributions.
_LOOPBACK = {
    *("localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"),
    *("localhost4.localdomain4", "localhost6.localdomain6"),
}

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def is_this_machine(host: str) -> bool:
    """Return whether a Host header names this machine, with any port. Nobody can register such a name."""
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([\w-][\w.-]*?)\.?)(?::\d*)?", host.lower(), re.ASCII)
    if found is None:
        return False
    literal, name = found.groups()
    if name is not None and (name in _LOOPBACK or name.endswith(".localhost")):  # reserved by RFC 6761, 6.3
        return True
    try:
        address = ip_address(literal or name)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


class GalleryServer(ThreadingHTTPServer):
    """A server of one dataset at `url` while serve_forever() runs. As a context manager it closes the port. Port 0
    chooses a free one. Raises OptionError if the port cannot be used."""

    daemon_threads = True

    def __init__(self, viewed: ViewedDataset, port: int = 0) -> None:
        self.viewed = viewed
        self.token = secrets.token_urlsafe(24)
        self.rendering = threading.Lock()  # one page at a time: decoded sources take much memory
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OptionError(f"port: cannot listen on {ADDRESS}:{port}: {reason}; choose another") from None

    @property
    def host(self) -> str:
        return f"{ADDRESS}:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that close the connection."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: GalleryServer
    server_version, sys_version = "presize", ""
    timeout = 30.0  # seconds

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not is_this_machine(hosts[0].strip()):
            host, port = self.server.host, self.server.server_address[1]
            return self._say(
                HTTPStatus.FORBIDDEN,
                f"presize view serves only its own machine; open the address that it printed, which begins with "
                f"http://{host}/. From another machine run `ssh -L {port}:{host} MACHINE` first, and open the same "
                "address there",
            )
        path, _, query = self.path.partition("?")
        if not hmac.compare_digest(path.encode(), f"/{self.server.token}/".encode()):
            return self._say(HTTPStatus.NOT_FOUND, "there is no such page")
        try:
            with self.server.rendering:
                page = gallery_page(self.server.viewed, Filters.parse(query))
        except OptionError as error:
            return self._say(HTTPStatus.BAD_REQUEST, str(error))
        except PresizeError as error:
            return self._say(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        self._answer(HTTPStatus.OK, "text/html", page)

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, "text/plain", f"{printable(text)}\n")

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode("utf-8", "replace")
        own = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        self.send_response(status)
        for header in (HEADERS | own).items():
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, _explain: str | None = None) -> None:
        """Answer anything that is not a GET request."""
        self.close_connection = True
        self._say(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """Discard the message: library code does not print."""
