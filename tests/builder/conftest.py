"""A source that tests of builds change at will."""

from __future__ import annotations

from pathlib import Path

import pytest

from builds import Builder, write_photos


@pytest.fixture
def build(tmp_path: Path) -> Builder:
    """Builds of 12 images in two classes."""
    return Builder(write_photos(tmp_path / "photos"))
