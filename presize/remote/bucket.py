"""Objects under a URL, read and written through obstore. No other module imports obstore."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import cached_property, partial, wraps
from http.client import HTTPException
from io import BufferedReader, BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote, unquote_plus, urlencode
from xml.etree import ElementTree

from presize.errors import RemoteError
from presize.options import check_type
from presize.system.files import writing

P = ParamSpec("P")
T = TypeVar("T")

SCHEMES = ("s3", "http", "https", "gs", "az")
PART_BYTES = 5 << 20
"""Part size of uploads. The ETags of the objects depend on it."""
_PARTS_BYTES = tuple(mib << 20 for mib in (5, 8, 10, 15, 16, 25, 32, 50, 64, 100, 128))
"""Part sizes of common tools: obstore and rclone 5 MiB or more, the AWS tools 8, s3fs 10, s3cmd 15."""
CHUNK_BYTES = 1 << 20
_LISTED_AT_ONCE = 10_000
"""Objects of a listing that are fetched together, such as ten pages of S3, because each fetch starts a thread."""
_SHA256 = "sha256"
_ATTEMPTS = 6
"""Failed attempts in a row, without a new byte, that end a download. The pauses add up to 6 s."""
_CONNECT_S = 10
SILENCE_S = 30
"""Longest time that a server may send nothing during a response."""
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN, if there is one); profiles are not "
    "read; for a public bucket set AWS_SKIP_SIGNATURE=true",
    "gs": "set GOOGLE_SERVICE_ACCOUNT, the path of a key file; for a public bucket GOOGLE_SKIP_SIGNATURE=true",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; for a public container "
    "AZURE_SKIP_SIGNATURE=true",
}
_NOT_ALLOWED = re.compile(r"status code: 40[13]|169\.254\.169\.254|metadata\.google")
"""Matches obstore's errors for wrong or missing credentials; without any, it asks the machine's metadata service."""

_used_in: int | None = None  # ID of the process that has used obstore


def in_background(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call `function` in a daemon thread: the process may exit before it returns."""
    answer: Future[T] = Future()

    def call() -> None:
        try:
            answer.set_result(function(*args, **kwargs))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=call, name="presize-background", daemon=True).start()
    return answer


