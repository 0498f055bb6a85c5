"""A task on a worker of an engine, in a process of its own, so that an image cannot end the worker."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from presize.builder.executors.local import StoppedError, Workers
from presize.builder.fingerprint import CodecFingerprint, codec_fingerprint
from presize.builder.output_dir import BuildJournal
from presize.builder.plan import other_codecs
from presize.builder.shard_table import ShardDone
from presize.builder.tasks.task import Task
from presize.errors import BuildError
from presize.sources.source_files import Url

_WATCH_S = 0.5


class RemoteTask(NamedTuple):
    """What a worker needs to know.

    Attributes:
        task: what to do.
        timeout_s: for one image.
        codecs: those of the driver.
        suffixes: the endings of the names of all sources.
        identity: of the build in OUT.
    """

    task: Task
    timeout_s: float
    codecs: CodecFingerprint
    suffixes: list[str]
    identity: dict[str, Any]

    @property
    def out(self) -> Path:
        return self.task.sidecar.parent

    def is_wanted(self) -> bool:
        """Return whether OUT is still being built, and as it was when this task was sent."""
        journal = BuildJournal.read(self.out)
        return journal is not None and journal.identity == self.identity


TaskResult = ShardDone | Exception
"""What became of a task; an exception is what it raised, a bug of ours included. An engine would take one that it sees
for a reason to try the task once more."""

RunRemote = Callable[[bytes], bytes | str]
"""Runs a pickled RemoteTask on a worker. Returns a pickled TaskResult, or in words why the worker cannot take part."""


def make_run_remote(version: str) -> RunRemote:
    """Return a function that engines pickle by value, since no module has it: a worker without presize, or without this
    version of it, can say so."""

    def run_remote(pickled: bytes) -> bytes | str:
        import socket
        import sys

        try:
            import presize
        except ImportError as error:
            return f"{socket.gethostname()}: {sys.executable} cannot import presize ({error})"
        if presize.__version__ != version:
            return f"{socket.gethostname()}: it has presize {presize.__version__}, and the build presize {version}"
        from presize.builder.executors.remote_task import run_on_this_worker

        return run_on_this_worker(pickled)

    return run_remote


def run_on_this_worker(pickled: bytes) -> bytes | str:
    """Run a pickled RemoteTask, as RunRemote says."""
    remote: RemoteTask = pickle.loads(pickled)
    if reason := _obstacle(remote):
        return f"{socket.gethostname()}: {reason}"
    try:
        with Workers(remote.timeout_s) as workers, _while_wanted(remote, workers):
            result: TaskResult = workers.write(remote.task)
    except StoppedError:
        result = BuildError(f"OUT {remote.out} has been built otherwise meanwhile")
    except Exception as error:  # which the driver raises
        result = error
    return pickle.dumps(result)


def _obstacle(remote: RemoteTask) -> str:
    """Return why this worker would not make what the driver would; empty when it would."""
    for name, path in (("SRC", remote.task.source), ("OUT", remote.out)):
        if isinstance(path, Url):  # reading says what there is to say
            continue
        try:
            os.stat(path)
        except OSError as error:
            return f"{name} {path}: {error.strerror}; all workers have to see it at that path"
    if not remote.is_wanted():
        return f"OUT {remote.out} is another folder there; it has to be on a file system that all workers share"
    here = codec_fingerprint(remote.task.options, remote.suffixes)
    return "" if here.digest == remote.codecs.digest else other_codecs(remote.codecs.versions, here.versions)


@contextmanager
def _while_wanted(remote: RemoteTask, workers: Workers) -> Iterator[None]:
    """End `workers` when the build in OUT has been replaced: this one may be cut off from a driver that has gone."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_WATCH_S):
            if not remote.is_wanted():
                return workers.kill()

    watcher = threading.Thread(target=watch, name="presize-watch-build", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
