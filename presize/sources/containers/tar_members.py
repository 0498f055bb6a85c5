"""Reads the headers of a tar: the names, places and sizes of the files in it. USTAR, GNU and PAX formats."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from presize.formatting import size_text

BLOCK = 512
ZEROS = bytes(BLOCK)
"""The end mark begins with such a block."""
_WINDOW_BYTES = 4096
_NAME_BYTES = 1 << 20
"""The most that is read of a header that holds a long name."""
_TAIL_BYTES = 1 << 20
"""The most that padding adds at the end. More is left where a download stopped in a file of its full size."""
_PADDING_BYTES = 1 << 20
_SIZE = re.compile(r"[0-9]{1,18}")
_PAX_RECORD = re.compile(rb"(\d{1,9}) ([^=]+)=")


class Member(NamedTuple):
    """A file of a tar: where its bytes are. `kind` is its type flag, ``b"0"`` for a regular file."""

    name: str
    kind: bytes
    offset: int
    nbytes: int


END_MARK = Member("", b"", 0, 0)
"""Stands for an end mark that more members follow, or something else that is told of: tars can be joined by cat."""


class CutShort(Exception):
    """A tar ends, or is damaged, before its end mark. ``str(error)`` says where; `name` is the file it happened in."""

    def __init__(self, reason: str, name: str | None = None) -> None:
        super().__init__(reason)
        self.name = name


class TarWindow:
    """Reads small parts of a file, mostly one after the other: one call for several of them."""

    def __init__(self, fd: int) -> None:
        self.nbytes = os.fstat(fd).st_size
        self._fd, self._begin, self._content = fd, 0, b""

    def read(self, begin: int, nbytes: int) -> bytes:
        """The bytes from `begin` on; fewer at the end of the file."""
        first = begin - self._begin
        if first < 0 or first + nbytes > len(self._content):
            self._begin, first = begin, 0
            self._content = os.pread(self._fd, max(nbytes, _WINDOW_BYTES), begin)
        return self._content[first : first + nbytes]

    def after_zeros(self, begin: int) -> int:
        """Where the first block from `begin` on begins that is not all zeros; the end of the file if none does."""
        while content := os.pread(self._fd, _PADDING_BYTES, begin):
            if content != bytes(len(content)):
                zeros = len(content) - len(content.lstrip(b"\0"))
                return begin + zeros // BLOCK * BLOCK
            begin += len(content)
        return begin


def is_header(block: bytes) -> bool:
    """Whether a block has the checksum of a header: the sum of its bytes, with blanks in the place of the checksum."""
    if len(block) < BLOCK:
        return False
    stored = _number(block[148:156])
    # The lower half of Adler-32 is the sum modulo 65521, in a fiftieth of the time that Python takes.
    found = zlib.adler32(block[:148] + b"        " + block[156:], 0) & 0xFFFF
    return stored is not None and stored % 65521 == found


def _number(field: bytes) -> int | None:
    """A number of a header, in octal digits, or binary where its first bit is set."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else None
    try:
        number = int(field.partition(b"\0")[0] or b"0", 8)
    except ValueError:
        return None
    return number if number >= 0 else None


def members(window: TarWindow) -> Iterator[Member]:
    """The files of a tar, folders apart, and END_MARK between those of several that were joined.

    Raises:
        CutShort: it ends before its end mark, or cannot be followed.
    """
    at = 0
    extended: dict[str, str] = {}
    while True:
        block = window.read(at, BLOCK)
        if len(block) < BLOCK:
            raise CutShort(f"it ends at byte {window.nbytes:,}, without an end mark")
        if block == ZEROS:
            end, at, extended = at, window.after_zeros(at), {}
            if at >= window.nbytes:
                if at - end > _TAIL_BYTES:
                    raise CutShort(f"its end mark at byte {end:,} is followed by {size_text(at - end)} of zeros")
                return
            follows = is_header(window.read(at, BLOCK))
            if follows or at - end <= _TAIL_BYTES:
                yield END_MARK
            if not follows:
                raise CutShort(f"byte {at:,}, behind its end mark at byte {end:,}, begins no header")
            continue
        if not is_header(block):
            raise CutShort(f"byte {at:,} begins no header")
        size, kind, begin = _number(block[124:136]), block[156:157], at + BLOCK
        if size is None:
            raise CutShort(f"the size in the header at byte {at:,} is no number")
        if kind in b"xLKg":
            value = window.read(begin, size) if size <= _NAME_BYTES else b""
            if len(value) < size:
                raise CutShort(f"the header at byte {at:,} has {size:,} bytes, which are not there or too many")
            if kind == b"L":
                extended["path"] = value.split(b"\0")[0].decode("utf-8", "surrogateescape")
            elif kind == b"x":
                extended |= _pax(value)
        else:
            name = extended.pop("path", None) or _name(block)
            kind = b"0" if kind in b"\x007" else kind
            if extended:
                size = int(extended["size"]) if _SIZE.fullmatch(extended.get("size", "")) else size
                kind = b"S" if any(key.startswith("GNU.sparse") for key in extended) else kind
                extended = {}
            if kind in b"123456":
                size = 0  # links, folders and devices have no content, whatever they say
            if begin + size > window.nbytes:
                there = max(0, window.nbytes - begin)
                raise CutShort(f"it ends after {there:,} of the {size:,} bytes of {name!r}", name)
            if kind != b"5":
                yield Member(name, kind, begin, size)
        at = begin + -(-size // BLOCK) * BLOCK


def _name(block: bytes) -> str:
    name = block[:100].partition(b"\0")[0]
    if block[345] and block[257:263] == b"ustar\0":  # GNU keeps times there
        name = block[345:500].partition(b"\0")[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _pax(value: bytes) -> dict[str, str]:
    """The records of a PAX header, as far as they can be read: ``length key=value\\n``."""
    found, at = {}, 0
    while match := _PAX_RECORD.match(value, at):
        end = at + int(match[1])
        if end <= match.end() or value[end - 1 : end] != b"\n":
            break
        found[match[2].decode("utf-8", "replace")] = value[match.end() : end - 1].decode("utf-8", "surrogateescape")
        at = end
    return found
