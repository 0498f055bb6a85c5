"""Errors that presize raises for mistakes of users and failures of the environment. Any other error is a bug."""

from __future__ import annotations

import inspect
import re
import warnings


class PresizeError(Exception):
    """Base class of all errors that are not bugs in presize. ``str(error)`` is one line."""


class OptionError(PresizeError, ValueError):
    """An option has an invalid value. The message names the option, the value and what is expected."""


class SourceError(PresizeError):
    """The source folder or the label table cannot be used as it is."""


class ImageError(PresizeError):
    """One image cannot be stored. ``str(error)`` is the reason, without the image's name."""


class NotAnImageError(ImageError):
    """The bytes are not in an image format that presize reads."""


class UnreadableError(ImageError):
    """The file of an image or its companion cannot be read now, whatever its content. Later runs retry it."""


class CrashError(ImageError):
    """Decoding an image killed its process, took too long, or ran out of memory. It may succeed on another machine."""


class DatasetError(PresizeError):
    """A dataset is missing, unfinished, damaged, written by a newer presize, or not a presize dataset."""


class BuildError(PresizeError):
    """A build cannot start or continue. Finished shards are kept; running it again resumes it."""


class RemoteError(PresizeError):
    """An object store or a web server cannot be reached, refuses a request, or holds something unexpected."""


class LoaderError(PresizeError):
    """A loader cannot start or continue: a worker died or did not answer in time, memory or another resource ran out,
    or the loader is in use by another epoch or process."""


class BenchError(PresizeError):
    """A benchmark cannot start or continue. Its measurements are kept."""


class DiagnosisError(PresizeError):
    """A diagnosis cannot start or continue. If the loader or the training step failed, ``__cause__`` is that error."""


class PresizeWarning(UserWarning):
    """Something is allowed, but probably not intended."""


class PresizeDeprecationWarning(PresizeWarning, DeprecationWarning):
    """An old name was used, which a later release removes. The message names the new one."""


def warn(message: str, category: type[PresizeWarning] = PresizeWarning) -> None:
    """Issue a PresizeWarning that points at the code which called presize."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "presize":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level + 1)


def deprecated(name: str, *, instead: str, until: str, version: str | None = None) -> None:
    """Warn that an old name was used: call this where an old function, parameter or option still works.

    Args:
        name: the old name as users write it, such as ``build_dataset(jobs=)`` or ``--jobs``.
        instead: the new name.
        until: the minor release that removes the old name, such as ``"0.3"``.
        version: the version of presize; the installed one by default.

    Raises:
        RuntimeError: `version` has reached `until`, so the tests of that release fail until the old name is removed.
    """
    if version is None:
        import presize  # imports this module

        version = presize.__version__
    if _minor_release(version) >= _minor_release(until):
        raise RuntimeError(f"{name} should have been removed in presize {until}, but this is {version}: remove it")
    message = f"{name} is deprecated and will be removed in presize {until}; use {instead}"
    warn(message, PresizeDeprecationWarning)


def _minor_release(version: str) -> tuple[int, ...]:
    """Return ``(0, 3)`` for "0.3", "0.3.1" and "0.3.0rc1"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
