"""Wrong use of every command is one line on standard error that names the option, and an exit code."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import Ran
from users import without_privileges

MILLISECONDS = "expected milliseconds above 0 up to 1e9, got"
RAW_OF_OTHERS = "has neither '0-red-disc/0000.jpg' nor the other sources that were tried; expected the folder of files"
SIMULATE = "simulate --workers 7 --load-ms 2000 --step-ms 100"

MISTAKES = [
    ("build", 2, "Missing argument 'SRC'"),
    ("build RAW", 2, "Missing argument 'OUT'"),
    ("biuld RAW OUT", 2, "Did you mean 'build'?"),
    ("build RAW OUT --colour rgb", 2, "Did you mean '--color'?"),
    ("build RAW OUT --size 0", 2, "--size: expected a whole number from 1 to 16383, got 0"),
    ("build RAW OUT --size 256px", 2, "such as 256 or 320x240, got '256px'"),
    ("build RAW OUT --size 9 --size 9", 2, "--size: expected each size once"),
    ("build RAW OUT --update --overwrite", 2, "--update: cannot be combined with --overwrite"),
    ("build RAW OUT --update --to folder", 2, "--update: the files of a folder"),
    ("build RAW FULL --update --dry-run", 1, "is not a presize dataset"),
    ("build RAW OUT --verify", 2, "--verify: reads the records that --update keeps; add --update, or run presize ver"),
    ("build RAW OUT --fit cover", 2, "'cover' is not one of 'shorter'"),
    ("build RAW OUT --quality 101", 2, "--quality: expected a whole number from 1 to 100"),
    ("build RAW OUT --quality 80 --format png", 2, "--quality: applies only to jpeg and webp"),
    ("build RAW OUT --subsampling 444 --format webp", 2, "--subsampling: applies only to jpeg"),
    ("build RAW OUT --tiles all --format png", 2, "--tiles: applies only to jpeg, but --format is png; leave it out"),
    ("build RAW OUT --size keep --fit crop", 2, "--fit: has no effect with --size keep; leave it out"),
    ("build RAW OUT --size keep --upscale", 2, "--upscale: has no effect with --size keep; leave it out"),
    ("build RAW OUT --like EMPTY", 1, "is not a presize dataset"),
    ("build RAW OUT --jobs 0", 2, "--jobs: expected a whole number from 1"),
    ("build RAW OUT --max-errors few", 2, "--max-errors: expected a count or a percentage"),
    ("build RAW OUT --to folder --format raw", 2, "--to: format raw cannot be stored as image files"),
    ("build nowhere OUT", 1, "source 'nowhere' does not exist"),
    ("build FILE OUT", 1, "is a file; expected a folder of images"),
    ("build EMPTY OUT", 1, "holds no files"),
    (
        "build DATASET RAW",
        1,
        "holds '0-red-disc' and is not a presize dataset; choose a new or empty folder (did you swap SRC and OUT?)",
    ),
    ("build nowhere RAW --dry-run", 1, "did you swap SRC and OUT?"),
    ("build EMPTY RAW", 1, "did you swap SRC and OUT?"),
    ("build EMPTY FULL", 1, "holds 'mine' and is not a presize dataset; choose a new or empty folder"),
    ("build FILE RAW", 1, "choose a new or empty folder"),
    ("build RAW RAW", 1, "the source and OUT are the same"),
    ("build RAW RAW/out", 1, "lies inside the source"),
    ("build RAW FILE", 1, "is a file; choose a folder"),
    ("build RAW RAW/out --dry-run", 1, "lies inside the source"),
    ("build RAW LOOP", 1, "LOOP is a link that does not lead to a folder; choose a folder"),
    ("build RAW DANGLING", 1, "DANGLING is a link that does not lead to a folder; choose a folder"),
    ("build RAW LOOP --update", 1, "LOOP"),
    ("build RAW LOOP --to folder --part 1/2", 1, "LOOP"),
    ("build RAW LOOP/out", 1, "LOOP/out: Too many levels of symbolic links; choose another"),
    ("build LOOP OUT", 1, "source 'LOOP': Too many levels of symbolic links"),
    ("build LOOP/photos OUT", 1, "source 'LOOP/photos': Too many levels of symbolic links"),
    ("build RAW OUT --labels LOOP", 1, "LOOP"),
    ("build RAW OUT --classes LOOP", 1, "LOOP"),
    ("build RAW OUT --like LOOP", 1, "LOOP"),
    ("build RAW FULL --dry-run", 1, "holds 'mine' and is not a presize dataset"),
    ("build RAW OUT --labels nowhere.csv", 1, "nowhere.csv': No such file or directory; expected a readable file"),
    ("build RAW OUT --split train=0.9", 2, "--split: the fractions in 'train=0.9' add up to 0.9"),
    ("build RAW OUT --split-seed 1", 2, "--split-seed: needs --split with fractions, such as train=0.9,val=0.1"),
    ("build RAW OUT --repeated list", 2, "--repeated: list merges rows of a table"),
    ("build RAW OUT --classes nowhere", 1, "classes 'nowhere': No such file or directory; expected a readable file"),
    (
        "build RAW OUT --max-errors 3",
        1,
        "4 images were rejected or unreadable, more than --max-errors 3 allows; one is ",
    ),
    ("build RAW OUT --on-error fail", 1, ".jpg: "),
    ("build RAW OUT --pair mask", 2, "--pair: expected NAME=PATTERN, such as mask=masks/{stem}.png, got 'mask'"),
    ("build RAW OUT --pair m={stem} --pair-format tiff", 2, "--pair-format: expected one of jpeg, png, webp, raw"),
    ("build RAW OUT --pair m={stem} --pair-filter linear", 2, "--pair-filter: expected one of nearest, box"),
    ("build RAW OUT --pair a=m/{stem}.png --pair a=n/{stem}.png", 2, "--pair: expected each name once"),
    ("build RAW OUT --pair m={stem} --to folder", 2, "--to: companions are stored only in shards"),
    ("info nowhere", 1, "nowhere does not exist"),
    ("info RAW", 1, "is not a presize dataset"),
    ("verify EMPTY", 1, "is not a presize dataset"),
    ("export DATASET RAW", 1, "is not an empty folder"),
    ("export DATASET LOOP", 1, "LOOP is not an empty folder; choose a new one"),
    ("export DATASET LOOP/out --to tar", 1, "LOOP/out: Too many levels of symbolic links"),
    ("derive DATASET LOOP --size 32", 1, "LOOP is a link that does not lead to a folder; choose a folder"),
    ("derive DATASET OUT --timeout-s 0", 2, "--timeout-s: expected seconds above 0"),
    ("derive DATASET DATASET", 1, "the source and OUT are the same"),
    ("derive DATASET RAW", 1, "choose a new or empty folder"),
    ("derive LOOP OUT --size 32", 1, "LOOP/manifest.json: Too many levels"),
    ("repair DATASET RAW", 1, "did you swap SRC and OUT?"),
    ("repair DATASET nowhere", 1, "did you swap SRC and OUT?"),
    ("repair LOOP DATASET", 1, "the source LOOP is not a folder"),
    ("repair RAW LOOP", 1, "LOOP: Too many levels"),
    ("info LOOP", 1, "LOOP"),
    ("verify LOOP", 1, "LOOP"),
    ("upload LOOP s3://nowhere/set", 1, "LOOP"),
    ("doctor nowhere", 1, "nowhere: No such file or directory; expected a dataset, a folder"),
    ("diagnose nowhere -q", 1, "nowhere"),
    ("diagnose RAW -q --seconds 0", 2, "--seconds"),
    ("diagnose RAW --device mps", 2, "--device: expected one that this machine has, got 'mps', and torch "),
    ("diagnose RAW --device toaster", 2, "--device: expected one that torch knows, such as cpu, cuda, "),
    ("diagnose RAW -o nowhere/page.html", 2, "-o: nowhere is not a folder"),
    ("sample RAW", 1, "is not empty"),
    ("sample FILE/x", 1, "cannot write"),
    ("sample LOOP", 1, "cannot write LOOP"),
    ("diagnose LOOP -q", 1, "LOOP"),
    ("diagnose --workers 8 train.py", 2, "--workers: does not apply to a script, which runs unchanged; leave it out."),
    ("diagnose --no-trial train.py", 2, "--no-trial: does not apply to a script"),
    ("diagnose --compare FILE FILE --json", 2, "--json: does not apply to --compare; leave it out."),
    ("diagnose RAW --compare FILE FILE", 2, "PATH: does not apply to --compare; leave it out."),
    ("diagnose DATASET --size 64", 2, "--size: is for the presizing trial of a folder, and there is none"),
    ("diagnose RAW --no-trial --size 64", 2, "--size: is for the presizing trial of a folder, and there is none"),
    ("bench --raw LOOP", 1, "source 'LOOP': Too many levels"),
    ("bench --raw RAW --work LOOP", 1, "LOOP"),
    ("view DATASET -o LOOP", 2, "-o: LOOP"),
    ("view LOOP -o page.html", 1, "LOOP"),
    ("view DATASET --raw LOOP -o page.html", 2, "--raw: 'LOOP' is not a folder"),
    ("sample OUT --images 0", 2, "--images: expected a whole number from 1"),
    ("bench", 2, "--raw: expected a folder of images"),
    ("bench --raw nowhere", 1, "source 'nowhere' does not exist"),
    ("bench --lmdb nowhere", 1, "nowhere"),
    ("bench --lmdb nowhere --batch 0", 2, "--batch: expected a whole number from 1 to"),
    ("bench --lmdb nowhere --pin-memory on", 2, "--pin-memory: pinned memory needs CUDA or XPU"),
    ("bench --lmdb nowhere --size 64", 2, "--size: is for datasets that bench builds, but all are given; leave it out"),
    ("bench --lmdb nowhere --work w", 2, "--work: is for datasets that bench builds, but all are given; leave it out"),
    ("bench --lmdb nowhere --variant raw", 2, "--variant: raw needs --raw"),
    ("bench --lmdb nowhere --model huge", 2, "'huge' is not one of"),
    (f"{SIMULATE} --load-ms 0", 2, f"--load-ms: {MILLISECONDS} 0"),
    (f"{SIMULATE} --load-ms -5", 2, f"--load-ms: {MILLISECONDS} -5"),
    (f"{SIMULATE} --load-ms nan", 2, f"--load-ms: {MILLISECONDS} nan"),
    (f"{SIMULATE} --load-ms slow", 2, "Invalid value for '--load-ms'"),
    (f"{SIMULATE} --step-ms 0", 2, f"--step-ms: {MILLISECONDS} 0"),
    (f"{SIMULATE} --pin-ms -1", 2, "--pin-ms: expected milliseconds from 0 up to 1e9, got -1"),
    (f"{SIMULATE} --then-load-ms 0", 2, f"--then-load-ms: {MILLISECONDS} 0"),
    (f"{SIMULATE} --then-workers -1", 2, "--then-workers: expected a whole number from 0 to 1024, got -1"),
    (f"{SIMULATE} --workers -1", 2, "--workers: expected a whole number from 0 to 1024, got -1"),
    (f"{SIMULATE} --prefetch 0", 2, "--prefetch: expected a whole number from 1 to 1024, got 0"),
    (f"{SIMULATE} --seconds 0", 2, "--seconds: expected a number above 0, got 0.0"),
    (f"{SIMULATE} --seconds inf", 2, "--seconds: expected a number above 0, got inf"),
    (f"{SIMULATE} --cv -1", 2, "--cv: expected a number from 0 to 100, got -1.0"),
    (f"{SIMULATE} --cores 0", 2, "--cores: expected a number above 0, got 0.0"),
    (f"{SIMULATE} --seed -1", 2, "--seed: expected a whole number from 0 to"),
    (f"{SIMULATE} --sweep 0", 2, "--sweep: expected a whole number from 1 to 1024, got 0"),
    (f"{SIMULATE} -o EMPTY", 2, "-o: EMPTY is a folder; give the name of a file."),
    (f"{SIMULATE} -o nowhere/page.html", 2, "-o: nowhere is not a folder"),
    ("view DATASET", 2, "expected -o FILE or --serve."),
    ("view DATASET --serve -o page.html", 2, "expected -o FILE or --serve, not both."),
    ("view DATASET -o /nowhere/page.html", 2, "-o: /nowhere is not a folder; create it, or choose another."),
    ("view DATASET -o NOTES", 2, "-o: NOTES exists and is not an HTML page; choose another name."),
    ("view DATASET -o DATASET/report.html", 2, "report.html is a file of the dataset in its folder; choose another"),
    (f"{SIMULATE} -o DATASET/report-1.html", 2, "report-1.html is a file of the dataset in its folder"),
    (
        "view DATASET -o view.png",
        2,
        "-o: view.png is not the name of a page; expected one that ends with .html or .htm",
    ),
    ("view DATASET -o page.html --port 8000", 2, "--port: applies only to --serve; leave it out."),
    ("view DATASET --serve --images 9", 2, "--images: applies only to -o; leave it out."),
    ("view DATASET --serve --min-side 9 --max-side 8", 2, "--min-side: expected at most the maximum of 8, got 9"),
    ("view DATASET -o PIPE", 2, "-o: PIPE exists and is not an HTML page; choose another name."),
    ("view DATASET --serve --text \udcff", 2, r"--text: expected UTF-8, got '\udcff'"),
    ("view DATASET --serve --label dog", 2, "--label: expected one of 0-red-disc, 1-jade-star, 2-violet-square, got"),
    ("view DATASET --serve --min-side -3", 2, "--min-side: expected at least 0, got -3\n"),
    ("view DATASET --serve --raw /usr", 2, f"--raw: '/usr' {RAW_OF_OTHERS}"),
    ("view DATASET --serve --raw nowhere", 2, "--raw: 'nowhere' is not a folder; expected the folder that the dataset"),
    ("build RAW s3://data/x --part 1/2", 2, "--part: expected a folder shared by all machines"),
    ("build RAW s3://data/x --dry-run --update", 2, "--dry-run: cannot plan an update of a URL"),
    ("build RAW OUT --scratch here", 2, "--scratch: expected an OUT that is a URL"),
    ("view s3://bucket/OUT --serve", 1, "presize fetch s3://bucket/OUT DIR"),
]


@pytest.fixture
def places(raw: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Create the files that the lines name in the working folder, and return paths elsewhere."""
    monkeypatch.chdir(tmp_path)
    Path("FILE").touch()
    Path("train.py").touch()
    Path("EMPTY").mkdir()
    Path("FULL/mine").mkdir(parents=True)
    Path("NOTES").write_text("of a year")
    os.mkfifo("PIPE")
    os.symlink("LOOP", "LOOP")
    os.symlink("nowhere", "DANGLING")
    return {"RAW": raw, "DATASET": dataset}


