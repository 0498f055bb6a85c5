"""What a worker of an engine does: one task, in a process of its own, so that an image cannot end the worker."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from presize.builder.output_dir import BuildJournal
from presize.builder.plan import TriedCodecs, other_codecs
from presize.builder.shard_table import ShardDone
from presize.builder.tasks.parallel import StoppedError, Workers
from presize.builder.tasks.task import Task
from presize.builder.tasks.trial import try_codecs, with_plugins
from presize.errors import BuildError
from presize.sources.source_files import Url

_WATCH_S = 0.5


class Errand(NamedTuple):
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
    codecs: TriedCodecs
    suffixes: list[str]
    identity: dict[str, Any]

    @property
    def out(self) -> Path:
        return self.task.sidecar.parent

    def is_wanted(self) -> bool:
        """Whether OUT is still being built, and as it was when this errand was sent."""
        state = BuildJournal.read(self.out)
        return state is not None and state.identity == self.identity


Outcome = ShardDone | Exception
"""What became of an errand; an exception is what it raised, a bug of ours included. An engine would take one that it
sees for a reason to try the errand once more."""

Courier = Callable[[str, bytes], bytes | str]
"""Runs a pickled Errand, on a worker, if that has the presize of this version: what carry_out returns."""


def make_courier() -> Courier:
    """A function that engines pickle by value, since no module has it: a worker without presize can say so."""

    def courier(version: str, errand: bytes) -> bytes | str:
        import socket
        import sys

        try:
            import presize
        except ImportError as error:
            return f"{socket.gethostname()}: {sys.executable} cannot import presize ({error})"
        if presize.__version__ != version:
            return f"{socket.gethostname()}: it has presize {presize.__version__}, and the build presize {version}"
        from presize.builder.executors.errand import carry_out

        return carry_out(errand)

    return courier


def carry_out(pickled: bytes) -> bytes | str:
    """A pickled Outcome, or why this worker cannot carry it out, in words."""
    errand: Errand = pickle.loads(pickled)
    if reason := _obstacle(errand):
        return f"{socket.gethostname()}: {reason}"
    try:
        with Workers(errand.timeout_s) as workers, _while_wanted(errand, workers):
            outcome: Outcome = workers.write(errand.task)
    except StoppedError:
        outcome = BuildError(f"OUT {errand.out} has been built otherwise meanwhile")
    except Exception as error:  # which the driver raises
        outcome = error
    return pickle.dumps(outcome)


def _obstacle(errand: Errand) -> str:
    """Why this worker would not make what the driver would; empty when it would."""
    for name, path in (("SRC", errand.task.source), ("OUT", errand.out)):
        if isinstance(path, Url):  # reading says what there is to say
            continue
        try:
            os.stat(path)
        except OSError as error:
            return f"{name} {path}: {error.strerror}; all workers have to see it at that path"
    if not errand.is_wanted():
        return f"OUT {errand.out} is another folder there; it has to be on a file system that all workers share"
    here = with_plugins(try_codecs(errand.task.options), errand.suffixes)
    return "" if here.digest == errand.codecs.digest else other_codecs(errand.codecs.versions, here.versions)


@contextmanager
def _while_wanted(errand: Errand, workers: Workers) -> Iterator[None]:
    """End `workers` when the build in OUT has been replaced: this one may be cut off from a driver that has gone."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_WATCH_S):
            if not errand.is_wanted():
                return workers.kill()

    watcher = threading.Thread(target=watch, name="presize-watch-build", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
