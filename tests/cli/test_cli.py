"""The command line: what is printed, where to, and the exit code. In this process where that will do."""

from __future__ import annotations

import importlib
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np
import pytest
from PIL import Image

from builds import files
from commands import Ran
from pictures import smooth_image
from presize import __version__
from presize.builder.run import BuildResult
from presize.builder.update import Changes
from presize.cli import cli
from presize.cli.build import build_summary
from presize.store.dataset import Dataset
from processes import run_command
from tampering import change_manifest, change_offset
from tiffs import gradient, page, tiff

BUILD = ("--size", "64", "--jobs", "1")


def test_build_says_what_was_made(presize: Callable[..., Ran], raw: Path, tmp_path: Path) -> None:
    ran = presize("build", raw, tmp_path / "out", *BUILD)
    assert ran.code == 0
    assert f"{tmp_path / 'out'}: 56 images, " in ran.out
    assert f"  4 images rejected; the reasons are in {tmp_path / 'out' / 'rejects.jsonl'}\n    " in ran.out
    assert "\n    and 1 more\n" in ran.out
    assert ran.out.endswith(f"  report: {tmp_path / 'out' / 'report.html'}\n")
    assert ran.err == ""


def test_build_writes_no_report_when_told_so(presize: Callable[..., Ran], raw: Path, tmp_path: Path) -> None:
    ran = presize("build", raw, tmp_path / "out", *BUILD, "--no-report")
    assert "report:" not in ran.out
    assert not (tmp_path / "out" / "report.html").exists()


def test_several_sizes_make_several_datasets_with_a_report_each(
    presize: Callable[..., Ran], raw: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    sizes = ("--size", "64", "--size", "48x32", "--fit", "crop")
    result = json.loads(presize("build", raw, out, *sizes, "--jobs", "1", "--json").out)
    assert result["reports"] == [f"{out}/64/report.html", f"{out}/48x32/report.html"]
    assert (result["samples"], result["stored"], result["rejected"]) == (60, 56, 4)
    assert sorted(os.listdir(out)) == ["48x32", "64"]
    info = json.loads(presize("info", out / "48x32", "--json").out)
    assert (info["size"], info["samples"], info["shards"], len(info["classes"])) == ("48x32", 56, 8, 3)
    assert info["bytes"] == sum(Dataset(out / "48x32").numbers("nbytes").tolist())


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder of a photograph, and an image each with 16 bits, with transparency and with a palette."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    pixels = smooth_image(40, 50)
    photo = Image.fromarray(pixels)
    photo.save(folder / "photo.jpg")
    Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257).save(folder / "deep.png")
    photo.convert("RGBA").save(folder / "alpha.png")
    photo.quantize(9).save(folder / "palette.png")
    return folder


def test_build_counts_what_was_lost_and_names_the_option_that_keeps_it(
    presize: Callable[..., Ran], mixed: Path, tmp_path: Path
) -> None:
    lines = presize("build", mixed, tmp_path / "out", *BUILD).out.splitlines()
    assert "  1 image of more than 8 bits a channel, stored with 8; --depth 16 keeps them, as png or raw" in lines
    assert "  1 image with transparency, composed on white; --color rgba keeps it, as png, webp or raw" in lines
    assert "  1 image with a palette, stored as its colours; --pair keeps the numbers of a mask" in lines
    page = (tmp_path / "out" / "report.html").read_text()
    assert "4 images stored, 3 warnings" in page and "--color rgba keeps it" in page


def test_build_tells_of_frames_and_bands_that_are_left_out(presize: Callable[..., Ran], tmp_path: Path) -> None:
    folder = tmp_path / "frames"
    folder.mkdir()
    frames = [Image.fromarray(smooth_image(40, 50, seed=seed)) for seed in range(3)]
    for name in ("a.gif", "b.png", "c.webp", "d.avif", "e.tif", "photo.mpo"):
        frames[0].save(folder / name, save_all=True, append_images=frames[1:])
    (folder / "infrared.tif").write_bytes(tiff(page(gradient(40, 50, 4))))
    build = ("build", folder, tmp_path / "out", *BUILD, "--labels", "none")
    lines = presize(*build).out.splitlines()
    assert (
        "  5 images of several frames or pages, only the first stored; split such a file to store the others" in lines
    )
    assert (
        "  1 image with bands beside the colours, stored without them; save such a band as a file to store it" in lines
    )
    report = (tmp_path / "out" / "report.html").read_text()
    assert "5 images of several frames or pages" in report and "1 image with bands beside the colours" in report
    losses = json.loads(presize(*build, "--json").out)["losses"]
    assert losses == {"deep": 0, "transparent": 0, "palette": 1, "several": 5, "surplus": 1}


