"""Builds as processes: signals, lost workers, full disks. Runs the real command; tests/faults kills it anywhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from builds import files
from presize.sources.sample import SampleOptions, make_samples
from processes import fork_servers_of, in_session, is_running, pids_group, workers_of

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "presize", "build"]
ARGS = ["--size", "64", "--jobs", "2", "--shard-samples", "25", "--no-report"]
PATIENCE_S = 60


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 600 images: their build is long enough to be stopped in the middle. Read only."""
    folder = tmp_path_factory.mktemp("photos") / "raw"
    make_samples(folder, SampleOptions(images=60, classes=2, long_side=700))
    for image in [path for path in folder.rglob("*") if path.is_file()]:
        for copy in range(9):
            os.link(image, image.with_stem(f"{image.stem}-{copy}"))
    return folder


@pytest.fixture(scope="module")
def whole(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the files of an undisturbed build of `photos`."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert run(photos, out).returncode == 0
    return files(out)


def run(
    photos: Path, out: Path, *more: str, preexec: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, str(photos), str(out), *ARGS, *more]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, preexec_fn=preexec, check=False, cwd="/"
    )


def start(photos: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    """Start a build, and return it when some shards are finished and others in progress."""
    build = subprocess.Popen(
        [*COMMAND, str(photos), str(out), *ARGS, *more],
        start_new_session=True,  # its own process group, as in a terminal
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    wait_until(lambda: len(list(out.glob(".presize-*.npz"))) >= 2 or build.poll() is not None)
    assert build.poll() is None, "it ended before it could be stopped"
    return build


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("stop", "to_group", "code"),
    [
        (signal.SIGINT, True, 130),  # Ctrl-C reaches driver and workers
        (signal.SIGINT, False, 130),
        (signal.SIGTERM, False, 143),
        (signal.SIGHUP, True, 129),
    ],
    ids=["Ctrl-C", "SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_stopped_build_says_how_to_resume_and_resumes(
    stop: signal.Signals, to_group: bool, code: int, photos: Path, whole: dict[str, str], tmp_path: Path
) -> None:
    build = start(photos, tmp_path / "out")
    own = workers_of(build.pid)
    (os.killpg if to_group else os.kill)(build.pid, stop)
    _, errors = build.communicate(timeout=PATIENCE_S)
    assert build.returncode == code
    assert errors == "presize: error: interrupted; run again to resume\n"
    assert not [pid for pid in own if is_running(pid)]
    assert not [name for name in files(tmp_path / "out") if name.endswith(".tmp")]
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert run(photos, tmp_path / "out").returncode == 0
    assert files(tmp_path / "out") == whole


def test_a_build_whose_workers_are_always_killed_fails(photos: Path, whole: dict[str, str], tmp_path: Path) -> None:
    build = start(photos, tmp_path / "out")
    while build.poll() is None:
        for pid in workers_of(build.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    _, errors = build.communicate(timeout=PATIENCE_S)
    assert build.returncode == 1
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith("presize: error: 3 worker processes died while writing shard")
    assert run(photos, tmp_path / "out").returncode == 0
    assert files(tmp_path / "out") == whole


def test_a_build_that_fails_before_it_needs_workers_leaves_no_process(tmp_path: Path) -> None:
    command = [*COMMAND, str(tmp_path / "nothing"), str(tmp_path / "out")]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL, cwd="/") as build:
        assert build.wait(PATIENCE_S) == 1
        assert not in_session(build.pid)


def test_a_build_goes_on_without_its_fork_server(photos: Path, whole: dict[str, str], tmp_path: Path) -> None:
    build = start(photos, tmp_path / "out")
    own = workers_of(build.pid)
    os.kill(*fork_servers_of(build.pid), signal.SIGKILL)
    _, errors = build.communicate(timeout=PATIENCE_S)
    assert (build.returncode, errors) == (0, "")
    assert own and not [pid for pid in own if is_running(pid)]
    assert files(tmp_path / "out") == whole


def test_a_stopped_worker_is_replaced(photos: Path, whole: dict[str, str], tmp_path: Path) -> None:
    build = start(photos, tmp_path / "out", "--timeout-s", "2")
    os.kill(workers_of(build.pid)[0], signal.SIGSTOP)
    _, errors = build.communicate(timeout=PATIENCE_S)
    assert build.returncode == 0, errors
    assert files(tmp_path / "out") == whole


def test_a_build_uses_no_shared_memory_that_could_outlive_it(photos: Path, tmp_path: Path) -> None:
    build = start(photos, tmp_path / "out")
    used = {
        line
        for pid in (build.pid, *workers_of(build.pid))
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if "/dev/shm" in line and not line.endswith("(deleted)")
    }
    build.communicate(timeout=PATIENCE_S)
    assert used == set()


def test_a_container_with_few_processes_is_a_one_line_error_and_the_build_can_be_resumed(
    photos: Path, tmp_path: Path
) -> None:
    with pids_group() as group:
        (group / "pids.max").write_text("9")
        enter = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
        ran = run(photos, tmp_path / "out", "--jobs", "6", preexec=enter)
    errors = [line for line in ran.stderr.splitlines() if line.startswith("presize: error")]
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    assert re.fullmatch(r"presize: error: cannot run worker \d of 6: pids.max 9 of a control group allows .*", *errors)
    assert run(photos, tmp_path / "out").returncode == 0


SCRIPT = """
import multiprocessing, os, sys
from presize import BuildOptions, ImageOptions, RunOptions, Size, build_dataset

def build(source, out):
    build_dataset(source, out, BuildOptions(ImageOptions(sizes=(Size(64, 64),))), RunOptions(jobs=2))

source, out = sys.argv[1:]
build(source, f"{out}/parent")
children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
print(sum("presize" in open(f"/proc/{child}/cmdline").read() for child in children), "workers stay")
child = multiprocessing.get_context("fork").Process(target=build, args=(source, f"{out}/child"))
child.start()
child.join()
print("child exited with", child.exitcode)
"""


def test_no_worker_remains_and_a_forked_child_can_build(photos: Path, tmp_path: Path) -> None:
    args = [sys.executable, "-c", SCRIPT, str(photos), str(tmp_path)]
    ran = subprocess.run(args, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd="/")
    assert ran.stdout == "0 workers stay\nchild exited with 0\n", ran.stderr
    assert files(tmp_path / "parent") == files(tmp_path / "child")
