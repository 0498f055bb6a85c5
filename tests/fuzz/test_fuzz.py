"""Short fuzzing: damaged JPEGs for the decoder, damaged datasets for the readers. `make fuzz` continues for hours."""

from __future__ import annotations

import random
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from effort import EFFORT, examples
from jpegs import compiled
from presize.codecs.jpeg import decoder as jpeg_decoder
from processes import run_command

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "jpeg"
DIFFERENTIAL = runpy.run_path(str(ROOT / "tools" / "fuzz_jpeg_decoder.py"))


@pytest.fixture(scope="module")
def corpus() -> list[bytes]:
    return DIFFERENTIAL["corpus"](CORPUS)


def test_the_corpus_is_small() -> None:
    sizes = [path.stat().st_size for path in CORPUS.iterdir()]
    assert 20 <= len(sizes) <= 120 and sum(sizes) < 300_000


@compiled
@pytest.mark.parametrize("source", ["corpus", "random"])
def test_accepted_or_recoded_jpegs_have_the_pixels_of_libjpeg_turbo(source: str, corpus: list[bytes]) -> None:
    choice = random.Random(1 if source == "corpus" else None)  # random files differ in each run
    tried = corpus * 5 if source == "corpus" else [DIFFERENTIAL["drawn"](choice, corpus) for _ in range(examples(600))]
    decoder, taken = jpeg_decoder.compiled.trusted(), 0
    for data in tried:
        accepted, wrong = DIFFERENTIAL["difference"](decoder, data, choice)
        wrong = wrong or DIFFERENTIAL["recoding_difference"](decoder, data, choice)
        assert wrong is None, f"{wrong}: {data.hex()}"
        taken += accepted
    assert taken > (0 if source == "corpus" else examples(600) / 20)


def has_sanitizers() -> bool:
    """Return True if clang has libFuzzer, which Debian's package lacks."""
    if not shutil.which("clang"):
        return False
    program = "int LLVMFuzzerTestOneInput(const char *data, long bytes) { return data == 0 && bytes; }"
    with tempfile.TemporaryDirectory() as folder:
        command = ["clang", "-fsanitize=fuzzer,address,undefined", "-x", "c", "-", "-o", f"{folder}/target"]
        return subprocess.run(command, input=program, text=True, capture_output=True).returncode == 0


def ran(script: str, *args: object) -> str:
    command = [sys.executable, str(ROOT / "tools" / script), *map(str, args)]
    result = run_command(command, timeout_s=300 + 60 * EFFORT)
    assert result.returncode == 0, (result.stdout + result.stderr)[-5000:]
    return result.stdout


@pytest.mark.slow
@compiled
@pytest.mark.skipif(not has_sanitizers(), reason="needs clang with its sanitizers: apt-get install libclang-rt-dev")
def test_coverage_leads_to_no_file_that_crashes_the_decoder_or_is_decoded_wrongly() -> None:
    said = ran("fuzz_coverage.py", "--seconds", 10 * EFFORT)
    found = re.fullmatch(r"(\d+) inputs; \d+ files of new coverage, (\d+) accepted, no differences\n", said)
    assert found and int(found[1]) > 0 and int(found[2]) > 0


TOOLS = {
    "fuzz_jpeg_decoder.py": r"(\d+) JPEGs, (\d+) of them accepted, no differences\n",
    "fuzz_pillow_resize.py": r"(\d+) resizes, no differences\n",
    "fuzz_pillow_color.py": r"(\d+) operations, no differences\n",
}


@pytest.mark.slow
@compiled
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
@pytest.mark.parametrize("tool", TOOLS)
def test_the_sanitizers_find_no_fault_in_the_c_code(tool: str) -> None:
    seed = random.randrange(2**32)
    found = re.fullmatch(TOOLS[tool], ran(tool, "--seconds", 5 * EFFORT, "--seed", seed))
    assert found and int(found[found.re.groups]) > int(found[1]) / 10 > 0, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_c_code_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    sources = [*(ROOT / "presize" / "codecs").rglob("*.c"), CORPUS.parent / "jpeg_decoder.c"]
    flags = ["-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{sysconfig.get_paths()['include']}", "-c"]
    for source in sources:
        subprocess.run([compiler, *flags, source, "-o", tmp_path / "out.o"], check=True)


@pytest.mark.slow
def test_no_damaged_dataset_crashes_a_reader() -> None:
    seed = random.randrange(2**32)
    said = ran("fuzz_datasets.py", "--seconds", 0, "--least", 5, "--seed", seed)
    assert said.endswith("\n5 datasets, no defects\n"), f"seed {seed}: {said}"


@pytest.mark.slow
def test_many_damaged_datasets_crash_no_reader() -> None:
    seed = random.randrange(2**32)
    assert "datasets, no defects\n" in ran("fuzz_datasets.py", "--seconds", 12 * EFFORT, "--seed", seed), f"seed {seed}"
