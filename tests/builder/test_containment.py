"""Images that crash their decoder: each is rejected, and its shard and the build survive."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from builds import Builder
from commands import Ran
from pictures import smooth_image
from presize import BuildOptions, DeriveOptions, ImageOptions, RunOptions, Size, derive_dataset
from presize.errors import BuildError, ImageError
from processes import workers_of

SITE = """
import ctypes, os, pathlib, signal, sys
from presize.codecs import transcode as module

def hang():
    ctypes.PyDLL(None).pause()  # without releasing the GIL

def out_of_memory():
    raise MemoryError

def once():
    place = pathlib.Path(os.environ["PRESIZE_TEST_ONCE"])
    if not place.exists():
        place.touch()
        ctypes.string_at(0)

HOW = {
    b"segfault": lambda: ctypes.string_at(0), b"abort": os.abort, b"exit": lambda: os._exit(3), b"hang": hang,
    b"memory": out_of_memory, b"once": once,
}
real = module.transcode

def transcode(data, options):
    HOW.get(data.rpartition(b"crash:")[2], lambda: None)()
    if len(data) == int(os.environ.get("PRESIZE_TEST_NBYTES", -1)):
        hang()
    return real(data, options)

module.transcode = transcode

def freeze(event, arguments):
    if event == "open" and arguments[0] == os.environ["PRESIZE_TEST_FROZEN"]:
        signal.pause()

if "PRESIZE_TEST_FROZEN" in os.environ:
    sys.addaudithook(freeze)
