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
    whole_inputs: int = ...,
    whole_outputs: int = ...,
    skipped_inputs: int = ...,
    skipped_outputs: int = ...,
    /,
) -> bytes | None: ...
def resize(
    pixels: npt.NDArray[Any],
    out: npt.NDArray[Any],
    across: bytes | None,
    down: bytes | None,
    vertical_first: bool,
    level: int,
    alpha: bool = ...,
    /,
) -> None: ...
def row_sink(
    height: int,
    width: int,
    out: npt.NDArray[Any],
    across: bytes,
    down: bytes,
    level: int,
    behind: object | None = ...,
    /,
) -> object: ...
def limit(level: int, /) -> int: ...
def level() -> int: ...
