"""presize view: the command, its server, access to its pages, and their behaviour in a browser."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from commands import Ran
from presize.errors import OptionError
from presize.pages.samples import ViewedDataset
from presize.pages.server import HEADERS, GalleryServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def server(dataset: Path) -> Iterator[GalleryServer]:
    with GalleryServer(ViewedDataset.of(dataset)) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def asked(
    server: GalleryServer, path: str, host: str | None = None, method: str = "GET"
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection(*server.server_address, timeout=30)
    connection.request(method, path, headers={"Host": server.host if host is None else host})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), dict(answer.headers)
    connection.close()
    return found


def test_the_address_with_its_token_returns_the_page(server: GalleryServer) -> None:
    status, text, headers = asked(server, f"/{server.token}/?text=0001")
    assert status == 200
    assert "0001.jpg" in text
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers.items() >= HEADERS.items()


PATHS = ("/", "/{token}", "/{token}x/", "/{token}/index.html", "/{token}/../{token}/", "/{token}/../../etc/passwd")


@pytest.mark.parametrize("path", [*PATHS, "//{token}/x"])
def test_any_other_path_is_not_found(server: GalleryServer, path: str) -> None:
    status, text, headers = asked(server, path.format(token=server.token))
    assert (status, text) == (404, "there is no such page\n")
    assert headers.items() >= HEADERS.items()


LOOPBACK = (
    "127.0.0.1|127.0.0.1:9|localhost|localhost:{port}|LocalHost:80|localhost.:8123|127.1.2.3:{port}|[::1]:{port}|[::1]|"
    "localhost.localdomain:{port}|ip6-localhost|localhost6:80|presize.localhost:{port}|[0:0:0:0:0:0:0:1]|"
    "[::ffff:127.0.0.1]:{port}"
)


@pytest.mark.parametrize("host", LOOPBACK.split("|"))
def test_every_name_of_this_machine_and_any_port_is_answered(server: GalleryServer, host: str) -> None:
    assert asked(server, f"/{server.token}/", host.format(port=server.server_address[1]))[0] == 200


OTHERS = (
    "evil.example|localhost.evil.example|127.0.0.1.evil.example:{port}|127.0.0.1:{port}.evil.example|"
    "localhost.evil|evil-localhost|.localhost|127.evil.example|1127.0.0.1|127.0.0.256|[::2]:{port}|[::ffff:192.168.0.1]|"
    "192.168.0.1:{port}|evil@localhost|localhost/evil|127.0.0.1,evil.example|[localhost]|"
)


@pytest.mark.parametrize("host", OTHERS.split("|"))
def test_another_host_is_refused_with_the_correct_address(server: GalleryServer, host: str) -> None:
    port = server.server_address[1]
    status, text, _ = asked(server, f"/{server.token}/", host.format(port=port))
    assert status == 403
    assert f"http://127.0.0.1:{port}/" in text and f"ssh -L {port}:127.0.0.1:{port} " in text
    assert server.token not in text and text.count("\n") == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "<b>"])
def test_another_method_is_refused(server: GalleryServer, method: str) -> None:
    status, _, headers = asked(server, f"/{server.token}/", method=method)
    assert status == 501
    assert headers["Content-Type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    "query", ["page=x", "label=no-such", "sample=99999", "show=rejects&sample=0", "file=../../etc/passwd"]
)
def test_a_bad_query_is_one_line_of_text(server: GalleryServer, query: str) -> None:
    status, text, headers = asked(server, f"/{server.token}/?{query}")
    assert status == 400
    assert text.count("\n") == 1
    assert headers["Content-Type"] == "text/plain; charset=utf-8"


def test_an_invalid_request_is_refused_and_the_server_continues(server: GalleryServer) -> None:
    for junk in (b"\x00\xff\r\n\r\n", b"GET " + b"x" * 70_000 + b"\r\n\r\n"):
        with socket.create_connection(server.server_address, timeout=30) as connection:
            connection.sendall(junk)
            assert b"200" not in connection.recv(100)
    assert asked(server, f"/{server.token}/?text=none")[0] == 200


def test_two_host_headers_are_refused(server: GalleryServer) -> None:
    with socket.create_connection(server.server_address, timeout=30) as connection:
        line = f"GET /{server.token}/ HTTP/1.0\r\nHost: {server.host}\r\nHost: evil.example\r\n\r\n"
        connection.sendall(line.encode())
        assert connection.recv(100).startswith(b"HTTP/1.0 403")


def test_every_server_has_its_own_token_and_listens_on_this_machine(server: GalleryServer) -> None:
    with GalleryServer(server.viewed) as other:
        assert other.token != server.token
        assert len(other.token) >= 32
        assert other.server_address[0] == "127.0.0.1"
    port = server.server_address[1]
    with pytest.raises(OptionError, match=f"port: cannot listen on 127.0.0.1:{port}: Address already in use"):
        GalleryServer(server.viewed, port)


# Browser


@pytest.fixture
def page(browser: Browser, server: GalleryServer) -> Iterator[Page]:
    """Open the first page. At the end, it checks that no page logged an error or requested anything from elsewhere."""
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": 390, "height": 800})
    found = context.new_page()
    found.on("console", lambda message: complaints.append(message.text))
    found.on(
        "request",
        lambda request: complaints.extend([] if request.url.startswith((server.url, "data:")) else [request.url]),
    )
    found.goto(server.url)
    yield found
    context.close()
    assert complaints == []


def test_a_search_in_a_browser_changes_the_address_and_the_back_button_undoes_it(page: Page) -> None:
    everything = page.get_by_role("status").inner_text()
    page.get_by_label("Path or text contains").fill("0001")
    page.keyboard.press("Enter")
    page.wait_for_url("**/*text=0001*")
    expect(page.get_by_role("status")).not_to_have_text(everything)
    assert page.get_by_label("Path or text contains").input_value() == "0001"
    page.go_back()
    expect(page.get_by_role("status")).to_have_text(everything)


def test_a_class_can_be_chosen_and_cleared(page: Page, server: GalleryServer) -> None:
    name = server.viewed.manifest.classes[2]
    page.get_by_label("Class").select_option(name)
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**/*label=*")
    assert set(page.locator(".label").all_inner_texts()) == {name}
    page.get_by_role("link", name="Clear").click()
    page.wait_for_url(lambda url: "label=" not in url)
    assert len(set(page.locator(".label").all_inner_texts())) == 3


def test_an_image_opens_by_keyboard_and_leads_back(page: Page, server: GalleryServer) -> None:
    first = page.locator("a.shots").first
    first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/*sample=0")
    expect(page.locator("h2")).to_have_text(server.viewed.row(0)["path"])
    page.get_by_role("link", name="Back to the gallery").click()
    expect(page.locator("a.shots")).to_have_count(56)


def test_every_image_and_field_has_a_text_and_nothing_is_wider_than_a_phone(page: Page) -> None:
    assert page.locator("input:not([type=hidden]), select").count() == 4
    for path in ("", "?sample=3", "?show=rejects"):
        page.goto(page.url.partition("?")[0] + path)
        page.evaluate("for (const image of document.images) image.loading = 'eager'")
        page.wait_for_function("[...document.images].every(image => image.complete)")
        assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0 && image.alt)")
        assert page.evaluate("[...document.querySelectorAll('input, select')].every(one => one.labels?.length !== 0)")
        assert page.evaluate("document.documentElement.scrollWidth") == 390


# The command


def test_a_page_is_written(presize: Callable[..., Ran], dataset: Path, raw: Path, tmp_path: Path) -> None:
    ran = presize("view", dataset, "--raw", raw, "--images", 5, "-o", tmp_path / "view.html")
    assert ran == Ran(0, f"page: {tmp_path / 'view.html'}\n", "")
    assert (tmp_path / "view.html").read_text("utf-8").count("<figure>") == 5


def test_filters_choose_its_samples(presize: Callable[..., Ran], dataset: Path, tmp_path: Path) -> None:
    page = tmp_path / "view.html"
    presize("view", dataset, "--text", "disc/0001", "-o", page)
    assert page.read_text("utf-8").count("<figure>") == 1
    assert presize("view", dataset, "--rejects", "-o", page).code == 0, "an existing page is replaced"
    assert "the file is empty" in page.read_text("utf-8")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_stopped(stop: signal.Signals, dataset: Path) -> None:
    command = [sys.executable, "-m", "presize", "view", str(dataset), "--serve", "--text", "0001"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ) as process:
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            url = lines[1].strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/\?text=0001", url)
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as answer:
                assert b"0001.jpg" in answer.read()
            process.send_signal(stop)
            assert process.communicate(timeout=30) == ("", "")
            assert process.returncode == 0
        finally:
            process.kill()
