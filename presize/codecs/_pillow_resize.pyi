from typing import Any

import numpy.typing as npt

def table(
    inputs: int,
    outputs: int,
    whole_inputs: int,
    whole_outputs: int,
    skipped_inputs: int,
    skipped_outputs: int,
    begin: float,
    end: float,
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
def level() -> int: ...
