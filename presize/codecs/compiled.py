"""Compiled code that is optional, and tried before it is trusted.

It may change the time, never a byte: where it is not compiled, is switched off or fails its check, callers do the same
by a library.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Literal, NamedTuple

from presize.errors import PresizeWarning

VARIABLE = "PRESIZE_DECODER"
"""The environment variable: "libjpeg" switches the compiled code off, "no-avx2" holds it to instructions that every
processor has, "auto" or nothing leaves it on."""


class SwitchedOff(NamedTuple):
    """Why compiled code is not used.

    Attributes:
        by: what has switched it off.
        reason: in words: the variable and its value, or what the self-check found.
        warning: what is said once a process, if anything.
    """

    by: Literal["environment", "self-check"]
    reason: str
    warning: str = ""


class Compiled:
    """One extension module, checked at its first use in a process. A forked child inherits the outcome.

    Attributes:
        off: why the code is not used; None if it is, or has not been tried yet.
    """

    def __init__(self, module: ModuleType | None, check: Callable[[ModuleType, str], SwitchedOff | None]) -> None:
        """
        Args:
            module: the extension; None where it is not compiled.
            check: gets the module and the value of PRESIZE_DECODER, and returns why it must not be used.
        """
        self.off: SwitchedOff | None = None
        self._module = module
        self._check = check
        self._is_tried = False
        self._right_to_warn = threading.Lock()  # taken by the first thread, and never released

    def trusted(self) -> ModuleType | None:
        """The module, once it has been tried; None if there is none, or it is switched off.

        Threads may try it at the same time, with the same outcome: there is no lock that a fork could leave locked.
        """
        module = self._module
        if module is not None and not self._is_tried:
            off = self._check(module, os.environ.get(VARIABLE, ""))
            if off is not None:
                self.off = off
                self._module = None
                if off.warning and self._right_to_warn.acquire(blocking=False):
                    warnings.warn(off.warning, PresizeWarning, stacklevel=3)
            self._is_tried = True
        return self._module
