import numpy as np
import numpy.typing as npt

def decode(
    data: bytes | memoryview,
    out: npt.NDArray[np.uint8],
    channels: int,
    shape: tuple[int, int],
    box: tuple[int, int, int, int],
    scale: int,
    /,
) -> bool: ...
def decode_into(
    data: bytes | memoryview, sink: object, channels: int, shape: tuple[int, int], scale: int, /
) -> bool: ...
def recode(data: bytes, out: npt.NDArray[np.uint8], interval: int, /) -> int: ...
def tile_lengths(data: bytes, scan: int, tiles: int, /) -> bytes | None: ...
def limit(level: int, /) -> int: ...
