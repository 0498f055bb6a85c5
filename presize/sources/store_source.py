"""Images in an object store: reading them. Listing them is in store_listing, which workers do not need."""

from __future__ import annotations

import os

from presize.codecs.sniff import sniff
from presize.errors import UnreadableError
from presize.remote.bucket import Bucket
from presize.system.files import is_url

THREADS = 16
"""In each worker process: a request takes some tens of milliseconds, ten images' worth of decoding."""

_SNIFFED_BYTES = 4096
_WHOLE_BYTES = 64 << 20
"""Of a larger object the beginning is looked at before all of it is read."""


class Url(str):
    """The place of images in a store: s3://BUCKET/PATH, http(s)://HOST/PATH, gs:// or az://."""

    __slots__ = ()

    @classmethod
    def of(cls, source: str | os.PathLike[str]) -> Url | None:
        """None for a folder, whatever its name looks like."""
        name = os.fspath(source)
        return cls(name.rstrip("/")) if is_url(name) and not os.path.lexists(name) else None


def read_object(bucket: Bucket, path: str, nbytes: int) -> bytes:
    """The content of an object; of a large one that does not start like an image, the start alone.

    Raises:
        UnreadableError: it has changed since it was listed, or has gone.
        RemoteError: it cannot be read for another reason.
    """
    if nbytes > _WHOLE_BYTES and sniff(head := bucket.get_range(path, _SNIFFED_BYTES)) is None:
        return head
    data = bucket.get(path, nbytes)
    if data is None:
        raise UnreadableError(
            f"it changed during the build: it had {nbytes} bytes when listed, and has another size, or gone"
        )
    return data
