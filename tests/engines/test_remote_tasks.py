"""Drivers and workers of a cluster without an engine: a pool of threads replaces it."""

from __future__ import annotations

import asyncio
import pickle
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from builds import SERIAL, UPDATE, Builder
from commands import Ran
from pictures import smooth_image
from presize import BuildOptions, BuildPart, ImageOptions, RunOptions, Size, SourceOptions, build_dataset, build_part
from presize.builder.executors import cluster
from presize.builder.executors.cluster import RemoteTask, RunRemote, check_listening, run_on_this_worker
from presize.builder.output_dir import BuildJournal
from presize.errors import BuildError, ImageError
from servers import http

OPTIONS = BuildOptions(ImageOptions(sizes=(Size(16, 16),)), shard_samples=2)
RUN = RunOptions(engine="dask", scheduler="somewhere", report=False)


class Threads:
    """An engine of two threads of this process; it calls `on_task` with each task before the task runs."""

    def __init__(self, on_task: Callable[[RemoteTask], object] = lambda _: None) -> None:
        self._on_task = on_task
        self._pool = ThreadPoolExecutor(2)
        self.submitted = self.most_waiting = self.ended = 0

    def slots(self) -> int:
        return 2

    def submit(self, run_remote: RunRemote, task: bytes) -> Future[bytes | str]:
        self.submitted += 1
        self.most_waiting = max(self.most_waiting, self.submitted - self.ended)
        return self._pool.submit(self._work, run_remote, task)

    def _work(self, run_remote: RunRemote, task: bytes) -> bytes | str:
        self._on_task(pickle.loads(task))
        try:
            return run_remote(task)
        finally:
            self.ended += 1

    def check(self) -> None:
        pass

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture
def build(tmp_path: Path) -> Builder:
    """Return builds by the engine of a test, of 12 photographs, one of them broken, in six shards."""
    for number in range(12):
        path = tmp_path / "raw" / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(20, 30, seed=number)).save(path, "JPEG")
    (tmp_path / "raw" / "a" / "00.jpg").write_bytes(b"\xff\xd8\xff")
    return Builder(tmp_path / "raw", OPTIONS, run=RUN)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Return a function that registers an engine as dask."""

    def put(engine: Any) -> Any:
        monkeypatch.setitem(cluster.ENGINES, "dask", lambda _: engine)
        return engine

    return put


Use = Callable[[Any], Any]


def test_an_engine_yields_the_bytes_of_a_sequential_build(build: Builder, use: Use) -> None:
    threads = use(Threads())
    shards: list[int | None] = []
    result = build(on_shard=lambda done: shards.append(done.number))
    assert (result.stored, result.rejected, sorted(shards)) == (11, 1, list(range(6)))  # type: ignore[type-var]
    assert threads.submitted == 6
    assert threads.most_waiting <= 5  # two for each slot, and one finished but not yet noticed
    build("alone", run=SERIAL)
    assert build.files() == build.files("alone")
    Image.fromarray(smooth_image(20, 30, seed=99)).save(build.source / "b" / "01.jpg", "JPEG")
    threads = use(Threads())
    build(run=replace(RUN, update=True))
    assert threads.submitted == 1
    build("alone", run=UPDATE)
    assert build.files() == build.files("alone")


def test_an_engine_builds_a_part(build: Builder, use: Use) -> None:
    threads = use(Threads())
    build_part(build.source, build.out, BuildPart(1, 2), OPTIONS, RUN)
    assert threads.submitted == 3


def test_an_engine_that_fails_leaves_the_finished_shards(build: Builder, use: Use) -> None:
    def fail(sent: RemoteTask) -> None:
        if sent.task.number == 4:
            raise OSError("the worker has gone\nTraceback: ...")

    use(Threads(on_task=fail))
    with pytest.raises(BuildError) as caught:
        build()
    assert str(caught.value) == "dask failed: the worker has gone; finished shards are kept; run again to resume"
    use(Threads())
    assert build().resumed > 0


def test_an_error_of_a_worker_is_raised_by_the_build(build: Builder, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Threads())
    with pytest.raises(ImageError, match=r"a/00\.jpg: "):
        build(run=replace(RUN, on_error="fail"))

    def bug(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(cluster.Workers, "write", bug)
    use(Threads())
    with pytest.raises(ZeroDivisionError, match="ours"):
        build()


@pytest.mark.parametrize(
    ("engine", "module"), [("dask", "distributed"), ("ray", "ray"), ("spark", "pyspark")], ids=["dask", "ray", "spark"]
)
def test_a_missing_engine_says_how_to_install_it(
    engine: str, module: str, presize: Callable[..., Ran], build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    ran = presize("build", build.source, build.out, "--backend", engine, "--scheduler", "127.0.0.1:1")
    assert ran.code == 2
    assert f'{engine} needs {module}, which is not installed: pip install "presize[{engine}]"' in ran.err


@pytest.mark.parametrize("address", ["", "host", "tcp://host", "[::1", "host:port"])
def test_an_address_without_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(OSError, match="expected HOST:PORT"):
        check_listening(address)


def test_a_listener_that_is_not_a_scheduler_is_named(tmp_path: Path) -> None:
    with http(tmp_path) as port:
        check_listening(f"127.0.0.1:{port}")
        with pytest.raises(OSError, match="the server there does not speak gRPC"):
            check_listening(f"127.0.0.1:{port}", by_grpc=True)


def test_another_listener_is_not_dask(
    presize: Callable[..., Ran], build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        command = ("build", build.source, build.out, "--backend", "dask", "--scheduler", address)

        async def in_a_notebook() -> Ran:
            return presize(*command)

        with ThreadPoolExecutor(1) as thread:  # in this one a test of pages may have left a loop running
            from_a_notebook = thread.submit(lambda: asyncio.run(in_a_notebook())).result()
        for ran in (presize(*command), from_a_notebook):
            assert ran.code == 1
            assert ran.err == (
                f"presize: error: scheduler: cannot connect to dask at {address}: no answer within 0.5 s\n"
            )


@pytest.mark.slow
def test_a_source_on_the_web_need_not_be_visible_to_workers_as_a_folder(build: Builder, use: Use) -> None:
    photos, table = build.source, build.out.with_name("photos.txt")
    table.write_text("".join(f"{path.relative_to(photos).as_posix()}\n" for path in sorted(photos.rglob("*.*"))))
    use(Threads())
    with http(photos) as port:
        for out, run in (("out", RUN), ("alone", SERIAL)):
            source, samples = f"http://127.0.0.1:{port}/", SourceOptions(labels=str(table))
            build_dataset(source, build.out.with_name(out), OPTIONS, run, samples)
    assert build.files() == build.files("alone")


@pytest.fixture
def sent(build: Builder, use: Use) -> RemoteTask:
    """Return a task whose build waits for it."""
    tasks: list[RemoteTask] = []

    def stop(it: RemoteTask) -> None:
        tasks.append(it)
        raise InterruptedError

    use(Threads(on_task=stop))
    with pytest.raises(BuildError):
        build()
    return tasks[0]


def refusal(it: RemoteTask) -> str:
    answer = run_on_this_worker(pickle.dumps(it))
    assert isinstance(answer, str)
    return answer


NOT_SEEN = "{}: No such file or directory; all workers have to see it at that path"
ANOTHER = "{} is a different folder there; it has to be on a file system that all workers share"
OBSTACLES: dict[str, tuple[Callable[[RemoteTask], object], str]] = {
    "SRC": (lambda sent: Path(sent.task.source).rename(sent.out.with_name("elsewhere")), NOT_SEEN),  # type: ignore[arg-type]
    "OUT": (lambda sent: sent.out.rename(sent.out.with_name("elsewhere")), NOT_SEEN),
    "OUT without a build": (lambda sent: (sent.out / ".presize.json").unlink(), ANOTHER),
    "OUT of another build": (lambda sent: BuildJournal({"options": "others"}, 0).write(sent.out), ANOTHER),
}


@pytest.mark.parametrize("what", OBSTACLES)
def test_a_worker_that_does_not_see_the_drivers_files_says_so(what: str, sent: RemoteTask) -> None:
    change, words = OBSTACLES[what]
    change(sent)
    name = what[:3]
    assert refusal(sent).endswith(f": {name} {words.format(sent.task.source if name == 'SRC' else sent.out)}")


def test_a_worker_with_other_libraries_names_both(sent: RemoteTask) -> None:
    versions = sent.codecs.versions | {"simplejpeg": "0.1"}
    assert "the build used simplejpeg 0.1, this machine has simplejpeg" in refusal(
        sent._replace(codecs=sent.codecs._replace(digest="other", versions=versions))
    )


def test_a_worker_without_a_plug_in_is_refused(sent: RemoteTask) -> None:
    versions = sent.codecs.versions | {"pillow-heif": "none"}
    assert "pillow-heif" in refusal(sent._replace(suffixes=[".heic"], codecs=sent.codecs._replace(versions=versions)))


def test_a_worker_stops_when_its_build_has_been_replaced(sent: RemoteTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disconnected host must not replace a new shard by an old one."""

    killed: list[bool] = []

    class Slow(cluster.Workers):
        def write(self, task: Any) -> Any:
            BuildJournal({"options": "others"}, 0).write(sent.out)
            while not killed:
                time.sleep(0.01)
            return super().write(task)

        def kill(self) -> None:
            super().kill()
            killed.append(True)

    monkeypatch.setattr(cluster, "Workers", Slow)
    outcome = pickle.loads(run_on_this_worker(pickle.dumps(sent)))  # type: ignore[arg-type]
    assert isinstance(outcome, BuildError)
    assert str(outcome) == f"the build in OUT {sent.out} has ended or been replaced"
    assert not next(iter(sent.task.targets.values())).exists()
