"""Makes the records of a task's samples, such that an image that crashes its decoder costs no more than itself.

At first a worker process makes all records of a shard itself. If it dies, or memory runs out, the shard is written once
more, each image in a child of the worker: what ends the child twice, the second time with the machine to itself, is
rejected.
"""

from __future__ import annotations

import signal
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from presize.codecs import transcode
from presize.errors import BuildError, CrashError
from presize.options import ImageOptions
from presize.sources.source_files import SourceFile, read_in_order, read_source
from presize.system.child import Child, ChildDiedError
from presize.system.turnstile import Turnstile


class Made(NamedTuple):
    """What is stored of a sample, and the CRC-32 of its source file; 0 without ``--checksum``."""

    transcoded: transcode.Transcoded
    source_crc32: int


class Recipe(NamedTuple):
    """How the records of a task are made.

    Attributes:
        source: the folder of the sources.
        image: the options.
        checksum: whether to compute the CRC-32 of each source.
        read_ahead: whether sources may be read ahead, in several threads.
    """

    source: Path
    image: ImageOptions
    checksum: bool
    read_ahead: bool = True


@dataclass(frozen=True)
class Containment:
    """How a worker process keeps one image from ending the build.

    Attributes:
        timeout_s: an image that takes longer ends the process that decodes it, in seconds.
        turnstile: the file of a Turnstile: one image at a time may have the machine to itself.
        by_image: decode each image in a child of the worker.
    """

    timeout_s: float
    turnstile: int
    by_image: bool = False


Make = Callable[[SourceFile], Made]
"""Makes the records of a sample. Raises ImageError when it cannot be stored, BuildError when the source has gone."""


def maker(recipe: Recipe, files: Iterator[SourceFile], containment: Containment | None) -> AbstractContextManager[Make]:
    """What makes the records of `files`, to be called with each of them in their order.

    Args:
        recipe: how.
        files: those that will be asked for; they are read ahead where storage is slow.
        containment: None in a process that must not be ended.
    """
    if containment is None:
        return _uncontained(recipe, files)
    return _by_image(recipe, containment) if containment.by_image else _in_this_process(recipe, files, containment)


@contextmanager
def _uncontained(recipe: Recipe, files: Iterator[SourceFile]) -> Iterator[Make]:
    with closing(_sources(recipe, files)) as sources:

        def make(file: SourceFile) -> Made:
            try:
                return _made(recipe, next(sources)())
            except MemoryError:
                raise BuildError(
                    f"{file.path}: memory ran out; --backend processes would reject this image and go on"
                ) from None

        yield make


@contextmanager
def _in_this_process(recipe: Recipe, files: Iterator[SourceFile], containment: Containment) -> Iterator[Make]:
    guarded = guard(containment)
    with closing(_sources(recipe, files)) as sources:

        def make(_: SourceFile) -> Made:
            with guarded():
                return _made(recipe, next(sources)())

        yield make


def guard(containment: Containment) -> Callable[[], AbstractContextManager[None]]:
    """What is around each image: this process ends when it takes too long, and waits while another has to be alone."""
    turnstile = Turnstile(containment.turnstile)

    @contextmanager
    def around() -> Iterator[None]:
        with turnstile.shared(), _deadline(containment.timeout_s):
            yield

    return around


@contextmanager
def _by_image(recipe: Recipe, containment: Containment) -> Iterator[Make]:
    turnstile = Turnstile(containment.turnstile)
    child: Child | None = None

    def attempt(file: SourceFile) -> Made:
        nonlocal child
        child = child or Child()
        try:
            return child.call(_make_in_time, recipe, file, containment.timeout_s)
        except (ChildDiedError, MemoryError):
            child.close()
            child = None
            raise

    def make(file: SourceFile) -> Made:
        with suppress(ChildDiedError, MemoryError), turnstile.shared():
            return attempt(file)
        try:
            with turnstile.alone():
                return attempt(file)
        except (ChildDiedError, MemoryError) as error:
            raise CrashError(_why(error, containment.timeout_s)) from None

    try:
        yield make
    finally:
        if child is not None:
            child.close()


def _make_in_time(recipe: Recipe, file: SourceFile, timeout_s: float) -> Made:
    with _deadline(timeout_s):
        return _made(recipe, read_source(recipe.source, *file))


def _made(recipe: Recipe, data: bytes) -> Made:
    return Made(transcode.transcode(data, recipe.image), zlib.crc32(data) if recipe.checksum else 0)


def _sources(recipe: Recipe, files: Iterator[SourceFile]) -> Generator[Callable[[], bytes], None, None]:
    def read(file: SourceFile) -> bytes:
        return read_source(recipe.source, *file)

    if recipe.read_ahead:
        return read_in_order(read, ((file, file.nbytes) for file in files))
    return (partial(read, file) for file in files)


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """End this process when the time is over. The kernel does it: a decoder that hangs lets no Python code run."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _why(error: ChildDiedError | MemoryError, timeout_s: float) -> str:
    if isinstance(error, MemoryError):
        return "memory ran out, twice"
    if error.code == -signal.SIGALRM:
        return f"it took longer than --timeout-s {timeout_s:g}, twice"
    killed = ", most often for want of memory" if error.code == -signal.SIGKILL else ""
    return f"the process that decoded it died, twice ({error}{killed})"
