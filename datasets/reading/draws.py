"""Random numbers as a pure function of (seed, epoch, visit): equal for any number of workers, in any order and
process, and after any resume. There is no state to pass on.

Counter-based: each number is SplitMix64's mixing of its place (presize.store.dealing.mix).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from presize.store.dealing import mix

_MASK = 2**64 - 1


@lru_cache(maxsize=32)
def hashed(*key: int) -> npt.NDArray[np.uint64]:
    """One hash of some whole numbers, such as (seed, epoch), each taken modulo 2**64: shape (1,), not to be written."""
    found = np.zeros(1, np.uint64)
    for number in key:
        found = mix(found ^ np.uint64(number & _MASK))
    return found


def uniform(seed: int, epoch: int, keys: npt.NDArray[np.int64], count: int, view: int = 0) -> npt.NDArray[np.float64]:
    """`count` numbers from [0, 1) for each of `keys` (n,): an array (n, count), 53 random bits each.

    Those of another `view` are independent of these.
    """
    # View 0 keeps the numbers that were drawn before there were others.
    visits = mix(hashed(seed, epoch, *([view] if view else [])) ^ keys.astype(np.uint64))
    counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
    return _unit(mix(visits[:, np.newaxis] + counters))


def uniform_at(positions: npt.NDArray[np.int64], key: tuple[int, int, int]) -> npt.NDArray[np.float64]:
    """A number from [0, 1) for each of `positions` (n,), under `key` (seed, epoch, stream), 53 random bits each."""
    return _unit(mix(np.asarray(positions).astype(np.uint64) ^ hashed(*key)))


def _unit(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    return np.asarray((hashes >> np.uint64(11)) * 2.0**-53)
