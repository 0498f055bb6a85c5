"""Formats numbers and names for people: bytes, counts, times, rates, and names that may be hostile. Pure."""

from __future__ import annotations

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size_text(nbytes: float) -> str:
    """Format a number of bytes with three digits, in decimal units: 12 bytes, 4.1 kB, 32.6 MB, 1.5 GB, 2,500 TB."""
    for power, unit in _UNITS:
        if _rounded(nbytes / power) >= 1:
            return f"{digits(nbytes / power)} {unit}"
    return plural(round(nbytes), "byte")


def digits(number: float) -> str:
    """Format with three digits, or all before the point, without trailing zeros: 0, 3.14, 31, 1,000."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")


def plural(count: float, one: str, many: str | None = None) -> str:
    """Format a count, whole or not, with its noun: 1 image, 1,200 images, 2 classes, 2.5 cores."""
    number = f"{count:,}" if isinstance(count, int) else digits(count)
    return f"{number} {one if count == 1 else many or one + 's'}"


def ordinal(number: int) -> str:
    """Format an ordinal number.

    >>> [ordinal(number) for number in (1, 2, 3, 11, 24, 112)]
    ['1st', '2nd', '3rd', '11th', '24th', '112th']
    """
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"


def duration(seconds: float) -> str:
    """Format a waiting time as a clock shows it: 12.3 s, 5 min 20 s, 3 h 05 min."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02} min"


def seconds_text(seconds: float) -> str:
    """Format a measured time with three digits: 0.123 ms, 50 ms, 1 s, 123 s."""
    return f"{digits(seconds)} s" if _rounded(seconds) >= 1 else f"{digits(seconds * 1e3)} ms"


def rate_text(per_s: float) -> str:
    """Format a rate with three digits, trailing zeros included, or all before the point: 3.10, 10.0, 314, 3,142."""
    rounded = _rounded(per_s)
    return f"{per_s:,.{0 if rounded >= 100 else 1 if rounded >= 10 else 2}f}"


def factor_text(factor: float) -> str:
    """Format a factor with two decimals below 2, one below 10, and none from 10 on: 1.00, 1.29, 2.9, 37."""
    digits = 0 if round(factor, 1) >= 10 else 1 if round(factor, 2) >= 2 else 2
    return f"{factor:,.{digits}f}"


def printable(text: str) -> str:
    """Return `text` as one line that is safe in a terminal, a log or a page: line breaks, escape sequences and
    bidirectional controls become backslash escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
