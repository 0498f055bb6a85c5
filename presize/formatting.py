"""Numbers and names as a person reads them: bytes, counts, times, rates, and names that may be hostile. Pure."""

from __future__ import annotations

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size_text(nbytes: float) -> str:
    """A number of bytes in three digits and decimal units.

    >>> [size_text(n) for n in (12, 4_096, 32_600_000, 999_900_000, 1.5e9, 2.5e15)]
    ['12 bytes', '4.1 kB', '32.6 MB', '1 GB', '1.5 GB', '2,500 TB']
    """
    for power, unit in _UNITS:
        if _rounded(nbytes / power) >= 1:
            return f"{digits(nbytes / power)} {unit}"
    return plural(round(nbytes), "byte")


def digits(number: float) -> str:
    """Three digits, or all before the point, without trailing zeros.

    >>> [digits(number) for number in (0, 3.1416, 31.0, 999.9, 3141.6)]
    ['0', '3.14', '31', '1,000', '3,142']
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _rounded(number: float) -> float:
    """To three digits.

    >>> [_rounded(number) for number in (0.99949, 0.99951)]
    [0.999, 1.0]
    """
    return float(f"{number:.3g}")


def plural(count: float, one: str, many: str | None = None) -> str:
    """A count, whole or not, and what is counted.

    >>> [plural(1, "image"), plural(1200, "image"), plural(2, "class", "classes"), plural(2.5, "core")]
    ['1 image', '1,200 images', '2 classes', '2.5 cores']
    """
    number = f"{count:,}" if isinstance(count, int) else digits(count)
    return f"{number} {one if count == 1 else many or one + 's'}"


def ordinal(number: int) -> str:
    """The place of a whole number in a row.

    >>> [ordinal(number) for number in (1, 2, 3, 11, 24, 112)]
    ['1st', '2nd', '3rd', '11th', '24th', '112th']
    """
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"


def duration(seconds: float) -> str:
    """A time that a person waits, as a clock shows it.

    >>> [duration(seconds) for seconds in (12.34, 320, 11100)]
    ['12.3 s', '5 min 20 s', '3 h 05 min']
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02} min"


def seconds_text(seconds: float) -> str:
    """A time that was measured, in three digits.

    >>> [seconds_text(seconds) for seconds in (0.0001234, 0.05, 0.9999, 2, 123.4)]
    ['0.123 ms', '50 ms', '1 s', '2 s', '123 s']
    """
    return f"{digits(seconds)} s" if _rounded(seconds) >= 1 else f"{digits(seconds * 1e3)} ms"


def rate_text(per_s: float) -> str:
    """A rate in three digits, trailing zeros kept, or all before the point.

    >>> [rate_text(rate) for rate in (3.1, 9.999, 31.416, 314.16, 3141.6)]
    ['3.10', '10.0', '31.4', '314', '3,142']
    """
    rounded = _rounded(per_s)
    return f"{per_s:,.{0 if rounded >= 100 else 1 if rounded >= 10 else 2}f}"


def factor_text(factor: float) -> str:
    """How many times as much: two decimals up to 2, then one, and none from 10 on.

    >>> [factor_text(factor) for factor in (1.0, 1.294, 1.996, 2.914, 9.96, 37.2)]
    ['1.00', '1.29', '2.0', '2.9', '10', '37']
    """
    digits = 0 if round(factor, 1) >= 10 else 1 if round(factor, 2) >= 2 else 2
    return f"{factor:,.{digits}f}"


def printable(text: str) -> str:
    r"""`text` as one line that does no harm to a terminal, a log or a page: line breaks, escape sequences and
    bidirectional controls come out as backslash escapes.

    >>> printable("a\nb\x1b[31m")
    'a\\nb\\x1b[31m'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
