"""Makes the records of a task's samples, such that an image that crashes its decoder costs no more than itself.

At first a worker process makes all records of a shard itself. If it dies, or memory runs out, the shard is written once
more, each image in a child of the worker: what ends the child twice, the second time with the machine to itself, is
rejected.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from zlib_ng import zlib_ng

from presize.codecs import transcode
from presize.codecs.transcode import transcode_companion
from presize.errors import BuildError, CrashError, ImageError, UnreadableError
from presize.options import BuildOptions, ImageOptions
from presize.sources import store_source
from presize.sources.source_files import SourceFile
from presize.sources.source_reader import THREADS, SourceReader, read_in_order
from presize.sources.store_source import Url
from presize.store.rejects import of_companion
from presize.system.child import Child, ChildDiedError
from presize.system.locks import Turnstile

Sources = tuple[SourceFile, ...]
"""The files of a sample: its image, then its companions."""


class Made(NamedTuple):
    """What is stored of a file; of a sample, with its companions.

    Attributes:
        transcoded: its records.
        source_crc32: the CRC-32 of what was read; 0 without ``--checksum``.
        as_read: whether its only record is what was read, and source_crc32 therefore that of the record, too.
        companions: those of a sample.
    """

    transcoded: transcode.Transcoded
    source_crc32: int
    as_read: bool = False
    companions: tuple[Made, ...] = ()


class Recipe(NamedTuple):
    """How the records of a task are made.

    Attributes:
        source: the folder of the sources.
        image: how images are stored.
        checksum: whether to compute the CRC-32 of each source.
        read_ahead: whether sources may be read ahead, in several threads.
        companions: the name of each companion, and how it is stored.
    """

    source: Path | Url
    image: ImageOptions
    checksum: bool
    read_ahead: bool = True
    companions: tuple[tuple[str, ImageOptions], ...] = ()

    @classmethod
    def of(cls, source: Path | Url, options: BuildOptions, read_ahead: bool = True) -> Recipe:
        companions = ((companion.name, companion.image_options(options.image)) for companion in options.companions)
        return cls(source, options.image, options.checksum, read_ahead, tuple(companions))


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


Make = Callable[[Sources], Made]
"""Makes the records of a sample. Raises ImageError when it cannot be stored, BuildError when the source has gone."""


def maker(recipe: Recipe, samples: Iterator[Sources], containment: Containment | None) -> AbstractContextManager[Make]:
    """What makes the records of `samples`, to be called with each of them in their order.

    Args:
        recipe: how.
        samples: those that will be asked for; they are read ahead where storage is slow.
        containment: None in a process that must not be ended.
    """
    if containment is None:
        return _uncontained(recipe, samples)
    return _by_image(recipe, containment) if containment.by_image else _in_this_process(recipe, samples, containment)


@contextmanager
def _uncontained(recipe: Recipe, samples: Iterator[Sources]) -> Iterator[Make]:
    with closing(_read(recipe, samples)) as contents:

        def make(files: Sources) -> Made:
            try:
                return _made(recipe, list(islice(contents, len(files))))
            except MemoryError:
                raise BuildError(
                    f"{files[0].path}: memory ran out; --backend processes would reject this image and go on"
                ) from None

        yield make


@contextmanager
def _in_this_process(recipe: Recipe, samples: Iterator[Sources], containment: Containment) -> Iterator[Make]:
    with closing(_read(recipe, samples)) as contents, closing(Guard(containment)) as guard:

        def make(files: Sources) -> Made:
            with guard:
                return _made(recipe, list(islice(contents, len(files))))

        yield make


class Guard:
    """What is around each image: this process ends when it takes too long, and waits while another has to be alone.

    close() it after the last image: until then nobody else can be alone but between two images.
    """

    def __init__(self, containment: Containment) -> None:
        self._turnstile = Turnstile(containment.turnstile)
        self._timeout_s = containment.timeout_s

    def __enter__(self) -> None:
        self._turnstile.enter()
        _set_deadline(self._timeout_s)

    def __exit__(self, *error: object) -> None:
        _set_deadline(0)

    def close(self) -> None:
        self._turnstile.leave()


@contextmanager
def _by_image(recipe: Recipe, containment: Containment) -> Iterator[Make]:
    turnstile = Turnstile(containment.turnstile)
    child: Child | None = None

    def attempt(files: Sources) -> Made:
        nonlocal child
        child = child or Child()
        try:
            return child.call(_make_in_time, recipe, files, containment.timeout_s)
        except (ChildDiedError, MemoryError):
            child.close()
            child = None
            raise

    def make(files: Sources) -> Made:
        with suppress(ChildDiedError, MemoryError), turnstile.shared():
            return attempt(files)
        try:
            with turnstile.alone():
                return attempt(files)
        except (ChildDiedError, MemoryError) as error:
            raise CrashError(_why(error, containment.timeout_s)) from None

    try:
        yield make
    finally:
        if child is not None:
            child.close()


def _make_in_time(recipe: Recipe, files: Sources, timeout_s: float) -> Made:
    _set_deadline(timeout_s)
    try:
        return make_sample(recipe, _reader_of_this_child(recipe.source), files)
    finally:
        _set_deadline(0)


_reader_of_this_child = functools.cache(SourceReader)
"""A child ends with its task, and its reader with it."""


def make_sample(recipe: Recipe, reader: SourceReader, files: Sources) -> Made:
    """The records of one sample. Raises what Make raises."""
    return _made(recipe, [partial(reader.read, file) for file in files])


def _made(recipe: Recipe, contents: Sequence[Callable[[], bytes]]) -> Made:
    """The records of a sample, of the files that `contents` read: its image, then its companions."""
    data = contents[0]()
    made = _of(recipe, data, transcode.transcode(data, recipe.image))
    if not recipe.companions:
        return made
    companions = []
    for (name, options), content in zip(recipe.companions, contents[1:], strict=True):
        try:
            data = content()
            companion = transcode_companion(data, made.transcoded.source, options)
        except ImageError as error:
            kind = UnreadableError if isinstance(error, UnreadableError) else ImageError
            raise kind(f"{of_companion(name)}: {error}") from None
        companions.append(_of(recipe, data, companion))
    return made._replace(companions=tuple(companions))


def _of(recipe: Recipe, data: bytes, transcoded: transcode.Transcoded) -> Made:
    if not recipe.checksum:
        return Made(transcoded, 0)
    return Made(transcoded, zlib_ng.crc32(data), len(transcoded.records) == 1 and transcoded.records[0].value is data)


def _read(recipe: Recipe, samples: Iterator[Sources]) -> Generator[Callable[[], bytes], None, None]:
    read = SourceReader(recipe.source).read
    files = chain.from_iterable(samples)
    if recipe.read_ahead:
        threads = store_source.THREADS if isinstance(recipe.source, Url) else THREADS
        return read_in_order(read, ((file, file.nbytes) for file in files), threads)
    return (partial(read, file) for file in files)


def _set_deadline(seconds: float) -> None:
    """End this process when the time is over; 0: never. The kernel does it: a decoder that hangs lets no Python code
    run."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _why(error: ChildDiedError | MemoryError, timeout_s: float) -> str:
    if isinstance(error, MemoryError):
        return "memory ran out, twice"
    if error.code == -signal.SIGALRM:
        return f"it took longer than --timeout-s {timeout_s:g}, twice"
    killed = ", most often for want of memory" if error.code == -signal.SIGKILL else ""
    return f"the process that decoded it died, twice ({error}{killed})"