def interruptible(function: Callable[P, T]) -> Callable[P, T]:
    """Let Ctrl-C interrupt the main thread while `function` runs native code. It then continues in the background."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if threading.current_thread() is not threading.main_thread():
            return function(*args, **kwargs)
        return in_background(function, *args, **kwargs).result()

    return call


class Listed(NamedTuple):
    """An object: path relative to the URL, size in bytes, and modification time in nanoseconds since 1970."""

    path: str
    nbytes: int
    mtime_ns: int


class Bucket:
    """Objects under a URL: s3://BUCKET/PREFIX, http(s)://HOST/PATH, gs:// or az://.

    obstore finds credentials, region and endpoint in the environment or on the machine. Thread-safe, but unusable in a
    forked child, which lacks obstore's threads. The constructor and every method may raise RemoteError.
    """

    def __init__(self, url: str) -> None:
        check_type("url", url, str)
        scheme, separator, rest = url.partition("://")
        if scheme not in SCHEMES or not separator or not rest.strip("/") or not url.isprintable():
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise RemoteError(f"URL {url!r}: expected one of {known}, then a bucket or host")
        try:
            import obstore.store
        except ImportError:
            raise RemoteError(f'{url} needs obstore, which is not installed: pip install "presize[remote]"') from None
        global _used_in
        if _used_in not in (None, os.getpid()):
            raise RemoteError(f"{url}: this process was forked after its parent used a store; start it with spawn")
        _used_in = os.getpid()
        self.url, self._scheme = url.rstrip("/"), scheme
        self._obstore = obstore
        self._get = obstore.get
        self._failures = (obstore.exceptions.BaseError, OSError, ValueError)
        options: Any = {
            "allow_http": True,  # for a user's own endpoint
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "read_timeout": timedelta(seconds=SILENCE_S),
            "timeout": timedelta(days=7),  # for a whole object on a slow network
        }
        retries: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=_CONNECT_S)}
        with self._at_name(""):
            # The store compares the checksum of each uploaded part.
            checked: Any = {"checksum_algorithm": "SHA256"} if scheme == "s3" else {}
            # from_url() would leave out what follows ? or #, which names in a bucket may contain.
            place = self.url if scheme.startswith("http") else self.url.replace("?", "%3F").replace("#", "%23")
            self._store = obstore.store.from_url(place, client_options=options, retry_config=retries, **checked)
        self._known_parts: set[int | None] = {None} if scheme == "s3" else set()
        """Part sizes for which etag_of() has matched an object's ETag; None stands for an upload in one piece."""

    @contextmanager
    def _at_name(self, name: str) -> Iterator[None]:
        try:
            yield
        except RemoteError:
            raise
        except FileNotFoundError as error:
            reason = _reason(error)
            missing = f"the bucket of {self.url}" if "NoSuchBucket" in reason else self._at(name)
            raise RemoteError(f"{missing} does not exist ({reason})") from None
        except self._failures as error:
            kind = BrokenOffError if isinstance(error, self._obstore.exceptions.GenericError) else RemoteError
            hint = "check the host's name and the network" if "error sending request" in str(error) else ""
            hint = _CREDENTIALS.get(self._scheme, "") if _NOT_ALLOWED.search(str(error)) else hint
            raise kind(f"{self._at(name)}: {_reason(error)}{hint and f'; {hint}'}") from None

    def _at(self, name: str) -> str:
        return f"{self.url}/{name}".rstrip("/")

    def download(self, name: str, nbytes: int, path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> None:
        """Download an object of `nbytes` to `path`. A partial file there, or a broken connection, is resumed.

        `on_bytes` is called with the number of bytes received since the last call, before they are written, and with 0
        after a connection breaks. What it raises ends the download. Raises BuildError if `path` cannot be written.
        """
        broken_off = 0
        with writing(path), path.open("ab") as file:
            while (have := file.tell()) < nbytes:
                try:
                    for chunk in self._chunks(name, have, nbytes):
                        on_bytes(len(chunk))
                        file.write(chunk)
                except BrokenOffError:
                    on_bytes(0)
                    broken_off = 1 if file.tell() > have else broken_off + 1
                    if broken_off == _ATTEMPTS:
                        raise
                    time.sleep(0.1 * 2**broken_off)

    def _chunks(self, name: str, start: int, nbytes: int) -> Iterator[memoryview]:
        """Return an iterator over the bytes of an object from `start` on. Raises RemoteError if its size differs."""
        skip = 0
        with self._at_name(name):
            try:
                found = self._get(self._store, name, options={"range": {"offset": start}} if start else None)
            except self._obstore.exceptions.NotSupportedError:  # some web servers lack ranges
                found, skip = self._get(self._store, name), start
            if found.meta["size"] != nbytes:
                raise RemoteError(f"{self._at(name)} has {found.meta['size']} bytes where the manifest says {nbytes}")
            stream = iter(found.stream(min_chunk_size=CHUNK_BYTES))

        def chunks() -> Iterator[Any]:
            try:
                with self._at_name(name):
                    yield from stream
            except RemoteError as error:
                raise BrokenOffError(str(error)) from None

        return exactly(nbytes - start, chunks(), skip, self._at(name))

    def _if_there(self, name: str, call: Callable[[], T]) -> T | None:
        """Return the result of `call`, or None if the object does not exist. A missing bucket is an error."""
        with self._at_name(name):
            try:
                return call()
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    @interruptible
    def get_with_etag(self, name: str, max_bytes: int) -> tuple[bytes, str] | None:
        """Return an object of at most `max_bytes` and its ETag, for put(); None if it does not exist."""

        def read() -> tuple[bytes, str]:
            found = self._get(self._store, name)
            if (nbytes := found.meta["size"]) > max_bytes:
                raise RemoteError(f"{self._at(name)} has {nbytes} bytes, more than the {max_bytes} expected")
            return bytes(found.bytes()), str(found.meta["e_tag"])

        return self._if_there(name, read)

    @interruptible
    def get(self, name: str, nbytes: int) -> bytes | None:
        """Return an object of `nbytes`, or None if it is missing or has another size. Broken connections are retried.

        Plain http does not protect the bytes: over http they are compared with the ETag. If that may not be an MD5, the
        object must be the same in two reads. Raises DamagedError if no attempt succeeds."""
        is_encrypted, before = False, b""

        def read() -> bytes | None:
            nonlocal before
            found = self._get(self._store, name)
            if found.meta["size"] != nbytes:
                return None
            content = bytes(found.bytes())
            fits = self._fits(content, found.meta["e_tag"] or "")
            if (fits is False and not is_encrypted) or (not fits and content != before):
                before = content
                raise DamagedError(f"{self._at(name)}: {DamagedError.reason}")
            return content

        failed = 0
        while True:
            try:
                return self._if_there(name, read)
            except BrokenOffError as error:
                failed += 1
                if failed == _ATTEMPTS:
                    raise
                if not isinstance(error, DamagedError):
                    time.sleep(0.1 * 2**failed)
                elif failed == 1:
                    is_encrypted = self._is_encrypted(name)

    def _fits(self, content: bytes, etag: str) -> bool | None:
        """Return whether `content` matches its ETag, or needs no comparison; None if the ETag may not be an MD5."""
        found = re.fullmatch(r'"?([0-9a-f]{32}(?:-([1-9]\d*))?)"?', etag)
        if found is None or not self._endpoint.startswith("http:"):
            return True
        count = int(found[2] or 0)
        sizes = [size for size in _PARTS_BYTES if -(-len(content) // size) == count] if count else [None]
        for size in sizes:
            if etag_of(BytesIO(content), size) == found[1]:
                self._known_parts.add(size)
                return True
        return None if self._known_parts.isdisjoint(sizes) else False

    def _is_encrypted(self, name: str) -> bool:
        """Return whether S3 has encrypted an object with KMS: its ETag then looks like an MD5 but is not one."""
        if self._scheme != "s3":
            return False
        url = f"{self._endpoint}/{quote(self._prefix + name)}"
        with suppress(*self._failures, HTTPException):  # get() reports why the store does not answer
            if not _is_unsigned():
                url = str(self._obstore.sign(self._store, "HEAD", name, timedelta(minutes=10)))
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=SILENCE_S) as answer:
                return str(answer.headers.get("x-amz-server-side-encryption")).startswith("aws:kms")
        return False

    @interruptible
    def get_range(self, name: str, nbytes: int) -> bytes:
        with self._at_name(name):
            return bytes(self._obstore.get_range(self._store, name, start=0, length=nbytes))

    @interruptible
    def head(self, name: str) -> Listed | None:
        """Return an object's path, size and modification time, or None if it does not exist."""
        return self._if_there(name, lambda: self._listed(self._obstore.head(self._store, name)))

    def list(self) -> Iterator[Listed]:
        """Yield all objects under the URL in the order of their names, which may be any text in S3."""
        pages = iter(self._obstore.list(self._store, chunk_size=_LISTED_AT_ONCE))
        next_page = interruptible(lambda: next(pages, None))
        listed = 0
        while True:
            with self._at_name(""):
                try:
                    page = next_page()
                except self._obstore.exceptions.InvalidPathError:
                    if self._scheme != "s3":
                        raise
                    break
            if page is None:
                return
            for found in page:
                listed += 1
                yield self._listed(found)
        yield from islice(self._list_any(), listed, None)

    def _list_any(self) -> Iterator[Listed]:
        """Yield the same objects as list(), by our own requests: obstore stops at a name such as a//b."""
        query = {"list-type": "2", "encoding-type": "url", "prefix": self._prefix}
        ask = interruptible(self._ask)
        token: str | None = ""
        while token is not None:
            with self._at_name(""):
                page = ask(query)
                decoded = unquote_plus if page.findtext("{*}EncodingType") == "url" else str
                for found in page.iterfind("{*}Contents"):
                    key = decoded(found.findtext("{*}Key", ""))
                    path = key.removeprefix(self._prefix).removesuffix("/")  # as obstore does
                    changed = datetime.fromisoformat(found.findtext("{*}LastModified", ""))
                    size = int(found.findtext("{*}Size", ""))
                    yield self._listed({"path": path, "size": size, "last_modified": changed})
                token = page.findtext("{*}NextContinuationToken")
                query["continuation-token"] = token or ""

    def _ask(self, query: dict[str, str]) -> ElementTree.Element:
        """Return S3's response to a query about the bucket. obstore signs only requests for objects, so the query is
        signed as part of the endpoint."""
        url = f"{self._endpoint}?{urlencode(query)}"
        if not _is_unsigned():
            name = "aws_endpoint_url_s3" if "AWS_ENDPOINT_URL_S3" in os.environ else "endpoint"
            url = self._signed(virtual_hosted_style_request=True, **{name: f"{url}&x-id="})
        try:
            with urllib.request.urlopen(url, timeout=SILENCE_S) as answer:
                return ElementTree.fromstring(answer.read())
        except (ElementTree.ParseError, HTTPException) as error:
            raise ValueError(f"its listing cannot be read: {error}") from None

    def _signed(self, **config: Any) -> str:
        bucket = self.url.partition("://")[2].partition("/")[0]
        store = self._obstore.store.S3Store(bucket, client_options={"allow_http": True}, **config)
        return str(self._obstore.sign(store, "GET", "x", timedelta(minutes=10)))

    @property
    def _prefix(self) -> str:
        return f"{self._store.prefix}/" if self._store.prefix else ""

    @cached_property
    def _endpoint(self) -> str:
        if self._scheme != "s3":
            return self.url
        return self._signed(access_key_id="any", secret_access_key="any").partition("?")[0].removesuffix("/x")

    @staticmethod
    def _listed(found: Any) -> Listed:
        changed = found["last_modified"]
        return Listed(found["path"], found["size"], int(changed.timestamp()) * 10**9 + changed.microsecond * 1000)

    @interruptible
    def put(self, name: str, content: bytes, etag: str | None = None) -> bool:
        """Write a new object, or replace the one with `etag`. Return False if another exists, or that one is gone."""
        errors = self._obstore.exceptions
        mode: Any = "create" if etag is None else {"e_tag": etag}
        with self._at_name(name):
            try:
                self._obstore.put(self._store, name, content, mode=mode, use_multipart=False)
            except (errors.AlreadyExistsError, errors.PreconditionError):
                return False
            except FileNotFoundError:
                if etag is None:  # the bucket does not exist
                    raise
                return False
        return True

    @interruptible
    def holds(self, name: str, nbytes: int, sha256: str, is_etag: Callable[[str], bool] = lambda _: True) -> bool:
        """Return whether an object has this size, the SHA-256 stored by upload(), and an ETag that passes `is_etag`,
        which is called last, only if size and SHA-256 match."""
        found = self._if_there(name, lambda: self._get(self._store, name, options={"head": True}))
        if found is None or (found.meta["size"], found.attributes.get(_SHA256)) != (nbytes, sha256):
            return False
        return is_etag(str(found.meta["e_tag"]))

    @interruptible
    def is_foreign(self, name: str) -> bool:
        """Return whether an object exists that upload() did not write."""
        found = self._if_there(name, lambda: self._get(self._store, name, options={"head": True}))
        return found is not None and _SHA256 not in found.attributes

    def upload(self, name: str, chunks: Iterator[bytes], sha256: str) -> None:
        """Write an object and its SHA-256 atomically: if `chunks` raises, an existing object stays unchanged."""
        with self._at_name(name):
            self._obstore.put(self._store, name, chunks, attributes={_SHA256: sha256}, chunk_size=PART_BYTES)

    @interruptible
    def remove(self, name: str) -> None:
        with self._at_name(name), suppress(FileNotFoundError):
            self._obstore.delete(self._store, name)


class BrokenOffError(RemoteError):
    """A broken connection, or a store that does not answer. A retry may succeed."""


class DamagedError(BrokenOffError):
    """An object that differs from its ETag."""

    reason = f"its MD5 differs from its ETag in {_ATTEMPTS} reads: it is damaged in the store or in transit"


def exactly(nbytes: int, chunks: Iterable[Any], skip: int, what: str) -> Iterator[memoryview]:
    """Yield the `nbytes` after the first `skip` of `chunks`. Raises RemoteError for more, BrokenOffError for fewer."""
    left = nbytes
    for chunk in chunks:
        new = memoryview(chunk)[skip:]
        skip -= len(chunk) - len(new)
        left -= len(new)
        if left < 0:
            raise RemoteError(f"{what} has more bytes than the manifest says")
        yield new
    if left:
        raise BrokenOffError(f"{what} ended {left} bytes too early")


_md5 = partial(hashlib.md5, usedforsecurity=False)


def etag_of(file: BytesIO | BufferedReader, part_bytes: int | None = None) -> str:
    """Return the ETag that S3 gives an object without KMS: its MD5, or the MD5 of its parts' MD5s and their number."""
    if part_bytes is None:
        return hashlib.file_digest(file, _md5).hexdigest()
    parts = [_md5(part).digest() for part in iter(lambda: file.read(part_bytes), b"")] or [_md5().digest()]
    return f"{_md5(b''.join(parts)).hexdigest()}-{len(parts)}"


def _is_unsigned() -> bool:
    return os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("true", "1", "yes", "on", "y")


def _reason(error: Exception) -> str:
    """Return obstore's message without the request that failed."""
    said = str(error)
    status = re.search(r"non-2xx status code: (\d+ [\w -]+)", said)
    code = re.search(r"<Code>(\w+)</Code>", said)
    if status:
        return f"{status[1].strip()}{f', {code[1]}' if code else ''}"
    first = said.partition("\n")[0]
    if named := re.search(r'invalid path: .*?Path "(.*?)" ?', first):
        return f"the name {named[1]!r} is not a path; rename that object, or remove it"
    asking = r"Error performing \w+ \S+ in \S+( after \d+ retries.*?)? +- "
    return re.sub(rf"^(Generic \w+ error: )?(Error performing list request: )?({asking})?", "", first)


_CHECK_S = 0.2
ENDS_WITHIN_S = 2
"""How long to wait for stopped transfers. One that gets no response is abandoned, and ends with the process."""


class TransferStoppedError(Exception):
    """Raised in a transfer after another one failed."""


class Connections:
    """Transfers of files, `count` at a time. `on_bytes` is called, in any thread, with the number of bytes transferred
    since the last call; `bytes` is their sum."""

    def __init__(self, on_bytes: Callable[[int], None] = lambda _: None, count: int = 8) -> None:
        self._on_bytes, self._count = on_bytes, count
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self.bytes = 0

    def all_of(self, move: Callable[[T], None], files: Iterable[T]) -> None:
        """Call `move` with each of `files`, taken as connections become free. The first error stops all transfers."""
        running: set[Future[None]] = set()
        try:
            for file in files:
                running.add(in_background(move, file))
                if len(running) == self._count:
                    running = self._after_one(running)
            while running:
                running = self._after_one(running)
        except BaseException:
            self.stop()
            wait(running, ENDS_WITHIN_S)
            raise

    def _after_one(self, running: set[Future[None]]) -> set[Future[None]]:
        """Wait until at least one transfer has ended, raise its error if any, and return the others."""
        ended: set[Future[None]] = set()
        while not ended:
            if self._stopped.is_set():
                raise TransferStoppedError
            ended, others = wait(running, _CHECK_S, FIRST_COMPLETED)
        for one in ended:
            one.result()
        return others

    def stop(self) -> None:
        """End the running transfers at their next bytes, and start no more."""
        self._stopped.set()

    def passed(self, nbytes: int) -> None:
        """Count transferred bytes. Raises TransferStoppedError, to end this transfer, after stop()."""
        if self._stopped.is_set():
            raise TransferStoppedError
        with self._lock:
            self.bytes += nbytes
            self._on_bytes(nbytes)
