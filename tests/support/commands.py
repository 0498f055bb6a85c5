"""A command, run in this process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ran:
    code: object
    out: str
    err: str
