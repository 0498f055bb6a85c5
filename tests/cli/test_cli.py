"""The command line: output, streams and exit codes, in this process where possible."""

from __future__ import annotations

import errno
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
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from PIL import Image

from builds import files
from commands import Ran
from foreign import tar_samples, write_tar
from pictures import save_image, smooth_image
from presize import __version__
from presize.builder.reuse import Changes
from presize.builder.run import BuildResult
from presize.cli import cli
from presize.cli.build import build_summary
from presize.errors import DatasetError
from presize.store.dataset import Dataset
from processes import run_command
from tampering import change_manifest, change_offset
from tiffs import gradient, page, tiff

Build = Callable[..., Ran]
OUT = Path("out")


@pytest.fixture
def build(presize: Callable[..., Ran], raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Return a function that runs presize build of `raw`, or of another source, into ``out`` of the working folder, at
    64 px or another size."""
    monkeypatch.chdir(tmp_path)

    def run(*options: object, source: object = raw, size: object = 64) -> Ran:
        return presize("build", source, OUT, "--size", size, "--jobs", 1, *options)

    return run


def test_build_reports_what_it_built(build: Build) -> None:
    ran = build()
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("out: 56 images, ")
    assert "  4 images rejected; the reasons are in out/rejects.jsonl\n    " in ran.out
    assert "\n    and 1 more\n" in ran.out
    assert ran.out.endswith("  report: out/report.html\n")


def test_a_script_may_switch_tiles_off_for_any_format(build: Build) -> None:
    ran = build("--dry-run", "--no-tiles", "--format", "png")
    assert ran.code == 0, ran.err


NO_LABELS = "  no labels: a folder of images needs a table of labels, --labels"
SMALLER = "  1 image smaller than --size, not enlarged; --upscale enlarges them"
NO_SPACE = "  no space saved: files of"


PHOTO = ["photo.jpg"]


@pytest.mark.parametrize(
    ("images", "options", "size", "said", "unsaid"),
    [
        (PHOTO, "", 24, [NO_LABELS], ["class", SMALLER, NO_SPACE]),
        (PHOTO, "--labels none", 5000, ["  no labels, because of --labels none", SMALLER], []),
        (PHOTO, "--labels list.txt", 24, ["  no labels: the table of --labels has none"], ["class"]),
        (PHOTO, "--labels table.csv", 24, [], ["class", "no labels", "not enlarged"]),
        (["cats/1.jpg", "dogs/1.jpg"], "--no-report", 64, ["  2 classes"], ["no labels"]),
        (["cats/1.jpg"], "", 64, ["  1 class"], ["no labels"]),
        (PHOTO, "--fit longer", 5000, [SMALLER], []),
        (PHOTO, "--fit crop", 5000, [SMALLER], []),
        (PHOTO, "--size 32", 5000, [SMALLER], []),
        (PHOTO, "--upscale", 600, [NO_SPACE], ["not enlarged"]),
        (PHOTO, "--format raw", 100, [NO_SPACE], []),
        (PHOTO, "", "keep", [], ["not enlarged", NO_SPACE]),
    ],
)
def test_build_reports_each_likely_mistake_in_one_line(
    images: list[str], options: str, size: object, said: list[str], unsaid: list[str], build: Build
) -> None:
    for image in images:
        save_image(Path("photos", image))
    Path("list.txt").write_text("photo.jpg\n")
    Path("table.csv").write_text("path,age\nphoto.jpg,7\n")
    ran = build(*options.split(), source="photos", size=size)
    assert ran.code == 0
    assert [line for line in said if f"\n{line}" not in ran.out] == []
    assert [text for text in unsaid if text in ran.out] == []


def test_a_source_of_one_file_is_named_after_it(build: Build, tmp_path: Path) -> None:
    write_tar(tmp_path / "some" / "one.tar", tar_samples(2))
    ran = build("--dry-run", source=tmp_path / "some" / "one.tar")
    assert ran.out.startswith(f"source    {tmp_path}/some/one.tar: 2 files")
    write_tar(tmp_path / "some" / "two.tar", [("1.jpg", b"none")])
    failed = build(source=tmp_path / "some" / "two.tar")
    assert f"no image could be stored (1 file in {tmp_path}/some/two.tar)" in failed.err


def test_the_json_of_info_tells_how_a_derived_dataset_was_made(
    presize: Callable[..., Ran], dataset: Path, tmp_path: Path
) -> None:
    assert presize("derive", dataset, tmp_path / "small", "--size", 32, "-q").code == 0
    assert json.loads(presize("info", tmp_path / "small", "--json").out)["derived"] == ["sizes 64"]


def test_several_sizes_make_several_datasets_with_a_report_each(build: Build, presize: Callable[..., Ran]) -> None:
    result = json.loads(build("--size", "48x32", "--fit", "crop", "--json").out)
    assert result["reports"] == ["out/64/report.html", "out/48x32/report.html"]
    assert (result["samples"], result["stored"], result["rejected"]) == (60, 56, 4)
    assert sorted(os.listdir(OUT)) == ["48x32", "64"]
    info = json.loads(presize("info", OUT / "48x32", "--json").out)
    assert (info["size"], info["samples"], info["shards"], len(info["classes"])) == ("48x32", 56, 8, 3)
    assert info["bytes"] == sum(Dataset(OUT / "48x32").numbers("nbytes").tolist())


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Create a folder of four images: a photograph, one with 16 bits, one with transparency, and one with a palette."""
    photo = Image.open(save_image(tmp_path / "mixed" / "photo.jpg"))
    Image.fromarray(smooth_image(40, 50)[:, :, 0].astype(np.uint16) * 257).save(tmp_path / "mixed" / "deep.png")
    photo.convert("RGBA").save(tmp_path / "mixed" / "alpha.png")
    photo.quantize(9).save(tmp_path / "mixed" / "palette.png")
    return tmp_path / "mixed"


def test_build_counts_what_was_lost_and_names_the_option_that_keeps_it(build: Build, mixed: Path) -> None:
    lines = build(source=mixed).out.splitlines()
    assert "  1 image of more than 8 bits per channel, stored with 8; --depth 16 keeps them, as png or raw" in lines
    assert "  1 image with transparency, composited on white; --color rgba keeps it, as png, webp or raw" in lines
    assert "  1 image with a palette, stored as its colours; --pair keeps the numbers of a mask" in lines
    report = (OUT / "report.html").read_text()
    assert '<h1 class="warn">' in report and "4 images stored, 3 warnings" in report
    assert all(option in report for option in ("--depth 16 keeps them", "--color rgba keeps it", "--pair keeps"))


def test_build_reports_skipped_frames_and_bands(build: Build, tmp_path: Path) -> None:
    folder = tmp_path / "frames"
    folder.mkdir()
    frames = [Image.fromarray(smooth_image(40, 50, seed=seed)) for seed in range(3)]
    for name in ("a.gif", "b.png", "c.webp", "d.avif", "e.tif", "photo.mpo"):
        frames[0].save(folder / name, save_all=True, append_images=frames[1:])
    (folder / "infrared.tif").write_bytes(tiff(page(gradient(40, 50, 4))))
    ran = build("--labels", "none", source=folder)
    report = (OUT / "report.html").read_text()
    for lost, what_then in {
        "5 images of several frames or pages": "only the first stored; split such a file to store the others",
        "1 image with extra bands": "stored without them; save an extra band as its own file to store it",
    }.items():
        assert f"  {lost}, {what_then}" in ran.out.splitlines() and lost in report
    losses = json.loads(build("--labels", "none", "--json", source=folder).out)["losses"]
    assert losses == {"deep": 0, "transparent": 0, "palette": 1, "several": 5, "surplus": 1}


def test_build_reports_the_number_of_images_that_kept_their_bytes(
    build: Build, presize: Callable[..., Ran], mixed: Path
) -> None:
    dry = build("--dry-run", source=mixed, size="keep")
    assert "target    out: their own size, jpeg to lmdb" in dry.out.splitlines()
    assert "  1 stored unchanged, 3 encoded" in build(source=mixed, size="keep").out.splitlines()
    assert "size      their own size" in presize("info", OUT).out.splitlines()
    report = (OUT / "report.html").read_text()
    assert "already in the stored format" in report and "their own size, jpeg" in report
    again = json.loads(build("--json", source=mixed, size="keep").out)
    lost = {"deep": 1, "transparent": 1, "palette": 1, "several": 0, "surplus": 0}
    assert (again["unchanged"], again["losses"]) == (1, lost)


def test_an_update_says_what_changes_and_what_changed(build: Build, tmp_path: Path) -> None:
    images = [save_image(tmp_path / "changed" / f"{i}.png", seed=i) for i in range(9)]
    assert build("--shard-samples", 3, source=tmp_path / "changed").code == 0
    images[-1].rename(tmp_path / "changed" / "new.png")
    before = files(OUT)

    def update(*options: str) -> str:
        return build("--update", *options, source=tmp_path / "changed").out

    plan = update("--dry-run")
    for line in ("update    kept 6, copied 2, built 1, removed 1\n", "shards    1 to write, of about 3 samples\n"):
        assert line in plan
    assert "tried     1 file:" in plan
    assert json.loads(update("--dry-run", "--json"))["copied"] == 2
    assert files(OUT) == before
    assert "  kept 6, copied 2, built 1, removed 1" in update().splitlines()
    again = update().splitlines()
    assert "nothing had to be decoded" in again[0] and "  kept 9, copied 0, built 0, removed 0" in again
    nothing = update("--dry-run")
    assert "update    kept 9, copied 0, built 0, removed 0\n" in nothing and "tried     0 files" in nothing


@pytest.mark.parametrize(
    ("other", "said"),
    [("none", ""), ("texts", "not stored: 3 not images"), ("a link that leads out", "1 image rejected")],
)
def test_building_again_reports_that_nothing_was_left_to_do(
    other: str, said: str, build: Build, tmp_path: Path
) -> None:
    source = save_image(tmp_path / "raw" / "a.jpg").parent
    for number in range(3) if other == "texts" else ():
        (source / f"{number}.txt").write_text("no image")
    if other == "a link that leads out":
        (source / "b.jpg").symlink_to(save_image(tmp_path / "b.jpg"))
    first, again = (build(source=source).out for _ in range(2))
    assert "images/s" in first
    assert "nothing to do" in again and said in again


def test_build_takes_every_option_of_the_samples(build: Build, raw: Path, tmp_path: Path) -> None:
    paths = sorted(path.relative_to(raw).as_posix() for path in raw.rglob("*.jpg"))[:12]
    rows = "".join(f"{path};{i}\n{path};x\n" for i, path in enumerate(paths))
    (tmp_path / "t.csv").write_text(f"file_name;caption\n{rows}")
    assert build("--labels", "t.csv", "--repeated", "list", "--split", "a=0.5,b=0.5", "--split-seed", 1).code == 0
    index = Dataset(OUT).index
    assert index["caption"][0].as_py() == ["0", "x"]
    assert set(index["split"].to_pylist()) == {"a", "b"}


def test_dry_run_writes_nothing_and_prints_the_plan(build: Build) -> None:
    ran = build("--dry-run")
    assert ran.code == 0
    for words in (
        "60 files, 3 classes", "64 px shorter, jpeg to lmdb", "8 of about", " kB and ", " s with --jobs 1 on ",
        "60 files: 4 rejected, 0 not images", "free",
    ):  # fmt: skip
        assert words in ran.out
    assert "not enough" not in ran.out and "splits" not in ran.out
    plan = json.loads(build("--dry-run", "--json").out)
    assert (plan["samples"], len(plan["classes"]), plan["shards"], plan["jobs"]) == (60, 3, 8, 1)
    assert 24 <= plan["tried"] <= 60
    assert len(plan["rejects"]) == plan["rejected"]
    assert not OUT.exists()


def test_dry_run_counts_the_samples_of_each_split(build: Build) -> None:
    split = ("--dry-run", "--split", "train=0.5,val=0.5", "--split-seed", 4)
    counts = json.loads(build(*split, "--json").out)["splits"]
    assert set(counts) == {"train", "val"} and sum(counts.values()) == 60
    (line,) = re.findall(r"^splits    (.*)$", build(*split).out, re.MULTILINE)
    assert sorted(line.split(", ")) == [f"{name} {count}" for name, count in sorted(counts.items())]


def test_dry_run_names_some_rejects_and_counts_the_others(build: Build, tmp_path: Path) -> None:
    source = save_image(tmp_path / "raw" / "a.jpg").parent
    for number in range(7):
        (source / f"bad\x1b[31m{number}.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    out = build("--dry-run", source=source).out
    assert "8 files: 7 rejected" in out
    assert out.count("          bad\\x1b[31m") == 5
    assert "          and 2 more\n" in out
    assert "\x1b" not in out


def test_derive_does_not_print_the_rejects_of_its_source(
    presize: Callable[..., Ran], dataset: Path, tmp_path: Path
) -> None:
    rejected = [json.loads(line)["path"] for line in (dataset / "rejects.jsonl").read_text().splitlines()]
    ran = presize("derive", dataset, tmp_path / "derived")
    assert rejected and ran.code == 0 and not any(path in ran.out for path in rejected), ran.out


def test_dry_run_reports_a_disk_that_is_too_small(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert build("--dry-run").out.endswith("free      1 kB, not enough\n")


def test_a_dry_run_to_a_url_reports_the_free_space_of_the_scratch_folder(
    presize: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage, scratch = shutil.disk_usage("/"), tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000 if path == scratch else 10**12))
    raw = save_image(tmp_path / "raw" / "a.jpg").parent
    ran = presize("build", raw, "s3://data/x", "--dry-run", "--scratch", scratch)
    assert ran.out.endswith("free      1 kB, not enough\n")


@pytest.mark.parametrize(
    ("resumed", "told"),
    [
        (0, "in 2.0 s (50.0 images/s)"),
        (80, "in 2.0 s (20 of them now, 10.0 images/s)"),
        (100, "in 2.0 s (nothing to do)"),
    ],
)
def test_the_rate_of_a_resumed_build_counts_only_its_own_images(resumed: int, told: str) -> None:
    result = BuildResult("OUT", 100, 100, 0, 0, 0, 0, 12_000, 4, 2.0, resumed, Changes(0, 0, 100, 0))
    assert build_summary(result, update=False, keep=False, labels=None).endswith(told)


def test_info_prints_how_it_was_made_in_wrapped_lines(presize: Callable[..., Ran], dataset: Path) -> None:
    out = presize("info", dataset).out
    for words in ("56 in 3 classes", "8 shards", "64 px", "quality 90", "4 rejected", "simplejpeg "):
        assert words in out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    names = [line[:9].rstrip() for line in lines if line[:9].strip()]
    assert names == ["samples", "stored", "size", "made with", "left out", "versions"]


def test_info_counts_the_splits_and_refuses_damaged_ones(build: Build, presize: Callable[..., Ran]) -> None:
    build("--split", "train=0.7,val=0.3")
    splits = Dataset(OUT).column("split").to_pylist()
    train, val = (splits.count(name) for name in ("train", "val"))
    assert 0 < val < train and train + val == 56
    assert json.loads(presize("info", OUT, "--json").out)["splits"] == {"train": train, "val": val}
    assert f"splits    train {train}, val {val}" in presize("info", OUT).out.splitlines()
    change_offset(OUT, "split", 20, 1 << 40)
    ran = presize("info", OUT)
    assert ran.code == 1 and "column 'split' of" in ran.err and "is damaged" in ran.err


def test_info_prints_no_escape_sequence_of_a_hostile_manifest(
    presize: Callable[..., Ran], dataset: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(dataset, tmp_path / "out"))
    change_manifest(out, lambda values: values["versions"].update(lmdb="3\x1b]0;owned\x07\r"))
    ran = presize("info", out)
    assert ran.code == 0
    assert not {"\x1b", "\x07", "\r"} & set(ran.out)


def test_other_spellings_of_options_are_recorded_as_the_usual_ones(build: Build, presize: Callable[..., Ran]) -> None:
    assert build("--format", "jpg", "--color", "grey", "--resize-backend", "pillow").code == 0
    recorded = {"format": "jpeg", "color": "gray", "resize_backend": "pillow"}
    assert json.loads(presize("info", OUT, "--json").out)["options"]["image"].items() >= recorded.items()
    shown = " ".join(presize("info", OUT).out.split())
    assert all(f"{name} {value}," in shown for name, value in recorded.items())


def test_verify_exits_with_0_or_names_damage_and_exits_with_1_even_if_quiet(
    presize: Callable[..., Ran], dataset: Path, tmp_path: Path
) -> None:
    assert presize("verify", dataset) == Ran(0, f"{dataset}: 56 samples, 0 problems\n", "")
    out = Path(shutil.copytree(dataset, tmp_path / "out"))
    os.truncate(out / "shards" / "00003.lmdb", 8192)
    ran = presize("verify", out, "--json")
    result = json.loads(ran.out)
    (problem,) = result["problems"]
    assert (ran.code, result["samples"], problem["file"]) == (1, 56, "shards/00003.lmdb")
    assert problem["what"].startswith("has 8192 bytes where the manifest says ")
    ran = presize("verify", out, "-q")
    assert (ran.code, ran.out) == (1, f"{problem['file']}: {problem['what']}\n")


@pytest.mark.parametrize(
    ("damaged", "cure"),
    [
        ("shards/00003.lmdb", "presize repair SRC OUT rebuilds damaged shards"),
        ("index.arrow", "build OUT again with --overwrite and the same options"),
    ],
)
def test_verify_says_how_to_repair_the_damage(
    damaged: str, cure: str, presize: Callable[..., Ran], dataset: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(dataset, tmp_path / "out"))
    content = bytearray((out / damaged).read_bytes())
    content[len(content) // 2] ^= 1
    (out / damaged).write_bytes(content)
    of_copies = "in a copy from a URL, delete the damaged files and run presize fetch again"
    assert presize("verify", out).out.splitlines()[-2:] == [f"  {cure}", f"  {of_copies}"]


def test_sample_creates_folders_that_build_accepts(build: Build, presize: Callable[..., Ran], tmp_path: Path) -> None:
    made = presize("sample", tmp_path / "raw", "--images", 6, "--classes", 2, "--long-side", 64)
    assert made.out == f"{tmp_path / 'raw'}: 6 files in 2 classes\n"
    assert build(source=tmp_path / "raw").code == 0
    few = presize("sample", tmp_path / "few", "--images", 2, "--long-side", 32)
    assert few.out == f"{tmp_path / 'few'}: 2 files in 2 classes\n", "the default is at most the number of files"


def test_doctor_reads_from_a_path(presize: Callable[..., Ran], raw: Path, dataset: Path) -> None:
    assert re.search(r"^\w+ +reading  ", presize("doctor", raw).out, re.MULTILINE)
    result = json.loads(presize("doctor", dataset, "--json").out)
    assert "reading" in [finding["topic"] for finding in result["findings"]]
    assert all(list(finding) == ["topic", "level", "found", "fix"] for finding in result["findings"])
    assert result["facts"]["content"]["files"] == 8


def test_doctor_exits_with_0_whatever_it_finds(presize: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSIMD_FORCENONE", "1")
    ran = presize("doctor", "--json")
    assert (ran.code, json.loads(ran.out)["verdict"]) == (0, "bad")


def test_a_command_that_needs_torch_says_how_to_install_it(dataset: Path) -> None:
    blocked = "import sys; sys.modules['torch'] = None; from presize.cli import main; main(sys.argv[1:])"
    ran = run_command([sys.executable, "-c", blocked, "diagnose", dataset])
    assert ran.returncode == 1
    said = 'presize.datasets needs torch, which is not installed: pip install "presize[torch]"'
    assert ran.stderr.splitlines()[-1] == f"presize: error: {said}"


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "not installed"),
        (OSError("libcudart.so.13: no such file\nand more"), "cannot be imported: libcudart.so.13: no such file"),
    ],
    ids=["not installed", "broken"],
)
def test_doctor_works_without_torch(
    error: Exception, found: str, presize: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoTorch:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "torch":
                raise error

    monkeypatch.setattr(sys, "meta_path", [NoTorch, *sys.meta_path])
    for module in ("torch", "presize.datasets.timing.devices"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    findings = json.loads(presize("doctor", "--json").out)["findings"]
    torch = next(finding for finding in findings if finding["topic"] == "torch")
    assert (torch["level"], torch["found"]) == ("warn", found)


def test_a_warning_is_one_line_and_not_a_failure(tmp_path: Path) -> None:
    for split in ("train", "val"):
        save_image(tmp_path / "raw" / split / "a.jpg")
    ran = command("build", tmp_path / "raw", tmp_path / "out", "--jobs", 1)
    assert ran.returncode == 0
    assert ran.stderr.startswith("presize: warning: source ") and ran.stderr.count("\n") == 1
    assert "holds only train, val: they become its classes" in ran.stderr


def test_debug_shows_the_traceback(presize: Callable[..., Ran], tmp_path: Path) -> None:
    with pytest.raises(DatasetError):
        presize("--debug", "info", tmp_path)


def test_a_bare_presize_prints_its_help(presize: Callable[..., Ran]) -> None:
    ran = presize()
    assert (ran.code, ran.err) == (2, presize("--help").out)


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_is_printed(option: str, presize: Callable[..., Ran]) -> None:
    assert presize(option).out == f"presize, version {__version__}\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--size 64x64", "--size 64x64: with --fit shorter, images keep their shapes and cover 64x64, as with"),
        ("--size 64x48 --fit longer", "--size 64x48: with --fit longer, images keep their shapes and fit"),
        ("--jobs 200", "--jobs 200: "),
    ],
)
@pytest.mark.filterwarnings("always::presize.errors.PresizeWarning")
def test_implausible_options_are_one_line_errors(
    options: str, words: str, presize: Callable[..., Ran], raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presize.cli.group.usable_cores", lambda: 2)
    ran = presize("build", raw, "out", *options.split(), "--dry-run")
    assert ran.code == 0
    assert ran.err.startswith(f"presize: warning: {words}") and ran.err.count("\n") == 1


def test_quiet_commands_print_nothing(presize: Callable[..., Ran], raw: Path, dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for command in (
        ("build", raw, out, "--size", 64, "--jobs", 1),
        ("derive", dataset, tmp_path / "derived"),
        ("export", dataset, tmp_path / "files"),
        ("repair", raw, out),
        ("sample", tmp_path / "raw", "--images", 4, "--long-side", 32),
        ("verify", dataset),
    ):
        assert presize(*command, "-q") == Ran(0, "", "")


def test_a_closed_pipe_is_not_a_traceback(dataset: Path) -> None:
    assert shell(f"info {dataset} | true").stderr == ""


FULL = "presize: error: cannot print: No space left on device\n"


@pytest.mark.parametrize("options", ["info", "info --json", "verify"])
def test_a_full_output_device_is_a_one_line_error(
    options: str, presize: Callable[..., Ran], dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", open("/dev/full", "w"))  # print_text closes it
    assert presize(*options.split(), dataset) == Ran(1, "", FULL)


@pytest.mark.parametrize("line", ["view DATASET", "simulate --workers 7 --load-ms 2000 --step-ms 100"])
def test_a_page_that_does_not_fit_the_disk_is_not_said_to_be_kept(
    line: str, presize: Callable[..., Ran], dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    page = tmp_path / "page.html"
    ran = presize(*line.replace("DATASET", str(dataset)).split(), "-o", page)
    assert ran == Ran(1, "", f"presize: error: cannot write {page}: No space left on device; make room; run again\n")


def test_output_larger_than_the_buffer_fails_the_same_way(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / "raw" / f"class {number}").mkdir(parents=True)
    save_image(tmp_path / "raw" / "class 7" / "a.jpg")
    with open("/dev/full", "w") as full:
        ran = command("build", tmp_path / "raw", tmp_path / "out", "--dry-run", "--json", stdout=full)
    assert (ran.returncode, ran.stderr) == (1, FULL)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_build_without_standard_error_is_silent(jobs: int, raw: Path, tmp_path: Path) -> None:
    ran = shell(f"build {raw} {tmp_path / 'out'} --size 64 --jobs {jobs} 2>&-")
    assert ran.returncode == 0
    assert "56 images" in ran.stdout


def test_an_error_without_standard_error_is_an_exit_code(tmp_path: Path) -> None:
    assert shell(f"build {tmp_path} {tmp_path}/out --size 0 2>&-").returncode == 2


def test_no_file_reuses_closed_standard_streams(tmp_path: Path) -> None:
    program = "import os, sys, presize.cli as c; c.open_closed_streams(); os.write(4, b'%d' % os.open(sys.argv[1], 0))"
    told = tmp_path / "descriptor"
    subprocess.run(f'{sys.executable} -c "{program}" {tmp_path} 4>{told} <&- >&- 2>&-', shell=True, cwd="/", check=True)
    assert int(told.read_bytes()) > 2


def test_a_terminal_shows_a_progress_bar(raw: Path, tmp_path: Path) -> None:
    terminal, stderr = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    args = [sys.executable, "-m", "presize", "build", raw, tmp_path / "out", "--size", "64", "--jobs", "1"]
    with subprocess.Popen(args, stderr=stderr, stdout=subprocess.DEVNULL, cwd="/"):
        os.close(stderr)
        shown = "".join(lines_of(terminal))
    for words in ("build: 100%", "60/60", "4 rejected"):
        assert words in shown


def lines_of(terminal: int) -> Iterator[str]:
    with os.fdopen(terminal, "rb", buffering=0) as file:
        while True:
            try:
                yield file.read(4096).decode()
            except OSError:  # a terminal signals in this way that all writers have closed it
                return


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_has_help_that_ends_with_valid_examples(
    name: str, presize: Callable[..., Ran], dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "OUT").symlink_to(dataset)  # --like reads it
    monkeypatch.chdir(tmp_path)
    ran = presize(name, "--help")
    help, _, examples = ran.out.partition("Examples:\n")
    assert ran.code == 0 and "Exit codes:" in help
    commands = list(map(shlex.split, examples.splitlines()))
    assert 2 <= len(commands) <= 3
    for program, command, *args in commands:
        assert (program, command) == ("presize", name)
        with cli.commands[name].make_context(name, args):
            pass


def test_the_list_of_commands_truncates_no_sentence(presize: Callable[..., Ran]) -> None:
    _, _, commands = presize("--help").out.partition("Commands:")
    assert "..." not in commands


def command(*args: object, stdout: int | IO[str] = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run the presize command in another process."""
    program = [sys.executable, "-m", "presize", *map(str, args)]
    return subprocess.run(program, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd="/", check=False)


def shell(args: str) -> subprocess.CompletedProcess[str]:
    """Run the presize command by a shell, for redirections."""
    program = f"{sys.executable} -m presize {args}"
    return subprocess.run(program, shell=True, capture_output=True, text=True, cwd="/", check=False)


@pytest.mark.slow
def test_diagnose_prints_the_verdict_then_the_advice_then_the_evidence(
    presize: Callable[..., Ran], raw: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    short = ("--crop", 32, "--size", 40, "--batch", 4, "--seconds", 0.05)
    ran = presize("diagnose", raw, *short, "-o", page)
    assert ran.code == 0, ran.err
    result = r"[A-Z][^.]+, (training|it) would be \d+\.\d+ times as fast\.\n\n"
    verdict = r"[A-Z][a-z ]+ (is the bottleneck|are balanced): the training step is busy \d+% of the time\."
    assert re.match(result + verdict, ran.out)
    assert re.search(r"^  decoding +\d+%", ran.out, re.MULTILINE)
    assert "building a small dataset to try: Presize to 40 px" in ran.err
    assert "reading batches and training on one: Presize to 40 px and read it with Loader" in ran.err
    assert "<!doctype html>" in page.read_text()


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


STOPPED = """
import os, subprocess, sys, time
import presize.datasets.timing.diagnose_path as module
from presize.cli import main

def wait(*_, **__):
    kill = f"kill -{sys.argv[1]} {os.getpid()}"
    times = 1 if sys.argv[1] == "2" else 2  # a terminal that is closed and its shell send one each
    subprocess.run("; sleep 0.01; ".join([kill] * times), shell=True)
    time.sleep(60)

module.diagnose_path = wait
main(["diagnose", sys.argv[2], "-q"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_diagnosis_leaves_no_folder_and_names_the_signal(
    number: signal.Signals, raw: Path, tmp_path: Path
) -> None:
    ran = run_command([sys.executable, "-c", STOPPED, int(number), raw], env={"TMPDIR": str(tmp_path)})
    assert (ran.returncode, ran.stderr) == (128 + number, "presize: error: interrupted\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_that_python_ignores_in_a_finalizer_still_stops_a_build(
    number: signal.Signals, raw: Path, tmp_path: Path
) -> None:
    arguments = ["build", raw, tmp_path / "out", "--size", 64, "--backend", "sequential"]
    ran = run_command([sys.executable, "-c", IGNORED, int(number), *arguments])
    assert ran.returncode == 128 + number
    assert "run again to resume" in ran.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()
