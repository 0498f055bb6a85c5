"""Builds on real clusters of each engine, which lose workers, schedulers and networks."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from builds import files
from clusters import START, Cluster, can_make_hosts, dask, free_port, hosts, kill_group, wait_until
from presize import BuildOptions, ImageOptions, RunOptions, Size, build_dataset
from presize.sources.sample import SampleOptions, make_samples
from processes import run_command

MODULES = {"dask": "distributed", "ray": "ray", "spark": "pyspark"}


def installed(name: str) -> pytest.MarkDecorator:
    missing = find_spec(MODULES[name]) is None or (name == "spark" and not shutil.which("java"))
    return pytest.mark.skipif(missing, reason=f"{name} is not installed: make test-engines (Spark needs Java, too)")


ENGINES = [pytest.param(name, marks=[installed(name), pytest.mark.slow]) for name in MODULES]
DASK_AT_ONCE = [pytest.param("dask", marks=installed("dask")), *ENGINES[1:]]
"""Dask is installed wherever the tests run, and fast enough for make test."""

OPTIONS = BuildOptions(ImageOptions(sizes=(Size(32, 32),)), shard_samples=10)
COMMAND = (Path(sys.executable).with_name("presize"), "build")
SIZES = ("--size", "32", "--shard-samples", "10")

SLOW = """
import time
from presize.codecs import transcode as module

real = module.transcode

def transcode(data, options):
    time.sleep(0.05)
    return real(data, options)

module.transcode = transcode
"""
"""Run by every Python process of a cluster as it starts."""


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create 80 images, four of them broken, for eight shards."""
    folder = tmp_path_factory.mktemp("engines") / "photos"
    make_samples(folder, SampleOptions(images=80, classes=4, long_side=64, broken=4))
    return folder


@pytest.fixture(scope="session")
def expected(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the files of a sequential build."""
    out = tmp_path_factory.mktemp("sequential") / "out"
    build_dataset(photos, out, OPTIONS, RunOptions(engine="sequential"))
    return files(out)


def site(folder: Path, text: str) -> dict[str, str]:
    """Return an environment in which every Python process runs `text` as it starts."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": str(folder / "site")}


