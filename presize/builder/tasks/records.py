"""Makes the records of a task's samples. If an image crashes its decoder, only that image is lost.

At first a worker process makes all records of a shard itself. If it dies or runs out of memory, the shard is written
again, with each image in a child of the worker. An image that kills the child twice, the second time with the machine
to itself, is rejected.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from zlib_ng import zlib_ng

from presize.codecs import resize, transcode
from presize.codecs.encode import encode as encode_pixels
from presize.codecs.source_facts import FIELDS
from presize.codecs.stored_value import DAMAGE, decode_value
from presize.codecs.transcode import transcode_companion
from presize.errors import BuildError, CrashError, ImageError, UnreadableError
from presize.options import BuildOptions, Companion, ImageOptions, Size, Stream
from presize.sources.source_files import BUCKET_THREADS, THREADS, SourceFile, SourceReader, Url, read_in_order
from presize.store.rejects import of_companion
from presize.system.child import Child, ChildDiedError, ChildStoppedError
from presize.system.locks import RWLock

T = TypeVar("T")

_GRACE_S = 10.0
_KEPT_BYTES = 8 << 20

Sources = tuple[SourceFile, ...]
"""Files of a sample: its image, then its companions."""


class StoredRecord(NamedTuple):
    """Bytes of a record, and its columns of the index (presize.store.index.record_columns)."""

    value: bytes
    columns: Mapping[str, int]

    @property
    def size(self) -> Size:
        return Size(self.columns["height"], self.columns["width"])


Encoded = dict[Stream, StoredRecord]
"""The records of a sample."""


@dataclass(frozen=True)
class CrashPolicy:
    """Policy that keeps one image from ending the build: one that takes longer than `timeout_s` ends its process; one
    at a time may have the machine to itself (`turnstile`, the file of an RWLock); `by_image` gives each a child."""

    timeout_s: float
    turnstile: int
    by_image: bool = False

    @property
    def silent_s(self) -> float:
        """Return the seconds for which a process may be silent. Its own time limit comes first."""
        return self.timeout_s + _GRACE_S


class Encoder(NamedTuple):
    """Encoder of samples, with a time limit for each: `encode` reads and encodes the files of a sample (second
    argument: True for the next one in `ahead`), `resized` calls resized(), and `in_time` is a context for anything
    else. Raises ImageError, or BuildError if the source is gone."""

    encode: Callable[[Sources, bool], Encoded]
    resized: Callable[[Encoded], Encoded]
    in_time: AbstractContextManager[object]


def encoder(
    source: Path | Url, options: BuildOptions, ahead: Iterator[Sources] | None, policy: CrashPolicy | None
) -> AbstractContextManager[Encoder]:
    """Return a context that yields an Encoder. If storage is slow, threads read the samples of `ahead` in advance."""
    if policy is not None and policy.by_image:
        return _by_image(source, options, policy)
    return _in_this_process(source, options, ahead, policy)


@contextmanager
def _in_this_process(
    source: Path | Url, options: BuildOptions, samples: Iterator[Sources] | None, policy: CrashPolicy | None
) -> Iterator[Encoder]:
    read = SourceReader(source).read
    # After this block is freed, glibc keeps smaller ones for the next image, which saves a fault for each page.
    np.empty(_KEPT_BYTES, np.uint8)
    with ExitStack() as stack:
        announced = ((file, file.nbytes) for file in chain.from_iterable(samples or ()))
        threads = BUCKET_THREADS if isinstance(source, Url) else THREADS
        ahead = stack.enter_context(closing(read_in_order(read, announced, threads)))
        watchdog: AbstractContextManager[object]
        watchdog = nullcontext() if policy is None else stack.enter_context(closing(Watchdog(policy)))

        def encode(files: Sources, is_next: bool) -> Encoded:
            try:
                with watchdog:
                    if is_next and samples is not None:
                        return _encoded(options, list(islice(ahead, len(files))))
                    return _encoded(options, [partial(read, file) for file in files])
            except MemoryError:
                if policy is not None:
                    raise
                raise BuildError(
                    f"{files[0].path}: out of memory; --backend processes would reject this image and continue"
                ) from None

        def resize(encoded: Encoded) -> Encoded:
            with watchdog:
                return resized(encoded, options)

        yield Encoder(encode, resize, watchdog)


class _Deadline:
    """Context that ends this process if the block takes too long: by the kernel, as a hanging decoder blocks Python."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._timeout_s)

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Watchdog(_Deadline):
    """Deadline that first waits while an image of another process has the machine to itself. Close it after the last
    image, so that such an image no longer waits for this process."""

    def __init__(self, policy: CrashPolicy) -> None:
        super().__init__(policy.timeout_s)
        self._turnstile = RWLock(policy.turnstile)

    def __enter__(self) -> None:
        self._turnstile.enter()
        super().__enter__()

    def close(self) -> None:
        self._turnstile.leave()


