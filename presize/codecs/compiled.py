"""Optional compiled code, checked before it is used. It changes speed, never a byte. Where it is not compiled, is
switched off or fails its check, callers fall back to a library."""

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
"""Environment variable: "libjpeg" switches the compiled code off, "no-avx2" limits it to instructions that every
processor has, "auto" or an empty value leaves it on."""


class SwitchedOff(NamedTuple):
    """Reason why compiled code is not used, and the text of the warning; empty for no warning."""

    by: Literal["environment", "self-check"]
    reason: str
    warning: str = ""


@dataclass(eq=False)
class Compiled:
    """One extension module, checked at its first use in a process. A forked child inherits the result.

    Attributes:
        module: the extension; None if it is not compiled or must not be used.
        difference: returns how the results of the module differ from the library's, or None if they are equal.
        name, instead: for messages: a name for the code, and the fallback ("Pillow resizes").
        off: why the code is not used; None if it is used, not compiled or not yet checked.
    """

    module: ModuleType | None
    difference: Callable[[ModuleType], str | None]
    name: str
    instead: str
    off: SwitchedOff | None = field(default=None, init=False)
    _is_tried: bool = field(default=False, init=False)
    # The first thread acquires it and never releases it.
    _right_to_warn: threading.Lock = field(default_factory=threading.Lock, init=False)

    def trusted(self) -> ModuleType | None:
        """Return the module after checking it; None if it is missing or switched off. Several threads may check it at
        once, with the same result: there is no lock, since a fork could leave it locked."""
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
            module.limit(0)
        found = self.difference(module)
        if found is None:
            return None
        return SwitchedOff(
            "self-check",
            found,
            f"presize's own {self.name} failed its self-check and is switched off in this process: {found}. "
            f"{self.instead} instead: slower, with correct pixels. Please report it",
        )