def build(
    cluster: Cluster, photos: Path, out: Path, *more: object, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    command = (*COMMAND, photos, out, *SIZES, *cluster.options, *more)
    return run_command(command, timeout_s=timeout_s, env=cluster.env)


@contextmanager
def building(cluster: Cluster, photos: Path, out: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a build, and yield it when its first shard is finished."""
    command = [str(word) for word in (*COMMAND, photos, out, *SIZES, *cluster.options)]
    environment = {**os.environ, **cluster.env}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]
    try:
        wait_until(lambda: process.poll() is not None or list(out.glob(".presize-*.npz")), "the first shard")
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        if process.poll() is None:
            kill_group(process)


def ending(process: subprocess.Popen[str], timeout_s: float = 120) -> tuple[int, str]:
    """Return the exit code, and the last line of its output."""
    _, error = process.communicate(timeout=timeout_s)
    return process.returncode, error.rstrip().rpartition("\n")[2]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cluster_yields_the_bytes_of_a_sequential_build(
    engine: str, photos: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    with START[engine](tmp_path) as cluster:
        ran = build(cluster, photos, tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    assert files(tmp_path / "out") == expected


@pytest.mark.slow
@pytest.mark.parametrize("engine", DASK_AT_ONCE)
def test_a_killed_worker_costs_only_its_shards(
    engine: str, photos: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    with (
        START[engine](tmp_path, env=site(tmp_path, SLOW)) as cluster,
        building(cluster, photos, tmp_path / "out") as process,
    ):
        kill_group(cluster.workers[0])
        assert ending(process)[0] == 0
    assert files(tmp_path / "out") == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lost_scheduler_leaves_a_build_that_resumes_without_it(
    engine: str, photos: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with (
        START[engine](tmp_path, env=site(tmp_path, SLOW)) as cluster,
        building(cluster, photos, out) as process,
    ):
        if engine == "spark":  # the master is no longer needed: an application schedules its own tasks
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        else:
            assert cluster.scheduler is not None
            kill_group(cluster.scheduler)
        code, _ = ending(process)
        assert code == 1
    assert not (out / "manifest.json").exists()
    result = build_dataset(photos, out, OPTIONS, RunOptions(jobs=1))
    assert result.resumed > 0
    assert files(out) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_leaves_a_build_that_resumes(
    engine: str, photos: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with START[engine](tmp_path, env=site(tmp_path, SLOW)) as cluster:
        with building(cluster, photos, out) as process:
            process.send_signal(signal.SIGINT)
            code, said = ending(process)
        assert code == 130, said
        assert build(cluster, photos, out).returncode == 0
    assert files(out) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_scheduler_is_a_one_line_error(engine: str, photos: Path, tmp_path: Path) -> None:
    address = {"dask": "tcp://127.0.0.1:{}", "ray": "127.0.0.1:{}", "spark": "spark://127.0.0.1:{}"}[engine]
    nobody = Cluster(engine, address.format(free_port()), None)
    ran = build(nobody, photos, tmp_path / "out", timeout_s=60)
    said = ran.stderr.splitlines()
    assert ran.returncode == 1
    assert said[-1].startswith(f"presize: error: scheduler: cannot connect to {engine} at {nobody.address}: ")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_build_waits_for_workers_with_a_message(engine: str, photos: Path, tmp_path: Path) -> None:
    with START[engine](tmp_path, workers=0) as cluster:
        command = ["timeout", "--signal=INT", "40", *COMMAND, photos, tmp_path / "out", *SIZES, *cluster.options]
        said = run_command(command, timeout_s=90, env=cluster.env).stderr.splitlines()
    assert [line for line in said if line.startswith("presize: ")] == [
        f"presize: warning: scheduler: {engine} at {cluster.address} has no workers; the build waits for one to join",
        "presize: error: interrupted; run again to resume",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("import sys; sys.modules['presize'] = None", "cannot import presize"),
        ("import presize; presize.__version__ = '0.0.1'", "it has presize 0.0.1, but the build has "),
        (
            "import presize.builder.fingerprint as own; own.codecs_digest = lambda _: 'other'",
            "the same library versions give different bytes: the processor",
        ),
    ],
    ids=["no presize", "another presize", "other codecs"],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_that_would_yield_other_bytes_is_refused(
    engine: str, change: str, message: str, photos: Path, tmp_path: Path
) -> None:
    with START[engine](tmp_path, workers=1, env=site(tmp_path, change)) as cluster:
        ran = build(cluster, photos, tmp_path / "out")
    assert ran.returncode == 1
    line = ran.stderr.splitlines()[-1]
    assert line.startswith("presize: error: a worker cannot take part: ")
    assert message in line


@pytest.mark.slow
@installed("dask")
@pytest.mark.skipif(not can_make_hosts(), reason="network namespaces are not permitted")
def test_killed_or_disconnected_hosts_cost_only_their_shards(
    photos: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    with (
        hosts(3) as (here, others),
        dask(tmp_path, workers=1, env=site(tmp_path, SLOW), on=tuple(others), address=here) as cluster,
        building(cluster, photos, tmp_path / "out") as process,
    ):
        others[0].cut_off()
        kill_group(cluster.workers[1])
        assert ending(process)[0] == 0
    assert files(tmp_path / "out") == expected


@pytest.mark.slow
@installed("dask")
def test_the_command_of_the_documentation_builds(photos: Path, expected: dict[str, str], tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "clusters.md"
    command = re.findall(r"^```sh\n(presize .*)$", page.read_text(), re.MULTILINE)[0]
    words = shlex.split(command)
    with dask(tmp_path, workers=1) as cluster:
        words[-1] = cluster.address
        changed = {"presize": COMMAND[0], "RAW": photos, "OUT_DASK": tmp_path / "out"}
        ran = run_command([changed.get(word, word) for word in words] + list(SIZES), env=cluster.env, timeout_s=120)
    assert ran.returncode == 0, ran.stderr
    assert files(tmp_path / "out") == expected
