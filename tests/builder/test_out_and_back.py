"""Datasets exported as tar or Parquet and built again with --size keep: the samples are equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from builds import SERIAL
from captioned import FILES, ROWS, captioned
from presize.builder.run import build_dataset
from presize.options import KEEP, BuildOptions, ExportLayout, Format, ImageOptions
from presize.store.dataset import Dataset
from presize.store.export import export_dataset

PATHS: dict[ExportLayout, list[str]] = {
    "tar": ["dogs/sub/b.jpg", "cats/a_png.jpg", "cats/a.jpg", "cats/my_best_cat.jpg"],
    "parquet": FILES,
}
"""Rows of captioned.ROWS that a tar can hold: no dots in names, and JPEGs as .jpg."""


@pytest.mark.parametrize("layout", ["tar", "parquet"])
@pytest.mark.parametrize("format", ["jpeg", "png", "webp"])
def test_out_and_back_gives_equal_samples(layout: ExportLayout, format: Format, tmp_path: Path) -> None:
    old = Dataset(captioned(tmp_path, format))
    export_dataset(old.root, tmp_path / "there", layout=layout)
    build_dataset(tmp_path / "there", tmp_path / "back", BuildOptions(ImageOptions((KEEP,), format=format)), SERIAL)
    new = Dataset(tmp_path / "back")
    stems = [path.rpartition(".")[0] for path in PATHS[layout]] if format == "jpeg" else None
    at = {new.path(i).rpartition(".")[0]: i for i in range(len(new))}
    assert stems is None or sorted(at) == sorted(stems)
    by_pixels = {pixels.tobytes(): i for i, pixels in new.pixels(range(len(new)))}
    for i, pixels in old.pixels(range(len(old))):
        sample = by_pixels[pixels.tobytes()]
        assert new.shape(sample) == old.shape(i)
        assert stems is None or sample == at[stems[i]]
        for name in ("caption", "scores", "of"):
            assert new.column(name)[sample].as_py() == ROWS[i][name]
        assert new.column("label")[sample].as_py() == old.column("label")[i].as_py()


def test_parquet_keeps_the_class_names(tmp_path: Path) -> None:
    export_dataset(captioned(tmp_path), tmp_path / "there", layout="parquet")
    build_dataset(tmp_path / "there", tmp_path / "back", BuildOptions(ImageOptions((KEEP,))), SERIAL)
    assert Dataset(tmp_path / "back").manifest.classes == ("cat", "dog")
