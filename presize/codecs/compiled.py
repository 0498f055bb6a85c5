"""Compiled code that is optional, and tried before it is trusted: it may change the time, never a byte.

Where it is not compiled, is switched off or fails its check, callers do the same by a library.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Literal, NamedTuple

from presize.errors import PresizeWarning

VARIABLE = "PRESIZE_DECODER"
"""The environment variable: "libjpeg" switches the compiled code off, "no-avx2" holds it to instructions that every
processor has, "auto" or nothing leaves it on."""


class SwitchedOff(NamedTuple):
    """Why compiled code is not used, and the warning of that, if there is one."""

    by: Literal["environment", "self-check"]
    reason: str
    warning: str = ""


@dataclass(eq=False)
class Compiled:
    """One extension module, checked at its first use in a process. A forked child inherits the outcome.

    Attributes:
        module: the extension; None where it is not compiled, or must not be used.
        difference: how the results of the module differ from the library's; None if they do not.
        name, instead: for messages: the code, and which library does what without it.
        off: why the code is not used; None if it is, or has not been tried yet.
    """

    module: ModuleType | None
    difference: Callable[[ModuleType], str | None]
    name: str
    instead: str
    off: SwitchedOff | None = field(default=None, init=False)
    _is_tried: bool = field(default=False, init=False)
    # Taken by the first thread, and never released.
    _right_to_warn: threading.Lock = field(default_factory=threading.Lock, init=False)

    def trusted(self) -> ModuleType | None:
        """The module, once it has been tried, by threads perhaps at the same time; None if there is none or it is off.

        There is no lock that a fork could leave locked."""
        module = self.module
        if module is not None and not self._is_tried:
            off = self._tried(module)
            if off is not None:
                self.off = off
                self.module = None
                if off.warning and self._right_to_warn.acquire(blocking=False):
                    warnings.warn(off.warning, PresizeWarning, stacklevel=3)
            self._is_tried = True
        return self.module

    def _tried(self, module: ModuleType) -> SwitchedOff | None:
        setting = os.environ.get(VARIABLE, "")
        if setting == "libjpeg":
            return SwitchedOff("environment", f"{VARIABLE}={setting}")
        if setting not in ("", "auto", "no-avx2"):
            said = f"{VARIABLE}: expected auto, no-avx2 or libjpeg, got {setting!r}"
            return SwitchedOff("environment", said, f"{said}; {self.instead}, as with libjpeg")
        if setting == "no-avx2":
            module.use_avx2(False)
        found = self.difference(module)
        if found is None:
            return None
        return SwitchedOff(
            "self-check",
            found,
            f"presize's own {self.name} failed its self-check and is switched off in this process: {found}. "
            f"{self.instead} instead: slower, and the pixels are right. Please report it",
        )
