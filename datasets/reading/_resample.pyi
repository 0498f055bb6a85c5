from typing import Any

import numpy.typing as npt

def resize(
    pixels: npt.NDArray[Any], out: npt.NDArray[Any], across: bytes, down: bytes, linear: bool, window: int, /
) -> bool: ...
def window_bytes() -> int: ...
