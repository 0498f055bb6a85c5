"""Shared folders and datasets. The suite generates all of its images."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from browsers import Watched, chromium
from builds import REPORTED, SMALL
from commands import OFFLINE, Ran
from effort import examples
from presize.builder.run import build_dataset
from presize.cli import main
from presize.sources.sample import SampleOptions, make_samples

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# A loaded machine must not fail tests.
settings.register_profile(
    "presize", max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("presize")

# Background jobs of a shell ignore Ctrl-C, and children of nohup ignore SIGHUP, as do their children. Programs that
# tests interrupt must not ignore them.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create 60 photo-like images in 3 classes, 4 of them broken; read only."""
    folder = tmp_path_factory.mktemp("raw") / "photos"
    make_samples(folder, SampleOptions(images=60, classes=3, long_side=160, broken=4, rotated=0.2))
    return folder


@pytest.fixture(scope="session")
def dataset(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build `raw` at 64 px into LMDB shards; read only."""
    out = tmp_path_factory.mktemp("dataset") / "64"
    build_dataset(raw, out, SMALL, REPORTED)
    return out


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build presize's wheel by tools/wheels.sh from a copy of this tree, without a network; once for all of pytest's
    workers, because compiling takes long."""
    pytest.importorskip("setuptools", minversion="77")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheels"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            command = ["bash", Path(__file__).parent.parent / "tools" / "wheels.sh", folder, "none"]
            env = {**os.environ, **OFFLINE, "PYTHON": sys.executable}
            subprocess.run(command, check=True, capture_output=True, env=env)
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Run a headless Chromium; without one the test is skipped, or fails in CI."""
    with chromium() as found:
        yield found
        # A forked worker of a loader that an error in a reference cycle keeps alive also holds the pipe to the
        # browser's driver, which would then never end.
        gc.collect()


@pytest.fixture
def watch(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """Return a function that opens a page in its own window. At the end, it checks that no page logged an error or sent
    a request."""
    opened: list[Watched] = []

    def open_page(path: Path, **options: object) -> Watched:
        opened.append(Watched.open(browser, path, **options))
        return opened[-1]

    yield open_page
    for watched in opened:
        watched.page.context.close()
        assert watched.complaints == []
        assert watched.requests == [watched.url]


@pytest.fixture
def presize(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Return the presize command, which runs in this process."""
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def run(*args: object) -> Ran:
        with pytest.raises(SystemExit) as exit, pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.simplefilter", lambda *_: None)
            main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Ran(exit.value.code, captured.out, captured.err)

    return run
