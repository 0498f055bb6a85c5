"""A source that tests of builds modify."""

from __future__ import annotations

from pathlib import Path

import pytest

from builds import Builder, write_photos


@pytest.fixture
def build(tmp_path: Path) -> Builder:
    """Return builds of 12 images in two classes."""
    return Builder(write_photos(tmp_path / "photos"))
