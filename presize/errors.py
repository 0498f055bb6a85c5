"""The errors presize raises for what a user or the outside world did.

PresizeError                 one clear line; the command line prints it and exits with 1
├── OptionError              an option has a value it cannot have (the command line exits with 2)
├── SourceError              the source folder or the label table cannot be used as it is
├── ImageError               one image cannot be stored; a build records it and goes on
│   └── NotAnImageError      the bytes are not those of an image format that presize reads
├── DatasetError             a dataset is missing, unfinished, damaged, newer than this presize, or foreign
├── BuildError               a build cannot begin or go on; what is finished is kept and can be resumed
├── LoaderError              a loader cannot go on: one of its workers died, say
├── BenchError               a benchmark cannot begin or go on; what it has measured is kept
└── DiagnosisError           there is nothing to diagnose: the loader or the training step failed, and how

PresizeWarning               something is allowed but probably not what was meant

Anything else that presize raises is a mistake in presize.
"""

from __future__ import annotations


class PresizeError(Exception):
    """Base of all errors that are not mistakes in presize. ``str(error)`` is one line."""


class OptionError(PresizeError, ValueError):
    """An option has a value it cannot have; names the option, the value and what it takes."""


class SourceError(PresizeError):
    """The source folder or the label table cannot be used as it is."""


class ImageError(PresizeError):
    """One image cannot be stored. ``str(error)`` is the reason, without the image's name."""


class NotAnImageError(ImageError):
    """The bytes are not those of an image format that presize reads."""


class DatasetError(PresizeError):
    """A dataset is missing, unfinished, damaged, newer than this presize, or not one at all."""


class BuildError(PresizeError):
    """A build cannot begin or go on. What it had finished is kept, and the same command resumes it."""


class LoaderError(PresizeError):
    """A loader cannot go on: one of its workers died, or failed by a mistake in presize."""


class BenchError(PresizeError):
    """A benchmark cannot begin or go on. What it has measured is kept."""


class DiagnosisError(PresizeError):
    """There is nothing to diagnose: the loader or the training step failed. ``__cause__`` is its own error."""


class PresizeWarning(UserWarning):
    """Something is allowed but probably not what was meant."""