"""
"""Run by every worker as it starts. An image that ends in "crash:abort" aborts its decoding process, and so on; an
image of PRESIZE_TEST_NBYTES hangs; opening PRESIZE_TEST_FROZEN never returns."""

OPTIONS = BuildOptions(ImageOptions(sizes=(Size(16, 16),)), shard_samples=4)
TWO_JOBS = RunOptions(jobs=2, report=False)


@pytest.fixture
def build(tmp_path: Path) -> Builder:
    for number in range(8):
        path = tmp_path / "raw" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(20, 30, seed=number)).save(path, "JPEG")
    return Builder(tmp_path / "raw", OPTIONS, run=TWO_JOBS)


@pytest.fixture
def crash(build: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that makes a photograph crash its decoder."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("PRESIZE_TEST_ONCE", str(tmp_path / "once"))

    def crash(how: str, name: str = "a/2.jpg") -> None:
        with (build.source / name).open("ab") as file:
            file.write(f"crash:{how}".encode())

    yield crash
    monkeypatch.undo()


Crash = Callable[..., None]


@pytest.mark.parametrize(
    ("how", "reason", "jobs"),
    [
        ("segfault", "the process that decoded it died, twice (SIGSEGV)", 1),
        pytest.param("hang", "it took longer than --timeout-s 2, twice", 2, marks=pytest.mark.slow),
        pytest.param("memory", "out of memory, twice", 2, marks=pytest.mark.slow),
        pytest.param("abort", "the process that decoded it died, twice (SIGABRT)", 2, marks=pytest.mark.slow),
        pytest.param("exit", "the process that decoded it died, twice (exit code 3)", 2, marks=pytest.mark.slow),
    ],
)
def test_an_image_that_crashes_its_decoder_is_rejected_and_the_rest_is_stored(
    how: str, reason: str, jobs: int, build: Builder, crash: Crash
) -> None:
    crash(how)
    running: list[int] = []
    run = RunOptions(jobs=jobs, timeout_s=2)
    result = build(run=run, on_shard=lambda _: running.append(len(workers_of(os.getpid()))))
    assert (result.stored, result.rejected) == (7, 1)
    assert build.rejects() == [{"path": "a/2.jpg", "error": "CrashError", "reason": reason}]
    assert max(running) <= jobs, "a worker that ran out of memory is replaced"


@pytest.mark.slow
@pytest.mark.usefixtures("crash")
@pytest.mark.parametrize("update", [False, True])
def test_a_source_that_does_not_answer_ends_the_build_and_rejects_no_image(
    update: bool, build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    if update:
        build()
        Image.fromarray(smooth_image(20, 30, seed=9)).save(build.source / "a/2.jpg", "JPEG")
    monkeypatch.setenv("PRESIZE_TEST_FROZEN", str(build.source / "a/2.jpg"))
    reason = r"a/2.jpg: SRC does not answer: it could not be read in 1 s \(--timeout-s\); run again to resume"
    with pytest.raises(BuildError, match=reason):
        build(run=RunOptions(jobs=2, timeout_s=1, update=update))
    monkeypatch.delenv("PRESIZE_TEST_FROZEN")
    assert build(run=replace(TWO_JOBS, update=update)).rejected == 0


@pytest.mark.slow
def test_many_crashing_images_cost_only_themselves_and_yield_equal_bytes(build: Builder, crash: Crash) -> None:
    for number, how in {0: "segfault", 2: "abort", 3: "memory", 5: "segfault", 6: "segfault"}.items():
        crash(how, f"{'ab'[number % 2]}/{number}.jpg")
    result = build()
    assert (result.stored, result.rejected) == (3, 5)
    build("again", run=replace(TWO_JOBS, jobs=1))
    assert build.files() == build.files("again")


@pytest.mark.slow
def test_an_image_that_crashes_once_is_stored_normally(build: Builder, crash: Crash, tmp_path: Path) -> None:
    crash("once")
    assert build().rejected == 0
    assert (tmp_path / "once").exists()
    build("again", run=replace(TWO_JOBS, jobs=1))
    assert build.files() == build.files("again")


@pytest.mark.slow
def test_an_update_contains_a_crashing_image_and_tries_it_again(
    build: Builder, crash: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    (build.source / "a" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    update = replace(TWO_JOBS, update=True)
    build()
    crash("segfault")
    result = build(run=update)
    assert (result.stored, result.rejected, result.changes.copied + result.changes.kept) == (7, 2, 7)
    monkeypatch.delenv("PYTHONPATH")
    result = build(run=update)
    assert (result.stored, result.changes.built) == (8, 1), "the broken one is not tried again"
    data = build.data()
    assert "a/2.jpg" in [data.path(sample) for sample in range(8)]


@pytest.mark.slow
def test_on_error_fail_names_a_crashing_image(build: Builder, crash: Crash) -> None:
    crash("segfault")
    with pytest.raises(ImageError) as caught:
        build(run=RunOptions(jobs=1, on_error="fail"))
    assert str(caught.value) == "a/2.jpg: the process that decoded it died, twice (SIGSEGV)"


def test_sequentially_a_lack_of_memory_is_a_one_line_error_that_names_the_image(
    build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("presize.codecs.transcode.transcode", out_of_memory)
    with pytest.raises(BuildError, match=r"^a/\d\.jpg: out of memory; --backend processes would reject"):
        build(run=RunOptions(engine="sequential"))


@pytest.mark.slow
@pytest.mark.usefixtures("crash")
def test_a_record_that_hangs_its_decoder_is_rejected_from_a_derived_dataset(
    build: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build()
    nbytes = build.data().numbers("nbytes").tolist()
    monkeypatch.setenv("PRESIZE_TEST_NBYTES", str(next(each for each in nbytes if nbytes.count(each) == 1)))
    options, run = DeriveOptions(size=Size(8, 8)), RunOptions(jobs=1, timeout_s=2)
    result = derive_dataset([build.out], tmp_path / "small", options, run)
    assert (result.samples, result.rejected) == (7, 1)
    assert "it took longer than --timeout-s 2, twice" in (tmp_path / "small" / "rejects.jsonl").read_text()


def test_a_dry_run_reports_that_a_decoder_died(presize: Callable[..., Ran], build: Builder, crash: Crash) -> None:
    crash("segfault")
    ran = presize("build", build.source, build.out, "--dry-run")
    assert ran.code == 1
    assert ran.err.startswith("presize: error: --dry-run: a decoder crashed (SIGSEGV) on one of the files")


def test_workers_that_cannot_start_are_one_line_errors(
    build: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    with pytest.raises(BuildError, match=r"^3 worker processes died while writing shard \d \(exit code 7\)"):
        build()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(BuildError, match=r"^cannot start a worker process: No such file or directory"):
        build()


@pytest.mark.slow
def test_a_photograph_larger_than_memory_is_rejected_and_others_are_stored(build: Builder) -> None:
    # Address space is limited here, and libraries reserve more than they use: Arrow a GiB by default. The photograph
    # needs 1.5 times the limit, the others half of it.
    plain = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}
    Image.new("RGB", (13_000, 13_000), (90, 120, 30)).save(build.source / "b" / "large.png", "PNG")
    command = [sys.executable, "-m", "presize", "build", build.source, build.out, "--size", "16", "--jobs", "2"]
    limited = f"ulimit -v 1000000; exec {' '.join(map(str, command))} --shard-samples 4 --no-report"
    shell = ["bash", "-c", limited]
    ran = subprocess.run(shell, capture_output=True, text=True, check=False, cwd=os.sep, env=os.environ | plain)
    assert ran.returncode == 0, ran.stderr
    assert "8 images" in ran.stdout
    assert build.rejects() == [{"path": "b/large.png", "error": "CrashError", "reason": "out of memory, twice"}]
