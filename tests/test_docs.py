"""The documentation is true: its commands and programs run as written."""

from __future__ import annotations

import ast
import csv
import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import presize
import presize.datasets
from annotated import annotate
from builds import SERIAL, SMALL
from foreign import write_sources
from paired import write_pairs
from presize.builder.run import build_dataset
from presize.cli import cli
from presize.options import Companion, SourceOptions
from presize.sources.sample import SampleOptions, make_samples
from presize.sources.scan import scan
from presize.store.dataset import Dataset
from presize.store.index import INDEX_COLUMNS
from presize.store.manifest import read_manifest
from processes import run_command
from published import BIRDS, write_layouts, write_lists

ROOT = Path(__file__).parent.parent
QUICKSTART = ROOT / "docs" / "quickstart.md"
FIRST = [ROOT / "README.md", QUICKSTART]
"""Pages for newcomers: make test runs their commands and programs, make test-all those of the others."""
PAGES = [*FIRST, *sorted(set((ROOT / "docs").glob("*.md")) - {QUICKSTART})]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    """Return the presize commands in the console blocks of a page, in order."""
    lines = "".join(blocks(page, "console")).splitlines()
    return [line[2:] for line in lines if line.startswith("$ presize ")]


OPTIONAL = ("albumentations", "torchvision", "kornia", "webdataset", "datasets")
"""Libraries that programs import and no installation of presize brings."""


def needed(program: str) -> list[str]:
    return [name for name in OPTIONAL if re.search(rf"^(import|from) {name}\b", program, re.MULTILINE)]


TRAINING = next(block for block in blocks(QUICKSTART, "python") if "DataLoader" in block)

# Commands run in one process, and the programs of a page in another: importing takes as long as running.
RUN_COMMANDS = """
import shlex, sys
from presize.cli import main

for command in sys.argv[1:]:
    print("$", command, file=sys.stderr)
    try:
        main(shlex.split(command)[1:])
    except SystemExit as end:
        if end.code:
            raise
"""
RUN_PROGRAMS = """
import runpy, sys

for program in sys.argv[1:]:
    print("$ python", program, file=sys.stderr)
    runpy.run_path(program, run_name="__main__")
"""


MEASURING = ("presize bench ", "presize diagnose ")
ELSEWHERE = (*MEASURING, "presize fetch ", "presize upload ")
"""Commands that other tests run: those that measure take long, and tests/remote has a server, and runs the programs of
docs/remote.md."""
ALL_COMMANDS = list(dict.fromkeys(command for page in PAGES for command in commands(page)))
BUILDS = [command for command in ALL_COMMANDS if command.startswith("presize build ")]
FIRST_COMMANDS = list(dict.fromkeys(command for page in FIRST for command in commands(page)))
WITH_PROGRAMS = [page for page in PAGES if blocks(page, "python") and page.stem != "remote" and page not in FIRST]