def test_build_says_how_many_images_kept_their_bytes(presize: Callable[..., Ran], mixed: Path, tmp_path: Path) -> None:
    dry = presize("build", mixed, tmp_path / "out", "--size", "keep", "--dry-run")
    assert f"target    {tmp_path / 'out'}: their own size, jpeg to lmdb" in dry.out.splitlines()
    ran = presize("build", mixed, tmp_path / "out", "--size", "keep", "--jobs", "1")
    assert "  1 stored as they were, 3 encoded" in ran.out.splitlines()
    assert "size      their own size" in presize("info", tmp_path / "out").out.splitlines()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "in the stored format already" in page and "their own size, jpeg" in page
    again = json.loads(presize("build", mixed, tmp_path / "out", "--size", "keep", "--jobs", "1", "--json").out)
    lost = {"deep": 1, "transparent": 1, "palette": 1, "several": 0, "surplus": 0}
    assert (again["unchanged"], again["losses"]) == (1, lost)


@pytest.fixture
def changed(presize: Callable[..., Ran], tmp_path: Path) -> Path:
    """A folder of 9 images that was built into ``out``, in shards of 3, and has one more and one less since."""
    for i in range(9):
        path = tmp_path / "changed" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(smooth_image(40, 50, seed=i)).save(path)
    assert presize("build", path.parent, tmp_path / "out", *BUILD, "--shard-samples", 3).code == 0
    path.rename(path.with_name("new.png"))
    return path.parent


def test_an_update_says_what_changes_and_what_changed(
    presize: Callable[..., Ran], changed: Path, tmp_path: Path
) -> None:
    before = files(tmp_path / "out")
    update = ("build", changed, tmp_path / "out", *BUILD, "--update")
    plan = presize(*update, "--dry-run").out
    assert "update    kept 6, copied 2, built 1, removed 1\n" in plan
    assert "shards    1 to write, of about 3 samples\n" in plan
    assert "tried     1 file:" in plan
    assert json.loads(presize(*update, "--dry-run", "--json").out)["copied"] == 2
    assert files(tmp_path / "out") == before
    assert "  kept 6, copied 2, built 1, removed 1" in presize(*update).out.splitlines()
    again = presize(*update).out.splitlines()
    assert "nothing had to be decoded" in again[0]
    assert "  kept 9, copied 0, built 0, removed 0" in again
    nothing = presize(*update, "--dry-run").out
    assert "update    kept 9, copied 0, built 0, removed 0\n" in nothing and "tried     0 files" in nothing


@pytest.mark.parametrize(
    ("other", "said"),
    [("none", ""), ("texts", "not stored: 3 not images"), ("a link that leads out", "1 image rejected")],
)
def test_building_again_says_that_nothing_was_left_to_do(
    other: str, said: str, presize: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "raw").mkdir()
    Image.fromarray(smooth_image(40, 50)).save(tmp_path / "raw" / "a.jpg")
    for number in range(3) if other == "texts" else ():
        (tmp_path / "raw" / f"{number}.txt").write_text("no image")
    if other == "a link that leads out":
        shutil.copy(tmp_path / "raw" / "a.jpg", tmp_path / "b.jpg")
        (tmp_path / "raw" / "b.jpg").symlink_to(tmp_path / "b.jpg")
    first, again = (presize("build", tmp_path / "raw", tmp_path / "out", *BUILD).out for _ in range(2))
    assert "images/s" in first
    assert "nothing was left to do" in again
    assert said in again


def test_dry_run_counts_the_samples_of_each_split(presize: Callable[..., Ran], raw: Path, tmp_path: Path) -> None:
    build = ("build", raw, tmp_path / "out", *BUILD, "--dry-run", "--split", "train=0.5,val=0.5", "--split-seed", 4)
    counts = json.loads(presize(*build, "--json").out)["splits"]
    assert set(counts) == {"train", "val"} and sum(counts.values()) == 60
    (line,) = re.findall(r"^splits    (.*)$", presize(*build).out, re.MULTILINE)
    assert sorted(line.split(", ")) == [f"{name} {count}" for name, count in sorted(counts.items())]


