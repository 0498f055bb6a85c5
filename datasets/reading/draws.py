"""Random numbers, and a keyed permutation, as pure functions of (seed, epoch, position): equal for any number of
workers, in any order and process, and after any resume. There is no state to pass on.

Numbers are counter-based: each is SplitMix64's mixing of its place (presize.store.dealing.mix). The permutation is
computed position by position: J. Black and P. Rogaway, Ciphers with Arbitrary Finite Domains (CT-RSA 2002), methods 1
to 3; M. Luby and C. Rackoff, How to Construct Pseudorandom Permutations from Pseudorandom Functions (1988).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from presize.store.dealing import mix

_MASK = 2**64 - 1


@lru_cache(maxsize=32)
def hashed(*key: int) -> npt.NDArray[np.uint64]:
    """One hash of some whole numbers, each taken modulo 2**64: shape (1,), not to be written."""
    found = np.zeros(1, np.uint64)
    for number in key:
        found = mix(found ^ np.uint64(number & _MASK))
    return found


def uniform(seed: int, epoch: int, keys: npt.NDArray[np.int64], count: int, view: int = 0) -> npt.NDArray[np.float64]:
    """`count` numbers from [0, 1) for each of `keys`, (n, count), 53 random bits each. Another `view` has others."""
    # View 0 keeps the numbers that were drawn before there were others.
    visits = mix(hashed(seed, epoch, *([view] if view else [])) ^ keys.astype(np.uint64))
    counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
    return _unit(mix(visits[:, np.newaxis] + counters))


def uniform_at(positions: npt.NDArray[np.int64], key: tuple[int, int, int]) -> npt.NDArray[np.float64]:
    """A number from [0, 1) for each of `positions` (n,), under `key` (seed, epoch, stream), 53 random bits each."""
    return _unit(mix(np.asarray(positions).astype(np.uint64) ^ hashed(*key)))


def _unit(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    return np.asarray((hashes >> np.uint64(11)) * 2.0**-53)


_SORTED_LENGTH = 1024
"""Permutations up to this length are sorted: on so few positions, a Feistel network of few rounds is far from uniform.
"""

_ROUNDS = 6
"""After four rounds the distance of positions that are a side apart still shows (13 standard deviations, at 1,031
samples over 4,000 seeds); after six it does not."""


def permute(positions: npt.NDArray[np.int64], length: int, key: tuple[int, int, int]) -> npt.NDArray[np.int64]:
    """Permute `positions`, int64 (n,), by the permutation of 0 ... length - 1 for `key`, (seed, epoch, stream).

    Short ones sort positions by their hashes. Longer ones are Feistel networks on pairs of numbers below (a, b), with
    a·b barely above `length`; a result beyond `length` is sent through again.
    """
    if length <= _SORTED_LENGTH:
        return np.asarray(_sorted_permutation(length, key)[positions])
    rounds, (a, b), end = _round_keys(key), _sides(length), np.uint64(length)
    walking = np.asarray(positions).astype(np.uint64)
    found = np.empty(len(walking), np.int64)
    at: npt.NDArray[np.intp] | slice = slice(None)
    while len(walking):
        left, right = walking // b, walking % b
        for even, odd in zip(rounds[::2], rounds[1::2], strict=True):
            # Half of a hash, or the sum would wrap at 2^64 and lose the bijection.
            left = (left + (mix(right ^ even) >> np.uint64(1))) % a
            right = (right + (mix(left ^ odd) >> np.uint64(1))) % b
        walking = left * b + right
        found[at] = walking
        beyond = np.flatnonzero(walking >= end)
        walking = walking[beyond]
        at = beyond if isinstance(at, slice) else at[beyond]
    return found


@lru_cache(maxsize=16)
def _sorted_permutation(length: int, key: tuple[int, int, int]) -> npt.NDArray[np.int64]:
    return np.argsort(mix(np.arange(length, dtype=np.uint64) ^ hashed(*key)), kind="stable")


@lru_cache(maxsize=16)
def _round_keys(key: tuple[int, int, int]) -> tuple[np.uint64, ...]:
    return tuple(mix(np.arange(_ROUNDS, dtype=np.uint64) ^ hashed(*key)))


@lru_cache(maxsize=16)
def _sides(length: int) -> tuple[np.uint64, np.uint64]:
    """(a, b), nearly equal, a·b at least `length` and as little above it as 4,096 tries find."""
    least = math.isqrt(length - 1) + 1
    a = np.arange(least, min(least + least // 2, least + 4096) + 1, dtype=np.uint64)
    b = (np.uint64(length - 1) // a) + np.uint64(1)
    best = np.argmin(a * b)
    return a[best], b[best]