@pytest.mark.parametrize(("line", "code", "words"), MISTAKES, ids=[line for line, *_ in MISTAKES])
def test_a_mistake_is_a_clear_one_line_error(
    line: str, code: int, words: str, presize: Callable[..., Ran], places: dict[str, Path]
) -> None:
    args = [re.sub(r"^(RAW|DATASET)\b", lambda found: str(places[found[1]]), arg) for arg in line.split()]
    ran = presize(*args)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    named = re.escape(words) if words.startswith("-") else f".*{re.escape(words)}"
    assert re.match(f"presize: error: {named}", ran.err)
    assert Path("NOTES").read_text() == "of a year"


FORBIDDEN = """
    build UNLISTED OUT; build UNLISTED OUT --to folder; build UNLISTED OUT --dry-run; build UNLISTED OUT --part 1/2
    build CLOSED OUT; build RAW UNLISTED; build RAW CLOSED; build RAW CLOSED --dry-run; build RAW CLOSED --update
    build RAW CLOSED/x; build RAW CLOSED --part 1/2; build RAW OUT --classes CLOSED/x; build RAW OUT --like CLOSED
    build UNLISTED DATASET --update; repair RAW CLOSED; derive CLOSED OUT; derive DATASET CLOSED --size 32
    export DATASET UNLISTED; export DATASET CLOSED; export DATASET CLOSED/x; export CLOSED OUT; info CLOSED
    verify CLOSED; sample UNLISTED; sample CLOSED; sample CLOSED/x; bench --raw UNLISTED; bench --raw CLOSED
    bench --lmdb CLOSED; bench --raw RAW --work CLOSED; diagnose UNLISTED -q; diagnose CLOSED -q
    view CLOSED -o page.html; view DATASET -o CLOSED/page.html; upload CLOSED s3://nowhere/set
"""