def test_build_takes_every_option_of_the_samples(presize: Callable[..., Ran], raw: Path, tmp_path: Path) -> None:
    paths = sorted(path.relative_to(raw).as_posix() for path in raw.rglob("*.jpg"))[:12]
    (tmp_path / "t.csv").write_text(
        "file_name;caption\n" + "".join(f"{path};{i}\n{path};x\n" for i, path in enumerate(paths))
    )
    options = ("--labels", tmp_path / "t.csv", "--repeated", "list", "--split", "a=0.5,b=0.5", "--split-seed", 1)
    assert presize("build", raw, tmp_path / "out", *BUILD, *options).code == 0
    index = Dataset(tmp_path / "out").index
    assert index["caption"][0].as_py() == ["0", "x"]
    assert set(index["split"].to_pylist()) == {"a", "b"}


def test_dry_run_writes_nothing_and_tells_the_plan(presize: Callable[..., Ran], raw: Path, tmp_path: Path) -> None:
    ran = presize("build", raw, tmp_path / "out", *BUILD, "--dry-run")
    assert ran.code == 0
    for words in (
        "60 files, 3 classes", "64 px shorter, jpeg to lmdb", "8 of about", " kB and ", " s with --jobs 1 on ",
        "60 files: 4 rejected, 0 not images", "free",
    ):  # fmt: skip
        assert words in ran.out
    assert "not enough" not in ran.out and "splits" not in ran.out
    plan = json.loads(presize("build", raw, tmp_path / "out", *BUILD, "--dry-run", "--json").out)
    assert (plan["samples"], len(plan["classes"]), plan["shards"], plan["jobs"]) == (60, 3, 8, 1)
    assert 24 <= plan["tried"] <= 60
    assert len(plan["rejects"]) == plan["rejected"]
    assert not (tmp_path / "out").exists()


