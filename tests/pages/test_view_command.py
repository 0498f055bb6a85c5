"""presize view, the command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import Ran

Presize = Callable[..., Ran]


def test_a_page_is_written(presize: Presize, dataset: Path, raw: Path, tmp_path: Path) -> None:
    ran = presize("view", dataset, "--raw", raw, "--images", 5, "-o", tmp_path / "view.html")
    assert ran == Ran(0, f"page: {tmp_path / 'view.html'}\n", "")
    assert (tmp_path / "view.html").read_text("utf-8").count("<figure>") == 5


def test_filters_choose_what_is_on_it(presize: Presize, dataset: Path, tmp_path: Path) -> None:
    presize("view", dataset, "--text", "disc/0001", "-o", tmp_path / "view.html")
    assert (tmp_path / "view.html").read_text("utf-8").count("<figure>") == 1
    presize("view", dataset, "--rejects", "-o", tmp_path / "view.html")
    assert "the file is empty" in (tmp_path / "view.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("", "expected -o FILE or --serve."),
        ("--serve -o page.html", "expected -o FILE or --serve, not both."),
        ("-o /nowhere/page.html", "-o: /nowhere is not a folder; create it, or choose another."),
        ("--serve --text \udcff", r"--text: expected UTF-8, got '\udcff'"),
        ("--serve --label dog", "--label: expected one of 0-red-disc, 1-jade-star, 2-violet-square, got 'dog'"),
        ("--serve --min-side -3", "--min-side: expected at least 0, got -3"),
        (
            "--serve --raw /usr",
            "--raw: '/usr' has no '0-red-disc/0000.jpg', nor others of its images; expected the folder of files that "
            "the dataset was built from",
        ),
        ("--serve --raw nowhere", "--raw: 'nowhere' is not a folder; expected the one that the dataset was built from"),
    ],
)
def test_a_wrong_use_is_one_line(presize: Presize, dataset: Path, arguments: str, error: str) -> None:
    ran = presize("view", dataset, *arguments.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.removesuffix(" Try 'presize view --help'.\n").rstrip("\n") == f"presize: error: {error}"


def test_what_is_no_page_is_not_replaced(presize: Presize, dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("of a year")
    ran = presize("view", dataset, "-o", tmp_path / "notes.txt")
    assert ran.code == 2
    assert f"-o: {tmp_path / 'notes.txt'} is there and is no page; choose another name." in ran.err
    assert (tmp_path / "notes.txt").read_text() == "of a year"
    os.mkfifo(tmp_path / "pipe")
    assert "is there and is no page" in presize("view", dataset, "-o", tmp_path / "pipe").err
    (tmp_path / "page.html").touch()
    for _ in range(2):
        assert presize("view", dataset, "-o", tmp_path / "page.html").code == 0


def test_a_url_is_one_line(presize: Presize) -> None:
    ran = presize("view", "s3://bucket/OUT", "--serve")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "presize fetch s3://bucket/OUT DIR" in ran.err


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
