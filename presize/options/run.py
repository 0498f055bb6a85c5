"""RunOptions: how a build is carried out; BuildPart: how it is divided."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Self

from presize.errors import OptionError
from presize.options.checks import Engine, OnError, check_choice, check_range, check_type


@dataclass(frozen=True)
class ErrorBudget:
    """How many rejected images a build tolerates. Any number when neither attribute is given.

    Attributes:
        count: at most so many, from 0.
        share: at most this share of all samples, from 0 to 1.
    """

    count: int | None = None
    share: Fraction | float | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            check_range("max_errors", self.count, 0, 2**63 - 1)
        if self.share is not None and not (isinstance(self.share, Real) and 0 <= self.share <= 1):
            raise OptionError(f"max_errors: expected a share from 0 to 1, got {self.share!r}")
        if self.count is not None and self.share is not None:
            raise OptionError(f"max_errors: expected a count or a share, got both {self.count} and {self.share}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """``"100"`` is a count from 0 up, ``"0.5%"`` a share from 0 to 100 percent.

        >>> ErrorBudget.parse("0.5%").allows(1, of=200)
        True
        """
        match = re.fullmatch(r"(\d{1,18})|(\d{1,3}(?:\.\d{1,9})?)%", text.strip(), re.ASCII)
        if not match or (match[2] and Fraction(match[2]) > 100):
            raise OptionError(f"max_errors: expected a count or a percentage, such as 100 or 0.5%, got {text!r}")
        return cls(count=int(match[1])) if match[1] else cls(share=Fraction(match[2]) / 100)

    def __str__(self) -> str:
        """What parse() reads, or ``unlimited``."""
        if self.share is not None:
            return f"{float(self.share * 100):.9f}".rstrip("0").rstrip(".") + "%"
        return "unlimited" if self.count is None else str(self.count)

    def allows(self, rejected: int, of: int) -> bool:
        """True when `rejected` of `of` samples are within the budget."""
        if self.count is not None:
            return rejected <= self.count
        return self.share is None or rejected <= self.share * of


_MAX_PARTS = 100_000


@dataclass(frozen=True)
class BuildPart:
    """A share of a build.

    Attributes:
        number: which part, from 1 to `of`.
        of: how many there are, at most 100,000.
    """

    number: int
    of: int

    def __post_init__(self) -> None:
        check_range("part", self.of, 1, _MAX_PARTS)
        check_range("part", self.number, 1, self.of)

    @classmethod
    def parse(cls, text: str) -> Self:
        """``"3/8"`` is the third of eight.

        >>> BuildPart.parse("3/8")
        BuildPart(number=3, of=8)
        """
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip(), re.ASCII)
        if not match or not 1 <= int(match[1]) <= int(match[2]) <= _MAX_PARTS:
            raise OptionError(f"part: expected I/N, part I of N, from 1/N to N/N, got {text!r}")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        """What parse() reads."""
        return f"{self.number}/{self.of}"


_MAX_TIMEOUT_S = 1_000_000
_SCHEDULERS = {"dask": "tcp://HOST:8786", "ray": "HOST:6379", "spark": "spark://HOST:7077"}


@dataclass(frozen=True)
class RunOptions:
    """How a build is carried out. Only `update` changes where samples are stored; nothing here changes an image.

    Attributes:
        jobs: processes, at least 1; None uses every core this process may use.
        engine: "processes" contains crashes: an image that ends its decoder, twice, is rejected; "sequential" uses
            this process alone, whatever `jobs` is, and contains nothing. "dask", "ray" and "spark" have the workers of
            a cluster do it, which contain crashes as "processes" does.
        on_error: "skip" records images that cannot be stored and goes on; "fail" stops at the first.
        max_errors: how many images a build tolerates that are rejected or cannot be read.
        overwrite: replace a dataset that was made from another source or with other options.
        update: bring a dataset up to date with its source. It gives the same samples as a build from scratch;
            they may lie in other shards.
        verify: read every record that `update` keeps, and make those again that are damaged.
        report: write report.html, a page about the build, into each dataset.
        timeout_s: an image that takes longer is tried once more, alone, and then rejected; above 0 and up to
            1,000,000 seconds. Not by "sequential".
        scheduler: the address of the cluster's: ``tcp://HOST:8786`` of Dask, ``HOST:6379`` or ``auto`` of Ray,
            ``spark://HOST:7077`` or ``yarn`` of Spark. None for the other engines, which have none.
    """

    jobs: int | None = None
    engine: Engine = "processes"
    on_error: OnError = "skip"
    max_errors: ErrorBudget = ErrorBudget()
    overwrite: bool = False
    update: bool = False
    verify: bool = False
    report: bool = True
    timeout_s: float = 300.0
    scheduler: str | None = None

    def __post_init__(self) -> None:
        check_choice("backend", self.engine, Engine)
        check_choice("on_error", self.on_error, OnError)
        check_type("max_errors", self.max_errors, ErrorBudget)
        check_type("overwrite", self.overwrite, bool)
        check_type("report", self.report, bool)
        check_type("update", self.update, bool)
        if self.update and self.overwrite:
            raise OptionError("update: it keeps what is there and --overwrite replaces it; choose one")
        check_type("verify", self.verify, bool)
        if self.verify and not self.update:
            raise OptionError("verify: it reads what --update keeps; add --update, or run presize verify OUT")
        if self.jobs is not None:
            check_range("jobs", self.jobs, 1, 4096)
        if not 0 < self.timeout_s <= _MAX_TIMEOUT_S:
            raise OptionError(f"timeout_s: expected seconds above 0, up to {_MAX_TIMEOUT_S:,}, got {self.timeout_s!r}")
        self._check_cluster()

    def _check_cluster(self) -> None:
        on_cluster = self.engine not in ("processes", "sequential")
        if on_cluster and not self.scheduler:
            raise OptionError(
                f"scheduler: --backend {self.engine} needs the address of the cluster's, such as "
                f"{_SCHEDULERS[self.engine]}"
            )
        if not on_cluster and self.scheduler is not None:
            raise OptionError(
                f"scheduler: --backend {self.engine} has none, got {self.scheduler!r}; it is for "
                f"{', '.join(_SCHEDULERS)}"
            )
        if on_cluster and self.jobs is not None:
            raise OptionError(
                f"jobs: with --backend {self.engine} the cluster decides how much runs at once, got {self.jobs}"
            )