def test_dry_run_names_some_rejects_and_counts_the_others(presize: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    Image.fromarray(smooth_image(40, 50)).save(tmp_path / "raw" / "a.jpg")
    for number in range(7):
        (tmp_path / "raw" / f"bad\x1b[31m{number}.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    out = presize("build", tmp_path / "raw", tmp_path / "out", *BUILD, "--dry-run").out
    assert "8 files: 7 rejected" in out
    assert out.count("          bad\\x1b[31m") == 5
    assert "          and 2 more\n" in out
    assert "\x1b" not in out


def test_dry_run_tells_when_the_disk_is_too_small(
    presize: Callable[..., Ran], raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    out = presize("build", raw, tmp_path / "out", *BUILD, "--dry-run").out
    assert out.endswith("free      1 kB, not enough\n")


@pytest.mark.parametrize(
    ("resumed", "told"),
    [
        (0, "in 2.0 s (50.0 images/s)"),
        (80, "in 2.0 s (20 of them now, 10.0 images/s)"),
        (100, "in 2.0 s (nothing was left to do)"),
    ],
)
def test_the_rate_of_a_resumed_build_is_that_of_what_it_built(resumed: int, told: str) -> None:
    changes = Changes(0, 0, 100, 0)
    result = BuildResult("OUT", 100, 100, 0, 0, 0, 0, 12_000, 4, 2.0, resumed, changes)
    assert build_summary(result, update=False, keep=False).endswith(told)


def test_info_tells_how_it_was_made_in_wrapped_lines(presize: Callable[..., Ran], dataset: Path) -> None:
    out = presize("info", dataset).out
    for words in ("56 in 3 classes", "8 shards", "64 px", "quality 90", "4 rejected", "simplejpeg "):
        assert words in out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line[:9].rstrip() for line in lines if line[:9].strip()] == [
        "samples", "stored", "size", "made with", "left out", "versions",
    ]  # fmt: skip


def test_info_counts_the_splits(presize: Callable[..., Ran], raw: Path, tmp_path: Path) -> None:
    presize("build", raw, tmp_path / "out", *BUILD, "--split", "train=0.7,val=0.3")
    splits = Dataset(tmp_path / "out").column("split").to_pylist()
    train, val = (splits.count(name) for name in ("train", "val"))
    assert 0 < val < train and train + val == 56
    assert json.loads(presize("info", tmp_path / "out", "--json").out)["splits"] == {"train": train, "val": val}
    assert f"splits    train {train}, val {val}" in presize("info", tmp_path / "out").out.splitlines()


def test_info_refuses_splits_that_a_stranger_has_damaged(
    presize: Callable[..., Ran], raw: Path, tmp_path: Path
) -> None:
    presize("build", raw, tmp_path / "out", *BUILD, "--split", "train=0.7,val=0.3")
    change_offset(tmp_path / "out", "split", 20, 1 << 40)
    ran = presize("info", tmp_path / "out")
    assert ran.code == 1 and "column 'split' of" in ran.err and "is damaged" in ran.err


def test_verify_of_a_sound_dataset_exits_with_0(presize: Callable[..., Ran], dataset: Path) -> None:
    ran = presize("verify", dataset)
    assert (ran.code, ran.out) == (0, f"{dataset}: 56 samples, 0 problems\n")


def test_verify_of_a_damaged_dataset_exits_with_1_and_says_what(
    presize: Callable[..., Ran], raw: Path, tmp_path: Path
) -> None:
    presize("build", raw, tmp_path / "out", *BUILD)
    os.truncate(tmp_path / "out" / "shards" / "00003.lmdb", 8192)
    ran = presize("verify", tmp_path / "out", "--json")
    assert ran.code == 1
    result = json.loads(ran.out)
    assert result["samples"] == 56
    assert result["problems"][0]["file"] == "shards/00003.lmdb"
    assert result["problems"][0]["what"].startswith("has 8192 bytes where the manifest says ")


def test_export_writes_files(presize: Callable[..., Ran], dataset: Path, tmp_path: Path) -> None:
    assert presize("export", dataset, tmp_path / "files").out == f"{tmp_path / 'files'}: 56 images\n"
    assert len(files(tmp_path / "files")) == 56


def test_sample_makes_what_build_takes(presize: Callable[..., Ran], tmp_path: Path) -> None:
    made = presize("sample", tmp_path / "raw", "--images", 6, "--classes", 2, "--long-side", 64)
    assert made.out == f"{tmp_path / 'raw'}: 6 files in 2 classes\n"
    assert presize("build", tmp_path / "raw", tmp_path / "out", *BUILD).code == 0
    few = presize("sample", tmp_path / "few", "--images", 2, "--long-side", 32)
    assert few.out == f"{tmp_path / 'few'}: 2 files in 2 classes\n", "the default is no more than there are"


def test_doctor_says_first_whether_all_is_well(presize: Callable[..., Ran]) -> None:
    ran = presize("doctor")
    assert (ran.code, ran.err) == (0, "")
    assert re.match(r"No problems found\.\n|Found .* (warnings?|bad)", ran.out)
    for topic in ("CPU", "cores", "memory", "/dev/shm", "JPEG", "resize", "PIL", "OpenCV", "torch", "GPU", "storage"):
        assert re.search(rf"^(ok|look|bad|unknown) +{topic}  ", ran.out, re.MULTILINE), topic
    assert "reading" not in ran.out


def test_doctor_reads_from_a_path(presize: Callable[..., Ran], raw: Path, dataset: Path) -> None:
    assert re.search(r"^\w+ +reading  ", presize("doctor", raw).out, re.MULTILINE)
    result = json.loads(presize("doctor", dataset, "--json").out)
    assert "reading" in [finding["topic"] for finding in result["findings"]]
    assert all(list(finding) == ["topic", "level", "found", "fix"] for finding in result["findings"])
    assert list(result["facts"]) == [
        "cpu", "memory", "shared_memory", "limits", "open_shards", "codecs", "nvidia", "torch", "storage", "content",
        "reading",
    ]  # fmt: skip
    assert result["facts"]["content"]["files"] == 8


def test_doctor_exits_with_0_whatever_it_finds(presize: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSIMD_FORCENONE", "1")
    ran = presize("doctor", "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["verdict"] == "bad"


@pytest.mark.parametrize(
    ("without", "found"),
    [
        ("sys.modules['torch'] = None", "not installed"),
        ("sys.path.insert(0, sys.argv.pop())", "cannot be imported: libcudart.so.13: cannot open shared object file"),
    ],
    ids=["not installed", "broken"],
)
def test_doctor_does_without_torch(without: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')\n")
    program = f"import sys; {without}; sys.argv[1:] = ['doctor', '--json']; from presize.cli import main; main()"
    args = [sys.executable, "-c", program, tmp_path]
    ran = subprocess.run(args, capture_output=True, text=True, cwd="/", check=True)
    torch = next(finding for finding in json.loads(ran.stdout)["findings"] if finding["topic"] == "torch")
    assert (torch["level"], torch["found"]) == ("warn", found)


def test_classes_may_come_from_another_dataset(presize: Callable[..., Ran], dataset: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.mkdir()
    (part / "1-jade-star").mkdir()
    Image.fromarray(smooth_image(40, 50)).save(part / "1-jade-star" / "a.jpg")
    presize("build", part, tmp_path / "out", *BUILD, "--classes", dataset)
    assert Dataset(tmp_path / "out").numbers("label").tolist() == [1]


MISTAKES = [
    (["build"], 2, "Missing argument 'SRC'", "no SRC"),
    (["build", "RAW"], 2, "Missing argument 'OUT'", "no OUT"),
    (["biuld", "RAW", "OUT"], 2, "Did you mean 'build'?", "a typo in the command"),
    (["build", "RAW", "OUT", "--colour", "rgb"], 2, "Did you mean '--color'?", "a typo in an option"),
    (["build", "RAW", "OUT", "--size", "0"], 2, "--size: expected a whole number from 1 to 16383, got 0", "size 0"),
    (["build", "RAW", "OUT", "--size", "256px"], 2, "such as 256 or 320x240, got '256px'", "a unit"),
    (["build", "RAW", "OUT", "--update", "--overwrite"], 2, "--update: it keeps what is there", "both at once"),
    (["build", "RAW", "OUT", "--update", "--to", "folder"], 2, "--update: the files of a folder", "a folder"),
    (["build", "RAW", "FULL", "--update", "--dry-run"], 1, "is not a presize dataset", "an update of anything"),
    (["build", "RAW", "OUT", "--size", "9", "--size", "9"], 2, "--size: expected each size once", "a size twice"),
    (["build", "RAW", "OUT", "--fit", "cover"], 2, "'cover' is not one of 'shorter'", "an unknown fit"),
    (["build", "RAW", "OUT", "--quality", "101"], 2, "--quality: expected a whole number from 1 to 100", "quality"),
    (["build", "RAW", "OUT", "--quality", "80", "--format", "png"], 2, "--quality: jpeg and webp alone", "of png"),
    (["build", "RAW", "OUT", "--subsampling", "444", "--format", "webp"], 2, "--subsampling: jpeg alone", "of webp"),
    (["build", "RAW", "OUT", "--like", "EMPTY"], 1, "is not a presize dataset", "like no dataset"),
    (["build", "RAW", "OUT", "--jobs", "0"], 2, "--jobs: expected a whole number from 1", "no jobs"),
    (["build", "RAW", "OUT", "--max-errors", "few"], 2, "--max-errors: expected a count or a percentage", "a word"),
    (
        ["build", "RAW", "OUT", "--to", "folder", "--format", "raw"],
        2,
        "--to: format raw has no image files",
        "raw files",
    ),
    (["build", "nowhere", "OUT"], 1, "source 'nowhere' does not exist", "no source"),
    (["build", "FILE", "OUT"], 1, "is a file; expected a folder of images", "a file as source"),
    (["build", "EMPTY", "OUT"], 1, "holds no files", "an empty source"),
    (["build", "RAW", "RAW/out"], 1, "lies inside the source", "OUT in SRC"),
    (["build", "RAW", "FILE"], 1, "is a file; choose a folder", "OUT is a file"),
    (["build", "RAW", "RAW/out", "--dry-run"], 1, "lies inside the source", "a plan for OUT in SRC"),
    (
        ["build", "RAW", "FULL", "--dry-run"],
        1,
        "holds 'mine' and is not a presize dataset",
        "a plan for a folder in use",
    ),
    (["build", "RAW", "OUT", "--labels", "nowhere.csv"], 1, "nowhere.csv", "no table"),
    (["build", "RAW", "OUT", "--split", "train=0.9"], 2, "--split: the shares in 'train=0.9' add up to 0.9", "a share"),
    (["build", "RAW", "OUT", "--repeated", "list"], 2, "--repeated: list is about rows of a table", "no rows"),
    (["build", "RAW", "OUT", "--classes", "nowhere"], 1, "classes 'nowhere': No such file", "no class list"),
    (
        ["build", "RAW", "OUT", "--max-errors", "3"],
        1,
        "4 images were rejected, more than --max-errors 3",
        "too many errors",
    ),
    (["build", "RAW", "OUT", "--on-error", "fail"], 1, ".jpg: ", "a broken image"),
    (["info", "nowhere"], 1, "nowhere does not exist", "no dataset"),
    (["info", "RAW"], 1, "is not a presize dataset", "a raw folder"),
    (["verify", "EMPTY"], 1, "is not a presize dataset", "an empty folder"),
    (["export", "DATASET", "RAW"], 1, "is not an empty folder", "a folder in use"),
    (["doctor", "nowhere"], 1, "nowhere: No such file or directory; expected a dataset, a folder", "no such path"),
    (["diagnose", "nowhere", "-q"], 1, "nowhere", "nothing to diagnose"),
    (["diagnose", "RAW", "-q", "--steps", "1"], 2, "--steps", "too few steps"),
    (["diagnose", "RAW", "-q", "--seconds", "0"], 2, "--seconds", "no time"),
    (["diagnose", "RAW", "-q", "--device", "cuda"], 1, "--device cuda: no CUDA here", "no GPU"),
    (["diagnose", "RAW", "-o", "nowhere/page.html"], 2, "-o: nowhere is not a folder", "no place for a page"),
    (["sample", "RAW"], 1, "is not empty", "a folder in use"),
    (["sample", "FILE/x"], 1, "cannot write", "below a file"),
    (["sample", "OUT", "--images", "0"], 2, "--images: expected a whole number from 1", "no images"),
]


@pytest.mark.parametrize(("args", "code", "words", "reason"), MISTAKES, ids=[row[3] for row in MISTAKES])
def test_a_mistake_is_one_clear_line(
    args: list[str],
    code: int,
    words: str,
    reason: str,
    presize: Callable[..., Ran],
    raw: Path,
    dataset: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "full" / "mine").mkdir(parents=True)
    places = {
        "RAW": raw,
        "OUT": tmp_path / "out",
        "FILE": tmp_path / "file",
        "EMPTY": tmp_path / "empty",
        "FULL": tmp_path / "full",
        "DATASET": dataset,
    }
    for name, place in places.items():
        args = [arg.replace(name, str(place)) for arg in args]
    ran = presize(*args)
    assert ran.code == code, reason
    assert ran.err.startswith("presize: error: ")
    assert ran.err.count("\n") == 1
    assert words in ran.err
    assert ran.out == ""


def test_a_hostile_file_name_does_nothing_to_the_terminal(presize: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "\x1b]0;mine\x07\n\u202e.jpg").touch()
    ran = presize("build", tmp_path / "raw", tmp_path / "out", "--jobs", "1", "--on-error", "fail")
    assert ran.err == "presize: error: \\x1b]0;mine\\x07\\n\\u202e.jpg: the file is empty\n"


def test_a_warning_is_one_line_and_no_failure(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / "raw" / split).mkdir(parents=True)
        Image.fromarray(smooth_image(40, 50)).save(tmp_path / "raw" / split / "a.jpg")
    ran = command("build", tmp_path / "raw", tmp_path / "out", *BUILD)
    assert ran.returncode == 0
    assert ran.stderr.startswith("presize: warning: source ")
    assert "holds just train, val: they become its classes" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    ran = command("--debug", "info", tmp_path)
    assert ran.returncode == 1
    assert "Traceback" in ran.stderr
    assert "DatasetError" in ran.stderr


def test_a_bare_presize_prints_its_help(presize: Callable[..., Ran]) -> None:
    ran = presize()
    assert ran.code == 2
    assert ran.err == presize("--help").out


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_is_told(option: str, presize: Callable[..., Ran]) -> None:
    assert presize(option).out == f"presize, version {__version__}\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--size", "64x64"), "--size 64x64: with --fit shorter images keep their shapes and cover 64x64, as with"),
        (("--size", "64x48", "--fit", "longer"), "--size 64x48: with --fit longer images keep their shapes and lie"),
        (("--jobs", "200"), "--jobs 200: "),
    ],
    ids=["a square", "a rectangle", "too many jobs"],
)
@pytest.mark.filterwarnings("always::presize.errors.PresizeWarning")
def test_options_that_are_hardly_meant_are_one_line(
    options: tuple[str, ...], words: str, presize: Callable[..., Ran], raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presize.cli.group.usable_cores", lambda: 2)
    ran = presize("build", raw, "out", *options, "--dry-run")
    assert ran.code == 0
    assert ran.err.startswith(f"presize: warning: {words}") and ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        (("--format", "jpg"), ("format", "jpeg")),
        (("--color", "grey"), ("color", "gray")),
        (("--resize-backend", "pillow"), ("resize_backend", "pillow")),
    ],
    ids=["jpg", "grey", "pillow"],
)
def test_options_are_recorded_other_spellings_are_taken(
    options: tuple[str, ...], recorded: tuple[str, str], presize: Callable[..., Ran], raw: Path, tmp_path: Path
) -> None:
    assert presize("build", raw, tmp_path / "out", *BUILD, *options).code == 0
    image = json.loads(presize("info", tmp_path / "out", "--json").out)["options"]["image"]
    assert image[recorded[0]] == recorded[1]
    assert f"{recorded[0]} {recorded[1]}," in " ".join(presize("info", tmp_path / "out").out.split())


def test_quiet_commands_print_nothing(presize: Callable[..., Ran], raw: Path, dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for command in (
        ("build", raw, out, *BUILD),
        ("derive", dataset, tmp_path / "derived"),
        ("export", dataset, tmp_path / "files"),
        ("repair", raw, out),
        ("sample", tmp_path / "raw", "--images", 4, "--long-side", 32),
        ("verify", dataset),
    ):
        assert presize(*command, "-q") == Ran(0, "", "")


def test_quiet_commands_still_name_damage(presize: Callable[..., Ran], dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "out")
    os.truncate(tmp_path / "out" / "shards" / "00003.lmdb", 8192)
    ran = presize("verify", tmp_path / "out", "-q")
    assert ran.code == 1
    assert ran.out.startswith("shards/00003.lmdb: has 8192 bytes") and ran.out.count("\n") == 1


def test_a_closed_pipe_is_not_a_traceback(dataset: Path) -> None:
    assert shell(f"info {dataset} | true").stderr == ""


def test_a_full_output_is_one_clear_line(dataset: Path) -> None:
    for args in (["info", dataset], ["info", dataset, "--json"], ["verify", dataset]):
        with open("/dev/full", "w") as full:
            ran = command(*args, stdout=full)
        assert (ran.returncode, ran.stderr) == (1, "presize: error: cannot print: No space left on device\n")


def test_what_does_not_fit_the_output_buffer_fails_alike(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / "raw" / f"class {number}").mkdir(parents=True)
    Image.fromarray(smooth_image(40, 50)).save(tmp_path / "raw" / "class 7" / "a.jpg")
    with open("/dev/full", "w") as full:
        ran = command("build", tmp_path / "raw", tmp_path / "out", "--dry-run", "--json", stdout=full)
    assert (ran.returncode, ran.stderr) == (1, "presize: error: cannot print: No space left on device\n")


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_build_without_standard_error_is_silent(jobs: int, raw: Path, tmp_path: Path) -> None:
    ran = shell(f"build {raw} {tmp_path / 'out'} --size 64 --jobs {jobs} 2>&-")
    assert ran.returncode == 0
    assert "56 images" in ran.stdout


def test_an_error_without_standard_error_is_an_exit_code(tmp_path: Path) -> None:
    assert shell(f"info {tmp_path} 2>&-").returncode == 1
    assert shell(f"build {tmp_path} {tmp_path}/out --size 0 2>&-").returncode == 2


def test_closed_standard_streams_are_given_to_no_file(tmp_path: Path) -> None:
    program = "import os, sys, presize.cli as c; c.open_closed_streams(); os.write(4, b'%d' % os.open(sys.argv[1], 0))"
    told = tmp_path / "descriptor"
    subprocess.run(f'{sys.executable} -c "{program}" {tmp_path} 4>{told} <&- >&- 2>&-', shell=True, cwd="/", check=True)
    assert int(told.read_bytes()) > 2


def test_a_terminal_gets_a_bar(raw: Path, tmp_path: Path) -> None:
    terminal, stderr = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    args = [sys.executable, "-m", "presize", "build", str(raw), str(tmp_path / "out"), *BUILD]
    with subprocess.Popen(args, stderr=stderr, stdout=subprocess.DEVNULL, cwd="/"):
        os.close(stderr)
        shown = "".join(lines_of(terminal))
    assert "build: 100%" in shown
    assert "60/60" in shown
    assert "4 rejected" in shown


def lines_of(terminal: int) -> Iterator[str]:
    with os.fdopen(terminal, "rb", buffering=0) as file:
        while True:
            try:
                yield file.read(4096).decode()
            except OSError:  # how a terminal says that nobody writes to it any more
                return


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_has_help(name: str, presize: Callable[..., Ran]) -> None:
    ran = presize(name, "--help")
    assert ran.code == 0
    assert "Exit codes:" in ran.out


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_help_ends_with_examples_that_are_right(
    name: str, presize: Callable[..., Ran], dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "OUT").symlink_to(dataset)  # --like reads it
    monkeypatch.chdir(tmp_path)
    _, _, examples = presize(name, "--help").out.partition("Examples:\n")
    commands = list(map(shlex.split, examples.splitlines()))
    assert 2 <= len(commands) <= 3
    for program, command, *args in commands:
        assert (program, command) == ("presize", name)
        with cli.commands[name].make_context(name, args):
            pass


def test_the_list_of_commands_cuts_no_sentence_off(presize: Callable[..., Ran]) -> None:
    _, _, commands = presize("--help").out.partition("Commands:")
    assert "..." not in commands


def command(*args: object, stdout: int | IO[str] = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """The presize command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "presize", *map(str, args)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        check=False,
    )


def shell(args: str) -> subprocess.CompletedProcess[str]:
    """The presize command as a shell runs it, for redirections."""
    return subprocess.run(
        f"{sys.executable} -m presize {args}", shell=True, capture_output=True, text=True, cwd="/", check=False
    )


def test_diagnose_says_the_verdict_then_what_to_do_then_why(
    presize: Callable[..., Ran], raw: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    ran = presize(
        "diagnose", raw, "--crop", 32, "--size", 40, "--batch", 4, "--seconds", 0.05, "--steps", 5, "-o", page
    )
    assert ran.code == 0, ran.err
    assert re.match(
        r"[A-Z][a-z ]+ (is the bottleneck|are balanced): the training step is busy \d+% of the time\.\n", ran.out
    )
    assert re.search(r"^  decoding +\d+%", ran.out, re.MULTILINE)
    assert "building a small dataset to try: Presize to 40 px" in ran.err
    assert "reading batches and training on one: Presize to 40 px and read it with Loader" in ran.err
    assert "<!doctype html>" in page.read_text()


def test_a_diagnosis_took_as_long_as_the_whole_command(
    presize: Callable[..., Ran], dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([100.0, 107.0])
    clock = SimpleNamespace(perf_counter=lambda: next(now))
    monkeypatch.setattr(importlib.import_module("presize.cli.diagnose"), "time", clock)

    @dataclass(frozen=True)
    class Found:
        seconds: float = 1.0

        def known(self) -> dict[str, float]:
            return {"seconds": self.seconds}

    monkeypatch.setattr("presize.datasets.timing.diagnose_path.diagnose_path", lambda *_, **__: Found())
    assert json.loads(presize("diagnose", dataset, "--json").out) == {"seconds": 7.0}


def test_info_prints_no_escape_sequence_of_a_hostile_manifest(
    presize: Callable[..., Ran], dataset: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(dataset, out)
    change_manifest(out, lambda values: values["versions"].update(lmdb="3\x1b]0;owned\x07\r"))
    ran = presize("info", out)
    assert ran.code == 0
    assert not {"\x1b", "\x07", "\r"} & set(ran.out)


@pytest.mark.parametrize("long", ["x" * 300, "/".join(["y" * 200] * 25)], ids=["a component", "the whole"])
@pytest.mark.parametrize(
    "command",
    [
        "build RAW LONG",
        "build LONG out",
        "info LONG",
        "verify LONG",
        "diagnose LONG",
        "doctor LONG",
        "diagnose RAW -o LONG/page",
    ],
)
def test_a_path_longer_than_the_system_takes_is_one_line(
    presize: Callable[..., Ran], raw: Path, command: str, long: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = presize(*(str(raw) if word == "RAW" else word.replace("LONG", long) for word in command.split()))
    assert ran.code in (1, 2)
    assert re.search(r"(^|\n)presize: error: .*(File name too long|is not a folder).*\n$", ran.err)
    assert "Traceback" not in ran.err


def test_a_dry_run_into_a_path_longer_than_the_system_takes_has_no_traceback(
    presize: Callable[..., Ran], raw: Path
) -> None:
    assert presize("build", raw, "x" * 300, "--dry-run").code == 0


IGNORED = """
import os, signal, sys, time
from presize.builder.executors import executor
from presize.cli import main

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), number)

def write_shard(task, write=executor.write_shard):
    if not told:
        told.append(Finalized())
        told[0] = None
        time.sleep(5)
    return write(task)

number, told, executor.write_shard = int(sys.argv.pop(1)), [], write_shard
main(sys.argv[1:])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_python_ignores_in_a_finalizer_stops_a_build_all_the_same(
    number: signal.Signals, raw: Path, tmp_path: Path
) -> None:
    arguments = ["build", raw, tmp_path / "out", *BUILD, "--backend", "sequential"]
    ran = run_command([sys.executable, "-c", IGNORED, int(number), *arguments])
    assert ran.returncode == 128 + number
    assert "the same command resumes the build" in ran.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()
