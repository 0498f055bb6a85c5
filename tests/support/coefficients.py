"""The DCT coefficients of a baseline JPEG of one scan, by a second, slow and short implementation of T.81."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator


def coefficients(data: bytes) -> list[list[int]]:
    """Return each block's coefficients in zigzag order, the blocks in the order of the scan."""
    codes: dict[int, dict[str, int]] = {}
    factors: dict[int, int] = {}
    height = width = interval = scan = 0
    for marker, payload, scan in _segments(data):  # noqa: B007  # it is where the scan begins, at last
        if marker == 0xC4:
            while payload:
                codes[payload[0]], nbytes = _codes(payload)
                payload = payload[nbytes:]
        elif marker == 0xC0:
            height, width = struct.unpack(">HH", payload[1:5])
            factors = dict(zip(payload[6::3], payload[7::3], strict=True))
        elif marker == 0xDD:
            (interval,) = struct.unpack(">H", payload)
        elif marker == 0xDA:
            break
    names = payload[1:-3]
    components = [(factors[names[i]], names[i + 1] >> 4, names[i + 1] & 15) for i in range(0, len(names), 2)]
    across, down = max(f >> 4 for f, _, _ in components), max(f & 15 for f, _, _ in components)
    mcus = -(-width // (8 * across)) * -(-height // (8 * down))
    parts = re.split(rb"\xff[\xd0-\xd7]", data[scan : data.rindex(b"\xff\xd9")])
    blocks: list[list[int]] = []
    for number, part in enumerate(parts):
        read = _reader(part.replace(b"\xff\0", b"\xff"))
        before = [0] * len(components)
        for _ in range(min(interval or mcus, mcus - number * interval)):
            for c, (factor, dc, ac) in enumerate(components):
                for _ in range((factor >> 4) * (factor & 15)):
                    block = [0] * 64
                    before[c] += _number(read, _symbol(read, codes[dc]))
                    block[0] = before[c]
                    k = 1
                    while k < 64:
                        symbol = _symbol(read, codes[0x10 | ac])
                        if symbol & 15 == 0 and symbol != 0xF0:
                            break
                        k += symbol >> 4
                        block[k] = _number(read, symbol & 15)
                        k += 1
                    blocks.append(block)
    return blocks


def _segments(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    at = 2
    while True:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        yield data[at + 1], data[at + 4 : end], end
        at = end


def _codes(table: bytes) -> tuple[dict[str, int], int]:
    found, code, at = {}, 0, 17
    for length in range(1, 17):
        for _ in range(table[length]):
            found[f"{code:0{length}b}"] = table[at]
            code, at = code + 1, at + 1
        code <<= 1
    return found, at


def _reader(part: bytes) -> Callable[[int], str]:
    bits, at = "".join(f"{byte:08b}" for byte in part), 0

    def read(count: int) -> str:
        nonlocal at
        at += count
        assert at <= len(bits), "the interval ends too early"
        return bits[at - count : at]

    return read


def _symbol(read: Callable[[int], str], codes: dict[str, int]) -> int:
    code = ""
    while code not in codes:
        code += read(1)
    return codes[code]


def _number(read: Callable[[int], str], size: int) -> int:
    bits = read(size)
    return int(bits, 2) - (0 if bits[0] == "1" else (1 << size) - 1) if size else 0