def run(code: str, arguments: list[str], place: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    ran = run_command(command, timeout_s=300, cwd=place)
    assert ran.returncode == 0, ran.stderr


def write_tables(folder: Path) -> None:
    """Write the tables, and the folder of splits, that docs/data.md builds from."""
    photos = sorted(path.relative_to(folder / "RAW").as_posix() for path in (folder / "RAW").rglob("*.jpg"))[::3]
    (folder / "train.txt").write_text("".join(f"{path}\n" for path in photos))
    captions = "".join(f"{path};{words}\n" for path in photos for words in ("a shape", "in front of a gradient"))
    (folder / "captions.csv").write_text(f"file_name;caption\n{captions}")
    (folder / "digits.csv").write_text("path,label\n" + "".join(f"{path},{path[0]}\n" for path in photos))
    rows = [
        {
            "path": path, "label": path.split("-")[1], "shape": path.split("-")[2].split("/")[0], "score": i / 2,
            "tags": ["warm", "round", "large"][: i % 4], "title": None if i % 3 else f"number {i}",
        }
        for i, path in enumerate(photos)
    ]  # fmt: skip
    (folder / "tags.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for i, path in enumerate(photos):
        split = folder / "SPLITS" / ("val" if i % 3 else "train") / path
        split.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "RAW" / path, split)


def write_raw(folder: Path) -> None:
    """Write the folders that the first pages build from."""
    make_samples(folder / "RAW", SampleOptions(images=36, classes=3, long_side=420))
    make_samples(folder / "VAL", SampleOptions(images=9, classes=3, long_side=420, seed=1))
    photos = sorted(path.relative_to(folder / "RAW").as_posix() for path in (folder / "RAW").rglob("*.jpg"))[:9]
    table = "".join(f"{path},{'even' if i % 2 else 'odd'}\n" for i, path in enumerate(photos))
    (folder / "labels.csv").write_text(f"path,label\n{table}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the builds of all pages in order, the first pages' first, and return their folder. Takes half a minute."""
    folder = tmp_path_factory.mktemp("docs")
    write_raw(folder)
    annotate(sorted((folder / "RAW").rglob("*.jpg"))[:24], folder)
    write_tables(folder)
    write_pairs(folder)
    write_sources(folder)
    run_programs(ROOT / "docs" / "imports.md", folder)  # these write label tables
    run(RUN_COMMANDS, BUILDS, folder)
    assert (folder / "SIZES" / "160" / "manifest.json").exists()
    return folder


def run_programs(page: Path, folder: Path) -> None:
    """Run the programs of a page that need no other libraries, in one process."""
    programs = [block for block in blocks(page, "python") if block != TRAINING and not needed(block)]
    names = [f"{page.stem}_{number}.py" for number in range(len(programs))]
    for name, program in zip(names, programs, strict=True):
        (folder / name).write_text(program)
    run(RUN_PROGRAMS, names, folder)


def test_the_documentation_shows_every_command() -> None:
    assert {shlex.split(command)[1] for command in ALL_COMMANDS} == set(cli.commands)


def test_the_page_of_commands_lists_every_command() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "cli.md").read_text("utf-8"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(cli.commands)


PUBLIC = {f"{module.__name__}.{name}" for module in (presize, presize.datasets) for name in module.__all__}


def test_the_page_of_python_lists_the_public_names_and_no_others() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert sorted(re.findall(r"^- `([\w.]+)`$", page, re.MULTILINE)) == sorted(PUBLIC)


def test_each_command_has_its_function() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    functions = dict(re.findall(r"\| `(\w+)` \| `([\w.]+)` ", page))
    assert set(functions) == set(cli.commands) - {"completion"}
    assert set(functions.values()) <= PUBLIC
    others = {name for name, function in functions.items() if not function.split(".")[-1].startswith(name)}
    assert others == {"sample"}


NOTEBOOKS = {
    path: [
        "".join(cell["source"]) for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"
    ]
    for path in sorted((ROOT / "docs").glob("*.ipynb"))
}
EXAMPLES = {page: blocks(page, "python") for page in PAGES} | NOTEBOOKS


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.name)
def test_examples_use_only_public_names(page: Path) -> None:
    trees = list(map(ast.parse, EXAMPLES[page]))
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    used = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    whole = {
        alias.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    assert {name for name in used if name.startswith("presize")} <= PUBLIC
    assert {name for name in whole if name.startswith("presize")} <= {"presize", "presize.datasets"}


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "development"], ids=lambda page: page.name)
def test_pages_name_no_private_name(page: Path) -> None:
    names = set(re.findall(r"`(presize(?:\.\w+)+)", page.read_text("utf-8")))
    assert names - PUBLIC <= {"presize.datasets"}


