"""Random numbers as a pure function of (seed, epoch, visit): the same for any number of workers, in any
order, in any process, after any resume. No state, so nothing to hand on and nothing to repeat by mistake.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from presize.store.dealing import mix

_MASK = 2**64 - 1


def uniform(seed: int, epoch: int, keys: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.float64]:
    """`count` numbers from [0, 1) for each of `keys` (n,): an array (n, count), 53 random bits each.

    `seed` and `epoch` are whole numbers; those above 64 bits are taken modulo 2**64. Counter-based:
    each number is SplitMix64's mixing of its place, as in presize.build.plan.
    """
    stream = mix(mix(np.array([seed & _MASK], np.uint64)) ^ np.uint64(epoch & _MASK))
    visits = mix(stream ^ keys.astype(np.uint64))
    counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
    return np.asarray((mix(visits[:, np.newaxis] + counters) >> np.uint64(11)) * 2.0**-53)
