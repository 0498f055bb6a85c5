from typing import Any

import numpy.typing as npt

def table(
    inputs: int,
    begin: float,
    end: float,
    outputs: int,
    filter: int,
    channels: int,
    mirrored: bool,
    flipped: bool,
    level: int,
    /,
) -> bytes | None: ...
def resize(
    pixels: npt.NDArray[Any],
    out: npt.NDArray[Any],
    across: bytes | None,
    down: bytes | None,
    vertical_first: bool,
    level: int,
    /,
) -> None: ...
def use_avx2(yes: bool, /) -> bool: ...
def level() -> int: ...