@contextmanager
def _by_image(source: Path | Url, options: BuildOptions, policy: CrashPolicy) -> Iterator[Encoder]:
    turnstile = RWLock(policy.turnstile)
    child: Child | None = None

    def attempt(function: Callable[..., T], *args: object) -> T:
        nonlocal child
        child = child or Child(silent_s=policy.silent_s)
        try:
            return child.call(_in_time, policy.timeout_s, function, *args)
        except (ChildDiedError, MemoryError):
            child.close()
            child = None
            raise

    def contained(function: Callable[..., Encoded], *args: object) -> Encoded:
        with suppress(ChildDiedError, MemoryError), turnstile.shared():
            return attempt(function, *args)
        try:
            with turnstile.alone(policy.silent_s):
                return attempt(function, *args)
        except (ChildDiedError, MemoryError) as error:
            raise CrashError(_why(error, policy.timeout_s)) from None

    def check_source(files: Sources) -> None:
        try:
            with suppress(MemoryError):
                attempt(_read_in_this_child, source, files)
        except ChildDiedError as error:
            if _took_too_long(error):  # because of a frozen mount, not of the image
                raise BuildError(
                    f"{files[0].path}: SRC does not answer: it could not be read in {policy.timeout_s:g} s "
                    "(--timeout-s); run again to resume"
                ) from None

    def encode(files: Sources, _: bool) -> Encoded:
        check_source(files)
        try:
            return contained(encode_sample, source, options, files)  # the child reads each sample
        except CrashError:
            check_source(files)  # the mount may have frozen since
            raise

    try:
        yield Encoder(
            encode,
            lambda encoded: contained(resized, encoded, options),
            _Deadline(policy.timeout_s),
        )
    finally:
        if child is not None:
            child.close()


def _in_time(timeout_s: float, function: Callable[..., T], *args: object) -> T:
    with _Deadline(timeout_s):
        return function(*args)


def _read_in_this_child(source: Path | Url, files: Sources) -> None:
    """Try to read a sample. Encoding reads it again."""
    for file in files:
        with suppress(ImageError):
            _reader(source).read(file)


_reader = functools.cache(SourceReader)
"""Readers by source. They are never dropped, because their process, a child, ends with its task."""

_stored_as = functools.cache(Companion.image_options)


def encode_sample(source: Path | Url, options: BuildOptions, files: Sources) -> Encoded:
    """Read and encode one sample in this process, a child. Raises the errors of an Encoder."""
    return _encoded(options, [partial(_reader(source).read, file) for file in files])


def _encoded(options: BuildOptions, contents: Sequence[Callable[[], bytes]]) -> Encoded:
    """Return the records of a sample. `contents` read its files: the image, then its companions."""
    data = contents[0]()
    image = transcode.transcode(data, options.image)
    height, width = image.source
    encoded = _records(options, "", data, image, {"source_height": height, "source_width": width})
    for companion, content in zip(options.companions, contents[1:], strict=True):
        try:
            data = content()
            transcoded = transcode_companion(
                data, image.source, _stored_as(companion, options.image), companion.is_array
            )
        except ImageError as error:
            kind = UnreadableError if isinstance(error, UnreadableError) else ImageError
            raise kind(f"{of_companion(companion.name)}: {error}") from None
        encoded |= _records(options, companion.name, data, transcoded, {})
    return encoded


def _records(
    options: BuildOptions, name: str, data: bytes, transcoded: transcode.Transcoded, source: dict[str, int]
) -> Encoded:
    source = source | {"source_facts": transcoded.facts}
    if options.checksum:
        source["source_crc32"] = zlib_ng.crc32(data)
    sizes = zip(options.image.sizes, transcoded.records, strict=True)
    return {Stream(name, size): stored(record, source) for size, record in sizes}


def stored(record: transcode.Record, source: Mapping[str, int]) -> StoredRecord:
    """Return a record with its columns; `source` are the columns about its source."""
    value, height, width = record
    own = {"height": height, "width": width, "nbytes": len(value), "crc32": zlib_ng.crc32(value)}
    return StoredRecord(value, {**source, **own})


def resized(encoded: Encoded, options: BuildOptions) -> Encoded:
    """Return the records of a dataset's sample in the size of `options`. Raises ImageError if one is damaged."""
    companions = {companion.name: companion for companion in options.companions}
    return {stream: _resized(old, options.image, companions.get(stream.name)) for stream, old in encoded.items()}


def _resized(old: StoredRecord, image: ImageOptions, companion: Companion | None) -> StoredRecord:
    exact = is_array = False
    if companion is not None:
        image, exact, is_array = companion.image_options(image), companion.is_exact, companion.is_array
    target = resize.target(old.size, image.sizes[0], image.fit, image.upscale)
    is_apart = is_array and not old.columns["source_facts"] >> FIELDS["like_image"][0] & 1
    if target.is_whole_image or is_apart:
        return old
    if image.format == "raw" and not is_array:
        record = _resized_raw(old, target, image, exact)
    elif exact:
        record = transcode_companion(old.value, old.size, image, is_array).records[0]
    else:
        record = transcode.transcode(old.value, image).records[0]
    return stored(record, {**old.columns, "source_facts": old.columns["source_facts"] & ~(1 << FIELDS["kept"][0])})


def _resized_raw(old: StoredRecord, target: resize.Target, image: ImageOptions, exact: bool) -> transcode.Record:
    color = "exact" if exact else image.color
    try:
        pixels = decode_value(memoryview(old.value), "raw", color, old.size, image.max_pixels, image.depth)
    except DAMAGE as error:
        raise ImageError(f"the stored record is damaged: {error}") from None
    pixels = resize.resize(pixels, target, image.filter, image.resize_backend, alpha=color == "rgba")
    return transcode.Record(encode_pixels(pixels, image), *pixels.shape[:2])


def _why(error: ChildDiedError | MemoryError, timeout_s: float) -> str:
    if isinstance(error, MemoryError):
        return "out of memory, twice"
    if _took_too_long(error):
        return f"it took longer than --timeout-s {timeout_s:g}, twice"
    killed = ", most often by the OOM killer" if error.code == -signal.SIGKILL else ""
    return f"the process that decoded it died, twice ({error}{killed})"


def _took_too_long(error: ChildDiedError) -> bool:
    return isinstance(error, ChildStoppedError) or error.code == -signal.SIGALRM