OPTIONS = {flag: option for command in cli.commands.values() for option in command.params for flag in option.opts}
OPTIONS |= {flag: option for option in cli.commands["build"].params for flag in (*option.opts, *option.secondary_opts)}
NOT_OURS = {"--array", "--dependency", "--ipc"}
"""Options of Slurm and Docker."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_existing_options(page: Path) -> None:
    named = re.findall(r"`(?:presize[^`]*)?(--[a-z][\w-]*)[^`]*`", page.read_text("utf-8"))
    typed = [flag for command in commands(page) for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", command)]
    assert {*named, *typed} <= {*OPTIONS, *NOT_OURS, "--help", "--debug", "--no-tiles"}


def test_every_option_of_a_build_is_explained_on_a_page() -> None:
    pages = "".join(page.read_text("utf-8") for page in PAGES)
    flags = [(*option.opts, *option.secondary_opts) for option in cli.commands["build"].params]
    assert [
        names
        for names in flags
        if names[0].startswith("--") and not any(re.search(rf"{name}\b", pages) for name in names)
    ] == []


TABLES = [
    (page, flag, [row.split("|")[1].strip(" `") for row in rows.splitlines()])
    for page in PAGES
    for flag, rows in re.findall(
        r"^\| `(--[\w-]+)` \|.*\n\|[-| :]+\n((?:\|.*\n?)+)", page.read_text("utf-8"), re.MULTILINE
    )
]


def test_a_table_of_an_option_lists_its_choices() -> None:
    tried = []
    for page, flag, rows in TABLES:
        option = next(
            each for each in cli.commands["export" if page.stem == "derive" else "build"].params if flag in each.opts
        )
        choices = set(getattr(option.type, "choices", ()))
        tried += [flag] if choices else []
        besides = {"--backend": {"processes", "sequential"}, "--subsampling": {"png"}}.get(flag, set())
        assert not choices or set(rows) - besides == choices - besides, (page.name, flag)
    assert len(tried) >= 5


LLMS = ROOT / "docs" / "llms.txt"


def test_the_page_for_coding_assistants_follows_the_code() -> None:
    """Regenerate it with tools/make_llms.py."""
    renewed = runpy.run_path(str(ROOT / "tools" / "make_llms.py"))["renewed"]
    page = LLMS.read_text("utf-8")
    assert renewed(page) == page
    assert renewed(page.replace("fuse=False", "fuse=True").replace("--subsampling", "--chroma")) == page


def test_the_page_for_coding_assistants_names_only_existing_options_commands_and_pages() -> None:
    page = LLMS.read_text("utf-8")
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", page)) <= {*OPTIONS, "--lr", "--shm-size"}
    assert set(re.findall(r"presize ([a-z]+) [A-Z\[-]", page)) <= set(cli.commands)
    assert not [name for name in re.findall(r"\w+\.md", page) if not (ROOT / "docs" / name).exists()]


def test_every_page_is_linked_from_the_first() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    linked = set(re.findall(r"\]\((\w+\.md)\)", index))
    assert linked == {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}


def test_the_page_of_choices_has_the_figures_of_its_pictures() -> None:
    page = (ROOT / "docs" / "choosing.md").read_text("utf-8")
    with (ROOT / "docs" / "pictures" / "losses.csv").open(encoding="utf-8") as table:
        rows = [
            f"| {row['value']} | {row['kb']} |" + f" {row['psnr_db']} |" * bool(row["psnr_db"])
            for row in csv.DictReader(table)
        ]
    assert [row for row in rows if row not in page] == []


@pytest.mark.slow
def test_commands_and_programs_of_the_first_pages_run_as_written(tmp_path: Path) -> None:
    write_raw(tmp_path)
    commands = [command for command in FIRST_COMMANDS if not command.startswith(ELSEWHERE)]
    run(RUN_COMMANDS, sorted(commands, key=lambda command: command not in BUILDS), tmp_path)
    for page in FIRST:
        run_programs(page, tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    ran = run_command([sys.executable, "train.py"], timeout_s=300, cwd=tmp_path)
    assert re.fullmatch(r"epoch 0: loss \d+\.\d+\nepoch 1: loss \d+\.\d+\n", ran.stdout), ran.stderr


@pytest.mark.slow
def test_commands_run_as_written(place: Path) -> None:
    others = [command for command in ALL_COMMANDS if command not in BUILDS and not command.startswith(ELSEWHERE)]
    run(RUN_COMMANDS, others, place)


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURING)
def test_commands_that_measure_run_as_written(name: str, place: Path) -> None:
    run(RUN_COMMANDS, [command for command in ALL_COMMANDS if command.startswith(name)], place)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PROGRAMS, ids=lambda page: page.name)
def test_programs_run_as_written(page: Path, place: Path) -> None:
    run_programs(page, place)


@pytest.mark.slow
def test_published_lists_are_built_by_the_lines_of_the_page(tmp_path: Path) -> None:
    write_lists(tmp_path)
    scripts = [*blocks(ROOT / "docs" / "data.md", "bash"), *blocks(ROOT / "docs" / "pairs.md", "bash")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = run_command(["bash", "-e"], timeout_s=300, stdin="".join(scripts), env={"PATH": path}, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "rejected" not in ran.stdout
    found = {path.parent.name: Dataset(path.parent) for path in tmp_path.glob("*/manifest.json")}
    columns = {name: [*data.index.schema.names] for name, data in found.items()}
    birds = ("001.Black_footed_Albatross", "002.Laysan_Albatross")
    assert {name: data.manifest.classes for name, data in found.items()} == {
        "PLACES": None, "FOOD": ("apple_pie", "waffles"), "CUB": birds, "CUB_SPLIT": birds, "PETS": None,
        "CELEBA": None, "DOGS": ("boston_bull", "dingo"), "PLANES": None, "VOC": None, "TINY": ("n02", "n03"),
    }  # fmt: skip
    labels = {name: data.column("label").to_pylist() for name, data in found.items() if "label" in columns[name]}
    assert labels == {name: [0, 1] for name in ("PLACES", "FOOD", "CUB", "CUB_SPLIT", "DOGS", "TINY")} | {
        "PETS": [1, 5], "PLANES": [1, -1],
    }  # fmt: skip
    assert found["CUB_SPLIT"].column("split").to_pylist() == ["test", "train"]
    assert found["CELEBA"].column("Male").to_pylist() == [1, -1]
    assert found["VOC"].column("path").to_pylist() == [
        f"JPEGImages/{photo}.jpg" for photo in ("2007_000032", "2008_000008")
    ]
    assert found["VOC"].companions == ("mask",)


LAYOUTS = re.findall(r"^\| (.*) \| `(.*--pair .*)` \|$", (ROOT / "docs" / "pairs.md").read_text("utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    write_layouts(folder := tmp_path_factory.mktemp("layouts"))
    return folder


@pytest.mark.parametrize(("files", "options"), LAYOUTS, ids=[options for _, options in LAYOUTS])
def test_the_options_of_a_layout_pair_its_images(files: str, options: str, layouts: Path) -> None:
    name = re.split(r"[:/\]]", files.strip("`["))[0].strip("`")
    given = shlex.split(options)
    value = {flag: given[given.index(flag) + 1] for flag in ("--labels", "--split", "--pair") if flag in given}
    labels = layouts / value["--labels"] if value.get("--labels", "none") != "none" else value.get("--labels")
    source = scan(
        layouts / name, SourceOptions(labels, split=value.get("--split")), companions=[Companion.parse(value["--pair"])]
    )
    paths = [path for path in source.table.column("path").to_pylist() if not path.endswith(".mat")]
    assert len(paths) == 2
    assert [path for path in paths if re.search(r"mask|seg|Segm|gtFine|annot|parts", path)] == []
    assert {reject.error for reject in source.rejects} <= {"NotAnImageError"}
    if "--split" in value:
        assert source.table.column("split").to_pylist() in (["train", "val"], ["training", "validation"])
    classes = {
        "a": ("a", "b"),
        "CUB": tuple(bird.split("/")[0] for bird in BIRDS),
        "presize export --to folder": ("cats", "dogs"),
    }
    assert source.classes == classes.get(name)


CLUSTERS = ROOT / "docs" / "clusters.md"
PARALLEL = """#!/usr/bin/env python3
import os, shlex, sys

