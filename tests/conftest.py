"""Folders and datasets that several test files read. The suite makes all of its own images."""

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

# A loaded machine is no failure.
settings.register_profile(
    "presize", max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("presize")

# A shell's background jobs ignore Ctrl-C, what nohup starts SIGHUP, and what they start with them; programs that tests
# interrupt must not.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 photo-like images in 3 classes, 4 of them broken; read only."""
    folder = tmp_path_factory.mktemp("raw") / "photos"
    make_samples(folder, SampleOptions(images=60, classes=3, long_side=160, broken=4, rotated=0.2))
    return folder


@pytest.fixture(scope="session")
def dataset(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`raw` built at 64 px into LMDB shards; read only."""
    out = tmp_path_factory.mktemp("dataset") / "64"
    build_dataset(raw, out, SMALL, REPORTED)
    return out


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with presize's own wheel, which tools/wheels.sh builds from a copy of this tree, without a network; one
    for all of pytest's workers, as compiling takes long."""
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
    """A headless Chromium; without one the test is skipped, or fails in CI."""
    with chromium() as found:
        yield found
        # A loader's worker that was forked meanwhile, and that an error in a cycle still holds, would hold the pipe to
        # the driver of the browser, too, which then never ends.
        gc.collect()


@pytest.fixture
def watch(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """Opens a page, in a window of its own. That no page complains or asks for anything is checked in the end."""
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
    """The presize command, run in this process."""
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def run(*args: object) -> Ran:
        with pytest.raises(SystemExit) as exit, pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.simplefilter", lambda *_: None)
            main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Ran(exit.value.code, captured.out, captured.err)

    return run
