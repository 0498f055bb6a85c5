"""Unchanged scripts, whose loaders are timed while they run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from builds import SERIAL, SMALL
from presize.builder.run import build_dataset
from presize.datasets import LMDBDataset, Loader, RandomResizedCrop
from presize.measure.watch import Watch, Watched, compared_text, run_script, watched_text
from presize.sources.sample import SampleOptions, make_samples

LOADER = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Sleeping(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((3,), float(index)), torch.rand(())

torch.manual_seed(0)
loader = DataLoader(Sleeping(), 4, shuffle=True)
"""
TRAINS = f"""{LOADER}
total = 0.0
for images, noise in loader:
    total += float((images.mean() * noise).sum())
print(total, sys.argv, sys.path[0], __name__, __file__)
"""


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.004)
        return torch.zeros(2)


def write(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return str(folder / "train.py")


def run(script: str, *arguments: str) -> tuple[int, list[Watched]]:
    found: list[Watched] = []
    watch = Watch()
    code = run_script(script, arguments, watch, lambda: found.extend(watch.watched()))
    return code, found


def diagnosed(*command: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    *python, script = command
    program = [*python, "-m", "presize", "diagnose", *options, script]
    return subprocess.run(program, capture_output=True, text=True, check=False, cwd="/")


class Endless(torch.utils.data.Sampler[int]):
    """A sampler without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(24))


def test_a_sampler_without_a_length_is_not_asked_for_it() -> None:
    with Watch() as watch:
        for _ in DataLoader(Slow(), 2, sampler=Endless()):
            pass
    assert [seen.batches for seen in watch.watched()] == [12]


@pytest.mark.parametrize("is_relative", [False, True])
def test_a_script_runs_as_under_python(
    is_relative: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = write(tmp_path, TRAINS)
    script = "train.py" if is_relative else script
    subprocess.run([sys.executable, script, "--lr", "0.1"], check=True)
    plain = capfd.readouterr().out
    state = torch.random.get_rng_state()
    code, (seen,) = run(script, "--lr", "0.1")
    torch.random.set_rng_state(state)
    assert capfd.readouterr().out == plain
    assert code == 0
    assert (seen.batches, seen.all_images, len(seen.starts_s), seen.workers) == (15, 60, 1, 0)
    assert min(seen.waits_s) >= 0.008
    assert seen.known()["wait"] > 0.5


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no such model')", 1, "no such model\n"),
        ("sys.exit()", 0, ""),
        ("raise ValueError('it diverged')", 1, "ValueError: it diverged\n"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
    ],
)
def test_its_exit_code_and_errors_are_unchanged(
    end: str, code: int, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found, seen = run(write(tmp_path, f"{LOADER}\nnext(iter(loader))\n{end}\n"))
    assert (found, len(seen)) == (code, 1)
    shown = capfd.readouterr().err
    assert shown.endswith(said)
    assert "runpy" not in shown and "watch.py" not in shown


def test_a_script_that_cannot_be_parsed_is_reported_as_python_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = write(tmp_path, "def train(:\n    pass\n")
    subprocess.run([sys.executable, script], check=False)
    plain = capfd.readouterr().err
    assert run(script) == (1, [])
    assert capfd.readouterr().err == plain


IMPORTS = """
import os, sys
print([name for name in ("torch", "numpy", "cv2") if name in sys.modules])
os.environ["OMP_NUM_THREADS"] = "1"
import torch
from torch.utils.data import DataLoader
print(torch.get_num_threads())
for batch in DataLoader(range(40), 2): pass
"""


@pytest.mark.slow
def test_a_script_can_set_the_environment_of_libraries_before_they_are_imported(tmp_path: Path) -> None:
    ran = diagnosed(sys.executable, write(tmp_path, IMPORTS))
    assert (ran.returncode, ran.stdout) == (0, "[]\n1\n")
    assert "DataLoader over range with 40 samples, 0 workers:" in ran.stderr


class Strange(Slow):
    """A dataset, or a batch, with an unusable length."""

    def __len__(self) -> int:
        raise NotImplementedError


def test_batches_and_loaders_without_a_length_are_counted_as_batches() -> None:
    loader = DataLoader(Strange(), 2, sampler=range(24), collate_fn=lambda _: Strange())
    with Watch() as watch:
        for _ in loader:
            pass
    (seen,) = watch.watched()
    assert (seen.batches, seen.all_images) == (12, 0)
    known = {"loaders": [json.loads(json.dumps(seen.known()))]}
    assert " batches/s in 12 batches;" in watched_text(known["loaders"])
    assert " batches/s, " in compared_text(known, known)


class Keyed(Dataset[torch.Tensor]):
    """A dataset without a length."""

    def __getitem__(self, key: Any) -> torch.Tensor:
        return torch.zeros(2)


def test_a_length_that_torch_does_not_ask_for_is_not_needed() -> None:
    with Watch() as watch:
        for _ in DataLoader(Keyed(), batch_sampler=[["a", "b"]] * 12):
            pass
    assert [(seen.name, seen.batches) for seen in watch.watched()] == [("DataLoader over Keyed, 0 workers", 12)]


def test_work_between_iter_and_the_first_batch_is_not_waiting() -> None:
    with Watch() as watch:
        batches = iter(DataLoader(TensorDataset(torch.zeros(40)), 2))
        time.sleep(1)
        for _ in batches:
            pass
    (seen,) = watch.watched()
    assert seen.starts_s[0] < 1


def test_the_verdict_is_printed_if_the_script_closes_standard_output(tmp_path: Path) -> None:
    script = write(tmp_path, f"{LOADER}\nfor _ in loader: pass\nsys.stdout.close()\nsys.exit(3)\n")
    ran = diagnosed(sys.executable, script, options=["--json"])
    assert (ran.returncode, ran.stdout) == (3, "") and "training waits" in ran.stderr


def test_there_is_one_interim_verdict_after_many_batches() -> None:
    told: list[int] = []
    with Watch(lambda: told.append(watch.watched()[0].batches), interim_s=0) as watch:
        for _ in range(2):
            for _ in DataLoader(TensorDataset(torch.zeros(150)), 1):
                pass
    assert told == [101]


def test_a_script_without_a_loader_is_reported(
    tmp_path: Path, presize: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    ran = presize("diagnose", write(tmp_path, "print('done')"), "--json", "-o", "mine")
    assert (ran.code, ran.out) == (0, "done\n"), "arguments after the script belong to the script"
    assert "No DataLoader or Loader was iterated" in ran.err
    assert presize("diagnose", "-o", "page.html", tmp_path / "train.py").code == 2


def test_loaders_are_restored_afterwards() -> None:
    base = type(iter(DataLoader(Slow()))).__base__
    before = [DataLoader.__iter__, Loader.__iter__, dict(vars(base))]
    with Watch():
        assert DataLoader.__iter__ is not before[0]
    assert [DataLoader.__iter__, Loader.__iter__] == before[:2]
    assert dict(vars(base)) == before[2]


def test_an_inner_epoch_is_not_the_step_of_the_outer_one() -> None:
    train, validation = DataLoader(TensorDataset(torch.zeros(20)), 1), DataLoader(Slow(), 4)
    with Watch() as watch:
        for number, _ in enumerate(train):
            if number == 10:
                for _ in validation:
                    pass
    outer, inner = watch.watched()
    assert inner.batches == 12
    assert sum(outer.steps_s) < 0.5 * inner.known()["seconds"]


@pytest.mark.parametrize("workers", [0, 1])
def test_inner_epochs_that_are_left_early_or_overlap_count_once_and_not_as_a_step(workers: int) -> None:
    train = DataLoader(TensorDataset(torch.zeros(20)), 1)
    validation = DataLoader(Slow(), 4, num_workers=workers, persistent_workers=workers > 0)
    with Watch() as watch:
        for number, _ in enumerate(train):
            if number in (5, 10):
                for batch, _ in enumerate(zip(validation, DataLoader(Slow(), 4), strict=True)):
                    if batch == 8:
                        break
    steps_s = watch.watched()[0].steps_s
    assert len(steps_s) == 19
    assert 0 <= min(steps_s)
    assert max(steps_s) < 0.1  # an inner epoch takes 0.15 s and more


def test_the_step_after_the_last_batch_of_an_epoch_counts() -> None:
    loader = DataLoader(Slow(), 24)  # two batches of 96 ms
    with Watch() as watch:
        for _ in range(2):
            for _ in loader:
                time.sleep(0.1)
    (seen,) = watch.watched()
    assert (len(seen.steps_s), len(seen.last_steps_s)) == (2, 2)
    assert seen.known()["seconds"] > 0.78  # two batches and two steps in each epoch


def test_loaders_that_are_read_together_count_each_other_as_work() -> None:
    with Watch() as watch:
        for _ in zip(DataLoader(Slow(), 4), DataLoader(Slow(), 4), strict=True):
            pass
    assert all(0.3 < seen.known()["wait"] < 0.8 for seen in watch.watched())


def test_workers_and_an_epoch_left_early_are_noticed() -> None:
    loader = DataLoader(Slow(), 4, num_workers=1)
    with Watch() as watch:
        for _ in range(2):
            for number, _ in enumerate(loader):
                if number == 3:
                    break
    (seen,) = watch.watched()
    assert (seen.workers, seen.persistent, seen.batches, len(seen.starts_s)) == (1, False, 8, 2)
    assert watched_text([seen.known()]).endswith("8 batches: too few for a verdict.")


def test_a_loader_of_presize_is_watched_and_yields_the_same(tmp_path: Path) -> None:
    make_samples(tmp_path / "raw", SampleOptions(images=24, classes=2, long_side=80))
    build_dataset(tmp_path / "raw", tmp_path / "out", SMALL, SERIAL)
    dataset = LMDBDataset(tmp_path / "out", crop=RandomResizedCrop(16), decode="tensor")
    plain = [images.clone() for images, _ in Loader(dataset, 4, seed=0, num_workers=0)]
    with Watch() as watch:
        found = [images.clone() for images, _ in Loader(dataset, 4, seed=0, num_workers=0)]
    assert all(torch.equal(one, other) for one, other in zip(plain, found, strict=True))
    (seen,) = watch.watched()
    assert (seen.batches, seen.all_images) == (6, 24)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os.execlp('true', 'true')", 0),
        ("os._exit(7)", 7),
        ("class Log:\n    write = flush = lambda *_: None\nsys.stdout = Log()", 0),
        ("os.kill(os.getpid(), 2); time.sleep(9)", -2),
        ("if os.fork() == 0: sys.exit(0)\nos.wait()", 0),
        ("if os.fork() == 0: os._exit(0)\nos.wait()", 0),
        ("if os.fork() == 0: os.execlp('true', 'true')\nos.wait()", 0),
    ],
)
def test_the_result_is_printed_once_however_the_script_or_a_forked_child_ends(
    end: str, code: int, tmp_path: Path
) -> None:
    ran = diagnosed(sys.executable, write(tmp_path, f"{LOADER}\nimport os\nfor _ in loader: pass\n{end}\n"))
    assert ran.returncode == code
    assert ran.stderr.count("training waits") == 1


@pytest.mark.slow
def test_ranks_pass_on_their_results_and_the_first_one_prints_them(tmp_path: Path) -> None:
    script = write(tmp_path, f"{LOADER}\nfor _ in loader: pass\n")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ran = diagnosed(*torchrun, script)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("training waits") == 1
    assert "Ranks wait for batches (share of the time): 0: " in ran.stderr
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob("presize-diagnose-*-none-*"))


def watched(
    waits_s: list[float], steps_s: list[float], starts_s: tuple[float, ...] = (0.1,), **changes: Any
) -> Watched:
    times = (array("d", seconds) for seconds in (starts_s, waits_s, steps_s))
    known = Watched("DataLoader over Photos", 4, 2, True, False, None, 8.0, *times)
    return replace(known, **{"all_images": 32 * known.batches, "worker_cpu_s": 0.99, "worker_wall_s": 1.0} | changes)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (watched([0.03] * 40, [0.01] * 40), "Try num_workers=8: the workers are at their limit, with 4 cores left."),
        (watched([0.03] * 40, [0.01] * 40, cores=4.0), "reduce the work per image, for example by presizing"),
        (watched([0.03] * 40, [0.01] * 40, worker_cpu_s=0.1), "The workers also wait"),
        (
            watched([0.03] * 40, [0.01] * 40, workers=0, worker_wall_s=0.0),
            "Try num_workers=4: at present, batches are made",
        ),
        (watched([0.03] * 12, [0.01] * 12, starts_s=(2.0, 2.0)), "Try persistent_workers=True: 89% of the time"),
        (watched([0.03] * 40, [0.01] * 40, pinned=False), "Try pin_memory=True"),
        (watched([0.0, 0.0, 0.0, 0.2] * 12, [0.01] * 48), "It stops before every 4th batch"),
        (
            watched([1.0, *[0.01] * 12, 0.9, *[0.01] * 16], [0.01] * 30),
            "slow batches hold up the others. Try prefetch_factor=4 or in_order=False",
        ),
        (
            watched([0.03] * 40, [0.01] * 40, starts_s=()),
            "If loading cost nothing, training would be 4.0 times as fast.",
        ),
        (watched([0.03] * 40, [0.0001] * 40), "The script does next to nothing but wait for batches."),
        (watched([0.03] * 12, [0.01] * 12, starts_s=(2.0,)), "81% of the time passes before the first batch"),
    ],
)
def test_the_advice_follows_from_the_measurements(seen: Watched, said: str) -> None:
    assert said in watched_text([seen.known()])
    assert any(said in sentence for sentence in seen.known()["sentences"])


def test_a_fast_loader_gets_no_advice_and_waiting_does_not_count_while_the_gpu_is_busy() -> None:
    text = watched_text([watched([0.0001] * 100, [0.03] * 100, starts_s=(0.01,)).known()])
    assert "Compute is the bottleneck: training waits 1% of the time for batches." in text
    assert "Try" not in text
    assert watched([0.03] * 40, [0.01] * 40, idle_s=0.0, starts_s=(0.0,)).known()["wait"] == 0


def test_the_straggler_among_ranks_is_named() -> None:
    ranks = [{"wait": 0.1}, None, {"wait": 0.7}, {"wait": 0.15}]
    text = watched_text([watched([0.01] * 20, [0.03] * 20).known()], ranks)
    assert "0: 10%, 2: 70%, 3: 15%" in text
    assert "Rank 2 is the straggler" in text


def test_two_results_are_compared_with_their_errors() -> None:
    before, after = (
        {"loaders": [json.loads(json.dumps(watched([wait] * 40, [0.01] * 40).known()))]} for wait in (0.03, 0.01)
    )
    assert "800 ± 2% → 1,600 ± 2% images/s, a factor of 2.0 ± 3%: faster" in compared_text(before, after)
    assert "the difference could be due to chance" in compared_text(before, before)
    with pytest.raises(KeyError):
        compared_text({"samples": 3}, before)
