"""Output on a terminal: text, JSON and progress."""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from textwrap import fill
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

import click

from presize.formatting import duration, plural, printable, size_text
from presize.store.rejects import Reject

if TYPE_CHECKING:
    from tqdm import tqdm

    from presize.builder.shard_table import ShardDone
    from presize.store.verify import Problem


def several_lines(text: str) -> str:
    """Return `text` with unprintable characters escaped in each line."""
    return "\n".join(map(printable, text.split("\n")))


_DECIMALS = {"seconds": 3, "cpu_seconds": 3, "images_per_s": 1}


def print_json(result: object = None, names: str = "", **values: Any) -> None:
    """Print one JSON object: `values`, and the attributes of `result` in `names`, which are separated by spaces."""
    found = {name: _plain(getattr(result, name), _DECIMALS.get(name)) for name in names.split()}
    print_text(json.dumps(found | values, ensure_ascii=False, default=str))


def _plain(value: Any, decimals: int | None) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, tuple):
        return [_plain(each, None) for each in value]
    return value if decimals is None else round(value, decimals)


def print_text(text: str) -> None:
    """Print `text`. Raises ClickException if it cannot be written, as on a full disk; click handles a closed pipe."""
    try:
        click.echo(text)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        with suppress(OSError):
            sys.stdout.close()  # or Python tries again at exit
        raise click.ClickException(f"cannot print: {error.strerror}") from None


def print_problems(problems: Iterable[Problem], more: Iterable[str]) -> None:
    """Print a line for each problem, with its untrusted file name escaped, then the lines `more`."""
    if lines := [*(printable(f"{problem.file}: {problem.what}") for problem in problems), *more]:
        print_text("\n".join(lines))


def result_line(what: object, images: int, result: Any) -> str:
    """Return ``OUT: 56 images, 1.2 MB, in 3.4 s`` for a result with `bytes` and `seconds`."""
    return f"{what}: {plural(images, 'image')}, {size_text(result.bytes)}, in {duration(result.seconds)}"


def counts_text(counts: Mapping[str, int]) -> str:
    """Return ``kept 990, copied 8``."""
    return ", ".join(f"{what} {count:,}" for what, count in counts.items())


def facts_text(facts: Iterable[tuple[str, str]], width: int = 0) -> str:
    """Return a line for each fact whose text is not empty, escaped, and wrapped to `width` unless that is 0."""
    lines = [f"{name:<9} {printable(text)}" for name, text in facts if text]
    if width:
        lines = [fill(line, width, subsequent_indent=" " * 10, break_on_hyphens=False).rstrip() for line in lines]
    return "\n".join(lines)


def reject_lines(count: int, file: object, first: Sequence[Reject]) -> list[str]:
    """Return lines with the number of rejected images, the reasons for the `first` ones, and the file with all."""
    if not count:  # the file of a derived dataset may still list rejects of its sources
        return []
    lines = [f"  {plural(count, 'image')} rejected; the reasons are in {file}"]
    lines += (f"    {printable(f'{reject.path}: {reject.reason}')}" for reject in first)
    return [*lines, f"    and {count - len(first):,} more"] if count > len(first) > 0 else lines


_LINE_EVERY_S = 10.0


def making_room(stream: TextIO) -> AbstractContextManager[None]:
    """Return a context manager that hides progress bars while something else is written to `stream`."""
    if "tqdm" not in sys.modules:  # there is no bar
        return nullcontext()
    from tqdm import tqdm

    room: AbstractContextManager[None] = tqdm.external_write_mode(stream)
    return room


class Progress:
    """Progress of images or bytes on `stream`, from begin() on; silent if `quiet`. For one thread at a time."""

    def __init__(self, stream: TextIO, what: str, in_bytes: bool = False, quiet: bool = False) -> None:
        self._stream = stream
        self._in_bytes = in_bytes
        self._quiet = quiet
        self._what = what
        self._bar: tqdm | None = None
        self._total = self._done = self._earlier = 0
        self._start = self._last_line = 0.0

    def begin(self, total: int) -> None:
        self._total = total
        self._start = self._last_line = time.monotonic()
        if self._stream.isatty() and not self._quiet:
            from tqdm import tqdm  # takes 30 ms

            self._bar = tqdm(
                total=total,
                file=self._stream,
                desc=self._what,
                unit="B" if self._in_bytes else "img",
                unit_scale=self._in_bytes,
                dynamic_ncols=True,
                smoothing=0.05,
            )

    def add(self, more: int, note: str = "", earlier: bool = False) -> None:
        """Add `more` that are done. `earlier`: they were done before, so rate and time left do not count them."""
        self._done += more
        self._earlier += more * earlier
        now = self._done - self._earlier
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            if earlier:
                self._bar.initial += more
                self._bar.n += more
                self._bar.last_print_n += more
                self._bar.refresh()
            else:
                self._bar.update(more)
        elif now and not self._quiet and time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._last_line = time.monotonic()
            rate = now / (self._last_line - self._start)
            left_s = (self._total - self._done) / rate
            if self._in_bytes:
                counts = f"{size_text(self._done)} of {size_text(self._total)}, {size_text(rate)}/s"
            else:
                counts = f"{self._done:,} of {self._total:,} images, {rate:,.0f}/s"
            line = f"{self._what}: {counts}, {left_s:,.0f} s left"
            self._stream.write(f"{line}, {note}\n" if note else f"{line}\n")
            self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


class BuildProgress(Progress):
    """Progress of a build: samples of finished shards, with their bytes and rejects as the note."""

    def __init__(self, stream: TextIO, quiet: bool = False) -> None:
        super().__init__(stream, "build", quiet=quiet)
        self._rejected = self._bytes = 0

    def on_shard(self, done: ShardDone) -> None:
        self._rejected += done.rejected
        self._bytes += done.bytes
        note = f"{size_text(self._bytes)}, {self._rejected:,} rejected"
        self.add(done.samples, note, done.earlier)