def test_a_folder_that_may_not_be_listed_or_entered_is_a_one_line_error(
    presize: Callable[..., Ran], places: dict[str, Path]
) -> None:
    for name, mode in (("UNLISTED", 0o311), ("CLOSED", 0)):
        Path(name, "cats").mkdir(parents=True)
        Path(name, "cats", "1.jpg").write_bytes(next(places["RAW"].rglob("*.jpg")).read_bytes())
        os.chmod(name, mode)
    with without_privileges():
        for line in re.split(r"[;\n]\s*", FORBIDDEN.strip()):
            ran = presize(*(places.get(word, word) for word in line.split()))
            assert (ran.code in (1, 2), ran.out, ran.err.count("\n")) == (True, "", 1), (line, ran)
            assert re.match(r"presize: error: .*(UNLISTED|CLOSED).*(Permission denied|cannot be written)", ran.err), ran


@pytest.mark.parametrize("long", ["x" * 300, "/".join(["y" * 200] * 25)], ids=["a component", "the whole"])
@pytest.mark.parametrize(
    "command", ["build RAW", "build LONG out", "info", "verify", "diagnose", "doctor", "diagnose RAW -o LONG/page"]
)
def test_a_path_longer_than_the_system_takes_is_a_one_line_error(
    presize: Callable[..., Ran], places: dict[str, Path], command: str, long: str
) -> None:
    words = command.split() if "LONG" in command else [*command.split(), "LONG"]
    ran = presize(*(places.get(word, word.replace("LONG", long)) for word in words))
    assert ran.code in (1, 2)
    assert re.search(r"(^|\n)presize: error: .*(File name too long|is not a folder).*\n$", ran.err)
    assert "Traceback" not in ran.err


def test_a_dry_run_into_a_path_longer_than_the_system_takes_has_no_traceback(
    presize: Callable[..., Ran], raw: Path
) -> None:
    assert presize("build", raw, "x" * 300, "--dry-run").code == 0


def test_a_hostile_file_name_is_harmless_to_the_terminal(presize: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "\x1b]0;mine\x07\n\u202e.jpg").touch()
    ran = presize("build", tmp_path / "raw", tmp_path / "out", "--jobs", "1", "--on-error", "fail")
    assert ran.err == "presize: error: \\x1b]0;mine\\x07\\n\\u202e.jpg: the file is empty\n"
