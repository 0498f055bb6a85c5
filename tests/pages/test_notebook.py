"""Output in notebooks, and a notebook that is run."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import nbclient
import nbformat
import pytest

from builds import SERIAL, SMALL
from pages import parsed
from presize import ProgressBar, build_dataset
from presize.datasets import LMDBDataset
from presize.options import BuildOptions, ImageOptions, Size
from presize.pages.gallery import build_html

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def alts(html: str) -> list[str | None]:
    return [value for name, value in parsed(html).attributes if name == "alt"]


def test_a_dataset_shows_some_of_its_images(dataset: Path) -> None:
    data = LMDBDataset(dataset)
    shown = [0, 8, 16, 24, 31, 39, 47, 55]
    assert alts(data._repr_html_()) == [f"stored: {data.data.path(sample)}" for sample in shown]
    assert "56 samples" in data._repr_html_()
    assert alts(data.subset([7, 3])._repr_html_()) == [f"stored: {data.data.path(sample)}" for sample in (7, 3)]
    assert alts(data.subset([])._repr_html_()) == []


def test_a_build_shows_its_result(raw: Path, tmp_path: Path) -> None:
    options = BuildOptions(ImageOptions((Size(24, 24), Size(16, 16))))
    html = build_dataset(raw, tmp_path / "out", options, SERIAL)._repr_html_()
    assert len(alts(html)) == 8
    assert "56 images, " in html
    assert "4 images rejected" in html


def test_a_build_to_a_url_shows_only_its_facts() -> None:
    html = build_html("s3://<b>/OUT", ["5 images"])
    assert alts(html) == []
    assert "".join(parsed(html).text).split() == ["s3://<b>/OUT", "5", "images"]


def test_a_bar_counts_every_file_of_a_build(raw: Path, tmp_path: Path) -> None:
    text = io.StringIO()
    with ProgressBar(file=text) as bar:
        build_dataset(raw, tmp_path / "out", SMALL, SERIAL, on_plan=bar.on_plan, on_shard=bar.on_shard)
    last = text.getvalue().split("\r")[-1]
    assert "60/60" in last
    assert "4 rejected" in last


def test_a_bar_without_a_build_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar():
        pass
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_the_notebook_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = tmp_path / "work"
    place.mkdir()
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": os.fspath(place)}}
    ).execute()
    shown = [
        output["data"]["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", ())
    ]
    assert [len(alts(html)) for html in shown] == [8, 8, 0], "a build, a dataset, a diagnosis"


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