separator = sys.argv.index(":::")
command = sys.argv[sys.argv.index("presize") : separator]
for value in sys.argv[separator + 1 :]:
    if os.system(shlex.join(word.replace("{}", value) for word in command)):
        sys.exit(1)
"""
"""Replacement for GNU parallel: runs the command for each value, on this machine."""


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["Slurm", "Kubernetes", "GNU parallel"])
def test_parts_by_a_scheduler_yield_the_dataset(scheduler: str, place: Path, tmp_path: Path) -> None:
    slurm, parallel = blocks(CLUSTERS, "bash")
    (pod,) = (json.loads(found)[-1] for found in re.findall(r"command: (\[.*\])", CLUSTERS.read_text()))
    script, variable, first = {
        "Slurm": (slurm, "SLURM_ARRAY_TASK_ID", 1),
        "Kubernetes": (pod, "JOB_COMPLETION_INDEX", 0),
        "GNU parallel": (parallel, "IGNORED", 0),
    }[scheduler]
    (tmp_path / "parallel").write_text(PARALLEL)
    (tmp_path / "parallel").chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    out = place / str(re.findall(r"OUT_\w+", script)[0])
    for number in range(first, first + (1 if scheduler == "GNU parallel" else 4)):
        ran = run_command(["sh", "-c", script], timeout_s=300, cwd=place, env={"PATH": path, variable: str(number)})
        assert ran.returncode == 0, ran.stderr
    assert build_dataset(place / "RAW", out).resumed == 36
    whole, parts = (read_manifest(place / name) for name in ("OUT_BY_PARTS", out.name))
    assert (parts.digest, parts.shards) == (whole.digest, whole.shards)


@pytest.mark.slow
def test_tables_of_coco_voc_and_yolo_have_every_box(place: Path) -> None:
    coco = Dataset(place / "OUT-COCO").index
    assert coco.column("bbox").to_pylist() == [[[1.5, 2, 3, 4], [5, 6, 7, 8]], []]
    assert coco.column("category").to_pylist() == [[1, 0], []]
    voc = Dataset(place / "OUT-VOC").index
    assert voc.column("bbox").to_pylist() == [[[0, 1, 30, 40], [4, 5, 7, 8]]]
    assert voc.column("name").to_pylist() == [["cat", "dog"]]
    yolo = Dataset(place / "OUT-YOLO")
    width, height = (yolo.numbers(side)[0] for side in ("width", "height"))
    shares = np.array(yolo.column("bbox").to_pylist()[0][0]) / [width, height, width, height]
    np.testing.assert_allclose(shares, [0.3, 0.4, 0.7, 0.6], rtol=1e-5)
    assert yolo.column("category").to_pylist() == [[2]]


@pytest.mark.slow
def test_yolos_trainers_get_images_and_labels(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "OUT-YOLO", tmp_path / "OUT-YOLO")
    (program,) = (block for block in blocks(ROOT / "docs" / "derive.md", "python") if "OUT-YOLO" in block)
    (tmp_path / "program.py").write_text(program)
    run(RUN_PROGRAMS, ["program.py"], tmp_path)
    images, labels = (sorted((tmp_path / "FOR_YOLO" / name).rglob("*.*")) for name in ("images", "labels"))
    assert [image.relative_to(tmp_path / "FOR_YOLO" / "images").as_posix() for image in images] == ["a/1.jpg"]
    assert [label.read_text() for label in labels] == ["2 0.500000 0.500000 0.400000 0.200000\n"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "number"),
    [(page, i) for page in PAGES for i, block in enumerate(blocks(page, "python")) if needed(block)],
    ids=lambda value: value.stem if isinstance(value, Path) else f"{value}",
)
def test_programs_with_other_libraries_run_as_written(page: Path, number: int, place: Path) -> None:
    program = blocks(page, "python")[number]
    for name in needed(program):
        try:
            importlib.import_module(name)
        except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision for another torch
            pytest.skip(f"{name} cannot be imported: {error}")
    (place / f"{page.stem}_other_{number}.py").write_text(program)
    run(RUN_PROGRAMS, [f"{page.stem}_other_{number}.py"], place)


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob(".github/*.md"))], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_the_development_page_names_every_folder_and_only_existing_files() -> None:
    page = (ROOT / "docs" / "development.md").read_text("utf-8")
    folders = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("presize/*/__init__.py")}
    folders |= {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("datasets/**/__init__.py")}
    assert folders - {"presize/datasets"} <= set(re.findall(r"^\| `([\w/]+)/` \|", page, re.MULTILINE))
    named = set(re.findall(r"[\w.-]+/[\w/.-]*\w", page))
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_format_page_lists_every_column_of_the_index_and_all_omissions(dataset: Path) -> None:
    page = (ROOT / "docs" / "format.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in INDEX_COLUMNS)
    assert all(f"`{name}` (" in page for name in read_manifest(dataset).left_out)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [3, 0], ids=["classes", "no classes"])
def test_the_demo_reads_any_folder_of_images(classes: int, tmp_path: Path) -> None:
    photos = tmp_path / "raw"
    make_samples(photos, SampleOptions(images=12, classes=max(classes, 1), long_side=160, broken=2))
    if not classes:
        (only,) = photos.iterdir()
        photos = only
    build_dataset(photos, tmp_path / "lmdb", SMALL, SERIAL)
    build_dataset(photos, tmp_path / "folder", replace(SMALL, layout="folder"), SERIAL)
    places = [photos, tmp_path / "folder", tmp_path / "lmdb"]
    ran = subprocess.run(
        [sys.executable, ROOT / "tools" / "demo.py", *places], cwd="/", capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "of 10 images" in ran.stdout
    variants = re.findall(r"^  (\S.*?) +[\d,]+ images/s +[\d.]+ x$", ran.stdout, re.MULTILINE)
    assert variants == ["raw folder", "presized folder", "LMDBDataset", "LMDBDataset, crop=", "Loader"]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_clean_removes_no_folder_given_by_name() -> None:
    named = [f"{name}=precious" for name in ("DEMO", "VENV", "SRC")]
    ran = subprocess.run(["make", "-n", "clean", *named], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "rm -rf .venv demo " in ran.stdout
    assert "precious" not in ran.stdout
