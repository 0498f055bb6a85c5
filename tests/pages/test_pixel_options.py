"""report.html of builds with other pixels: stored images are compared with what they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from builds import REPORTED
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.options import KEEP, BuildOptions, ImageOptions, Size


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image each: a JPEG, 16 bits, and with transparency."""
    folder = tmp_path_factory.mktemp("raw")
    photo = smooth_image(90, 120)
    alpha = np.repeat(np.linspace(255, 0, 120).round().astype(np.uint8)[np.newaxis], 90, axis=0)
    cv2.imwrite(str(folder / "photo.jpg"), photo)
    cv2.imwrite(str(folder / "deep.png"), photo.astype(np.uint16) * 251)
    cv2.imwrite(str(folder / "alpha.png"), np.dstack((photo, alpha)))
    return folder


@pytest.mark.parametrize(
    ("options", "warnings", "done"),
    [
        ({"color": "rgba", "format": "png"}, 1, {"transparency": "kept", "more than 8 bits": "scaled to 8"}),
        ({"color": "rgba", "format": "png", "fit": "pad"}, 1, {"transparency": "kept"}),
        ({"depth": 16, "format": "raw"}, 1, {"transparency": "composited on white", "more than 8 bits": "kept"}),
        ({"depth": 16, "format": "png", "color": "rgba"}, 0, {"transparency": "kept", "more than 8 bits": "kept"}),
        ({"depth": 16, "format": "png", "color": "gray"}, 1, {"more than 8 bits": "kept"}),
        ({"filter": "nearest", "format": "png"}, 2, {"larger than stored": "resized, nearest<"}),
        ({"sizes": (KEEP,), "icc": "ignore"}, 2, {"in the stored format already": "stored unchanged"}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) and "format" in value else None,
)
def test_what_is_stored_is_compared_with_an_exact_resize(
    raw: Path, options: dict[str, Any], warnings: int, done: dict[str, str], tmp_path: Path
) -> None:
    image = ImageOptions(**{"sizes": (Size(40, 40),), "resize_backend": "pillow", **options})
    build_dataset(raw, tmp_path / "out", BuildOptions(image), REPORTED)
    page = (tmp_path / "out" / "report.html").read_text()
    said = {0: "no warnings", 1: "1 warning<", 2: "2 warnings<"}[warnings]
    assert f"3 images stored, {said}" in page
    assert "differ from their sources" not in page and "could not be compared" not in page
    for what, how in done.items():
        row = page[page.index(f'scope="row">{what}') :]
        assert how in row[: row.index("</tr>")]
