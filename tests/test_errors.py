"""An old name works with a warning until the release that removes it; the tests of that release fail if it is left."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from presize.cli import show_warning
from presize.errors import PresizeWarning, deprecated

RENAMED: dict[str, Any] = {"__name__": "presize.anywhere", "deprecated": deprecated}
"""Stands for a module of presize: a function of two layers, one of whose parameters was renamed."""
exec(
    """
def build(jobs=None, workers=None):
    return build_inside(jobs, workers)

def build_inside(jobs, workers):
    if jobs is not None:
        deprecated("build(jobs=)", instead="build(workers=)", until="0.3", version="0.1.0")
    return workers if jobs is None else jobs
""",
    RENAMED,
)


@pytest.mark.parametrize(
    ("version", "until", "reason"),
    [
        ("0.1.0", "0.3", "two releases before"),
        ("0.2.9", "0.3", "the last release with the old name"),
        ("0.9.0", "0.10", "numbers, not texts"),
        ("0.10.2", "1.0", "the next major release"),
        ("0.2.0rc1", "0.3", "a candidate of an earlier release"),
    ],
)
def test_before_its_release_an_old_name_is_a_warning_with_the_new_one(version: str, until: str, reason: str) -> None:
    with pytest.warns(DeprecationWarning) as caught:
        deprecated("--old", instead="--new", until=until, version=version)
    said = [str(warning.message) for warning in caught]
    assert said == [f"--old is deprecated and will be removed in presize {until}; use --new"], reason


@pytest.mark.parametrize(
    ("version", "until", "reason"),
    [
        ("0.3.0", "0.3", "the release without it"),
        ("0.3.0rc1", "0.3", "its candidate"),
        ("0.3.0.dev0", "0.3", "what becomes it"),
        ("0.10.0", "0.9", "numbers, not texts"),
        ("1.0.0", "0.12", "a later major release"),
    ],
)
def test_from_its_release_on_an_old_name_is_an_error_that_says_what_to_do(
    version: str, until: str, reason: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        deprecated("--old", instead="--new", until=until, version=version)
    said = f"--old should have been removed in presize {until}, but this is {version}: remove it"
    assert str(caught.value) == said, reason


def test_the_version_is_that_of_presize_unless_given() -> None:
    with pytest.raises(RuntimeError, match=r"^f\(\) should have been removed in presize 0\.0, but this is \d"):
        deprecated("f()", instead="g()", until="0.0")
    with pytest.warns(DeprecationWarning, match="removed in presize 999"):
        deprecated("f()", instead="g()", until="999.0")


def test_the_warning_points_at_the_code_that_uses_the_old_name() -> None:
    with pytest.warns(PresizeWarning, match=r"use build\(workers=\)$") as caught:
        assert RENAMED["build"](jobs=3) == 3
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert RENAMED["build"](workers=3) == 3


def test_the_command_line_shows_it_as_it_shows_other_warnings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always", PresizeWarning)
        monkeypatch.setattr("warnings.showwarning", show_warning)
        deprecated("--old", instead="--new", until="0.3", version="0.1.0")
    said = "presize: warning: --old is deprecated and will be removed in presize 0.3; use --new\n"
    assert capsys.readouterr().err == said
