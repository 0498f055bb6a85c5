"""Loader: its batches, in every mode, and the end of its workers."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from batches import digest
from presize.builder.run import build_dataset
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.datasets import CenterCrop, LMDBDataset, Loader, RandomResizedCrop, make_loader
from presize.errors import DatasetError, LoaderError, OptionError
from presize.options import BuildOptions, ImageOptions, RunOptions, Size
from presize.store.dataset import Dataset
from processes import is_running, pids_group, run_command, run_python, with_dev_shm
from tampering import flip_record

CROP = RandomResizedCrop(24)


def children() -> list[int]:
    return [process.pid or 0 for process in multiprocessing.active_children()]


@pytest.fixture(scope="module")
def data(dataset: Path) -> LMDBDataset:
    return LMDBDataset(dataset)


@pytest.fixture(scope="module")
def plain(data: LMDBDataset) -> list[Any]:
    """Read two epochs in this thread."""
    loader = Loader(data, 8, crop=CROP, flip=0.5, shuffle=True, seed=5, num_workers=0)
    return [digest(loader), digest(loader)]


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("presize-loader")]


def slots_in_use() -> list[str]:
    """Return the anonymous memory of Loaders that this process has open."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.exists(link) and "presize-loader" in os.readlink(link)]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    others, before = set(multiprocessing.active_children()), len(slots_in_use())
    yield
    gc.collect()
    deadline = time.monotonic() + 30
    while set(multiprocessing.active_children()) - others or loader_threads():
        assert time.monotonic() < deadline, "workers remain"
        time.sleep(0.01)
    assert len(slots_in_use()) <= before


def test_the_repr_of_a_loader_shows_its_dataset_and_options(data: LMDBDataset) -> None:
    loader = Loader(data, 8, crop=CenterCrop(24), shuffle=True, seed=3, num_workers=0)
    shown = f"Loader({data!r}, 8, shuffle=Shuffled(length={len(data)}, seed=3), num_workers=0, device='cpu')"
    assert repr(loader) == shown


def test_an_evaluation_epoch_is_the_centre_of_every_image_in_order(data: LMDBDataset) -> None:
    batches = list(Loader(data, 7, crop=CenterCrop(24), num_workers=0))
    images, targets = (torch.cat(part) for part in zip(*batches, strict=True))
    assert images.dtype == torch.uint8 and images.is_contiguous(memory_format=torch.channels_last)
    assert targets.dtype == torch.int64 and targets.tolist() == data.targets.tolist()
    for i, image in enumerate(images):
        pixels = np.asarray(data[i][0])
        top, left = round((pixels.shape[0] - 24) / 2), round((pixels.shape[1] - 24) / 2)
        assert np.array_equal(image.permute(1, 2, 0), pixels[top : top + 24, left : left + 24])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_normalized_batches_equal_torchvisions(dtype: torch.dtype, data: LMDBDataset) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    plain, _ = next(iter(Loader(data, 8, crop=CROP, seed=0, num_workers=0)))
    loader = Loader(data, 8, crop=CROP, seed=0, num_workers=0, normalize=(mean, std), dtype=dtype)
    images, _ = next(iter(loader))
    numbers = [torch.tensor(each, dtype=exact).view(3, 1, 1) for each in (mean, std)]
    expected = ((plain.to(exact) / 255 - numbers[0]) / numbers[1]).to(dtype)
    assert images.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(images, expected, rtol=0, atol=1e-7 if dtype == torch.float64 else 0)


def test_grey_and_raw_datasets_can_be_read(raw: Path, tmp_path: Path) -> None:
    image = ImageOptions(sizes=(Size(48, 48),), fit="crop", upscale=True, color="gray", format="raw")
    build_dataset(raw, tmp_path / "gray", BuildOptions(image), RunOptions(engine="sequential"))
    images, _ = next(iter(Loader(LMDBDataset(tmp_path / "gray"), 4, num_workers=0)))  # of one size: no crop needed
    assert images.shape == (4, 1, 48, 48)
    stored = Dataset(tmp_path / "gray").value(2)
    assert images[2].numpy().tobytes() == stored


@pytest.mark.parametrize("needs_cut", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_record_with_a_wrong_checksum_is_skipped_like_an_undecodable_one(
    workers: int, needs_cut: bool, dataset: Path, data: LMDBDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if needs_cut:
        monkeypatch.setattr(jpeg_decoder, "is_available", lambda: False)
    copied = Path(shutil.copytree(dataset, tmp_path / "flipped"))
    flip_record(copied, 20)
    options: dict[str, Any] = {"crop": CenterCrop(24), "num_workers": workers}
    with pytest.raises(DatasetError, match=r"sample 20 \(.*\) of .* is damaged: its CRC-32 differs from the index"):
        list(Loader(LMDBDataset(copied), 8, **options))
    with Loader(LMDBDataset(copied), 8, on_error="skip", **options) as loader:
        sizes = [len(images) for images, _ in loader]
        assert (sizes, loader.skipped) == ([8, 8, 7, 8, 8, 8, 8], 1)
    with Loader(LMDBDataset(copied, check=False), 8, on_error="skip", **options) as loader:
        assert digest(loader)[3:] == digest(Loader(data, 8, **options))[3:]
        assert loader.skipped == 0


def test_a_dataset_that_is_deleted_while_open_is_one_error(dataset: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(dataset, tmp_path / "gone"))
    loader = Loader(LMDBDataset(copied), 8, crop=CROP, num_workers=2)
    shutil.rmtree(copied)
    with pytest.raises(DatasetError, match="gone was updated, replaced or removed since it was opened"):
        list(loader)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [*(pytest.param(how, marks=pytest.mark.slow) for how in ("end", "break", "error", "exit in the middle")), "Ctrl-C"],
)
def test_a_program_leaves_no_process_behind(how: str, dataset: Path) -> None:
    script = """
        import multiprocessing, signal, os, sys
        from presize.datasets import LMDBDataset, Loader, RandomResizedCrop
        loader = Loader(LMDBDataset(sys.argv[1]), 4, crop=RandomResizedCrop(24), num_workers=2)
        how = sys.argv[2]
        try:
            for number, batch in enumerate(loader):
                if number == 0:
                    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
                if number == 2 and how == "break":
                    break
                if number == 2 and how == "error":
                    raise ValueError
                if number == 2 and how == "Ctrl-C":
                    os.kill(os.getpid(), signal.SIGINT)
                if number == 2 and how == "exit in the middle":
                    sys.exit(0)
        except (ValueError, KeyboardInterrupt):
            pass
    """
    pids = [int(pid) for pid in run_python(script, dataset, how).split()]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_workers_end_when_their_driver_is_killed(dataset: Path) -> None:
    script = """
        import multiprocessing, os, signal, sys
        from presize.datasets import LMDBDataset, Loader, RandomResizedCrop
        if os.fork() == 0:
            loader = Loader(LMDBDataset(sys.argv[1]), 4, crop=RandomResizedCrop(24), num_workers=2)
            for batch in loader:
                print(*[child.pid for child in multiprocessing.active_children()], flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        os.wait()
    """
    pids = [int(pid) for pid in run_python(script, dataset).split()]
    deadline = time.monotonic() + 60
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "workers outlive their driver"
        time.sleep(0.02)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_ends_with_its_last_batch(workers: int, data: LMDBDataset, plain: list[Any]) -> None:
    with Loader(data, 8, crop=CROP, flip=0.5, shuffle=True, seed=5, num_workers=workers) as loader:
        iter(loader)  # never used, and starts nothing
        kept = []  # iterators, as a trainer keeps them
        for epoch in range(2):
            batches = iter(loader)
            kept.append(batches)
            assert digest(next(batches) for _ in range(len(loader))) == plain[epoch]
            assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (epoch + 1, 0)
        if workers:
            assert len(children()) == 2, "workers persist"
        loader.set_epoch(0)
        assert digest(loader) == plain[0]
        assert [list(batches) for batches in kept] == [[], []]
        for _ in loader:
            break
        assert not children(), "they end with an epoch left early"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_new_epoch_ends_one_whose_iterator_was_kept(workers: int, data: LMDBDataset, plain: list[Any]) -> None:
    with Loader(data, 8, crop=CROP, flip=0.5, shuffle=True, seed=5, num_workers=workers) as loader:
        left = iter(loader)
        next(left)
        assert digest(loader) == plain[1]
        with pytest.raises(LoaderError, match=r"this epoch ended early.*to read two epochs at once, use two Loaders"):
            next(left)


@pytest.mark.parametrize("within", ["transform", "batch_targets"])
def test_an_epoch_ended_by_another_counts_no_batch_in_transit(within: str, dataset: Path) -> None:
    begun: list[Any] = []

    def restart(at: str) -> None:
        if begun == [None] and at == within:  # another epoch starts while a batch of the previous one is read
            loader.crop = CenterCrop(40)
            begun[0] = iter(loader)
            next(begun[0])

    def transform(image: Any) -> torch.Tensor:
        restart("transform")
        return torch.from_numpy(np.array(image))

    class Restarting(LMDBDataset):
        def batch_targets(self, *args: Any) -> Any:
            restart("batch_targets")
            return super().batch_targets(*args)

    loader = Loader(Restarting(dataset), 8, crop=CROP, transform=transform, num_workers=0)
    left = iter(loader)
    next(left)
    begun.append(None)
    with pytest.raises(LoaderError, match="this epoch ended early"):
        next(left)
    state = loader.state_dict()
    assert (state["epoch"], state["consumed"]) == (1, 8)
    del begun[:]


def test_the_state_before_an_epoch_set_on_the_sampler_is_its_start(data: LMDBDataset) -> None:
    loader = Loader(data, 8, crop=CROP, num_workers=0)
    list(loader)
    loader.sampler.set_epoch(4)  # like Lightning
    assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (4, 0)


def test_an_invalid_crop_is_refused_and_none_is_the_datasets_own(dataset: Path) -> None:
    loader = Loader(LMDBDataset(dataset, crop=CenterCrop(20)), 8, crop=CROP, num_workers=0)
    with pytest.raises(OptionError, match="crop: expected one of presize"):
        loader.crop = 160  # type: ignore[assignment]
    assert loader.crop == CROP
    loader.crop = None
    assert next(iter(loader))[0].shape[2:] == (20, 20)


def test_an_epoch_is_resumed_with_its_initial_crop(data: LMDBDataset) -> None:
    first, second = (Loader(data, 8, crop=CROP, shuffle=True, seed=5, num_workers=0) for _ in range(2))
    first.crop = RandomResizedCrop(32)
    batches = iter(first)
    next(batches)
    first.crop = CROP  # for the next epoch
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    with pytest.raises(OptionError, match="crop: the resumed epoch began with a different crop than Random"):
        next(iter(second))
    second.crop = RandomResizedCrop(32)
    for ours, theirs in zip(batches, second, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_batch_too_large_for_memory_is_one_error(data: LMDBDataset) -> None:
    with pytest.raises(LoaderError, match=r"6 batches of .* need more than the .* of memory"):
        next(iter(Loader(data, 2**27, crop=RandomResizedCrop(16383), num_workers=1)))


@pytest.mark.parametrize(("workers", "mode"), [(0, "processes"), (2, "processes"), (2, "threads")])
def test_an_epoch_ended_by_close_is_an_error_and_does_not_disturb_the_next_one(
    workers: int, mode: Any, data: LMDBDataset, plain: list[Any]
) -> None:
    with Loader(data, 8, crop=CROP, flip=0.5, shuffle=True, seed=5, num_workers=workers, mode=mode) as loader:
        first = iter(loader)
        next(first)
        loader.close()
        second = iter(loader)
        found = digest([next(second)])
        with pytest.raises(LoaderError, match="this epoch ended early because its Loader was closed"):
            next(first)
        del first
        assert found + digest(second) == plain[1]


def test_state_cannot_be_changed_within_an_epoch(data: LMDBDataset) -> None:
    loader = Loader(data, 8, crop=CROP, num_workers=0)
    state = loader.state_dict()
    for _ in loader:
        with pytest.raises(LoaderError, match="in the middle of an epoch"):
            loader.set_epoch(3)
        with pytest.raises(LoaderError, match="in the middle of an epoch"):
            loader.load_state_dict(state)
        break


@pytest.mark.slow
def test_worker_threads_do_not_change_the_number_of_torchs_threads_in_the_caller(dataset: Path) -> None:
    script = """
        import sys, torch
        from presize.datasets import LMDBDataset, Loader, RandomResizedCrop
        torch.set_num_threads(2)
        with Loader(LMDBDataset(sys.argv[1]), 8, crop=RandomResizedCrop(24), num_workers=2, mode="threads") as loader:
            next(iter(loader))
            print(torch.get_num_threads())
    """
    assert run_python(script, dataset) == "2\n"


@pytest.mark.slow
def test_a_forked_child_reads_with_its_own_workers(dataset: Path) -> None:
    script = """
        import os, sys
        from presize.datasets import LMDBDataset, Loader, RandomResizedCrop
        loader = Loader(LMDBDataset(sys.argv[1]), 8, crop=RandomResizedCrop(24), num_workers=2, shuffle=True)
        def epoch():
            return [hash(images.numpy().tobytes()) for images, _ in loader]
        epoch()
        if child := os.fork():
            here = epoch()
            assert os.waitpid(child, 0)[1] == 0
            print(len(here))
        else:
            there = epoch()
            loader.close()
            os._exit(0 if len(there) == 7 else 1)
    """
    assert run_python(script, dataset) == "7\n"


@pytest.mark.parametrize("kind", ["processes", "threads", "0", "make_loader"])
def test_a_forked_child_cannot_continue_its_parents_epoch_and_begins_its_own(kind: str, dataset: Path) -> None:
    script = """
        import os, sys
        from presize.datasets import LMDBDataset, Loader, RandomResizedCrop, make_loader
        from presize.errors import LoaderError
        data, kind = LMDBDataset(sys.argv[1], crop=RandomResizedCrop(24), decode="tensor"), sys.argv[2]
        if kind == "make_loader":
            loader = make_loader(data, 8, num_workers=2)
        else:
            options = {"num_workers": 0} if kind == "0" else {"num_workers": 2, "mode": kind}
            loader = Loader(data, 8, **options)
        batches = iter(loader)
        next(batches)
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
            print(len(list(batches)), len(list(loader)))
        else:
            try:
                next(batches)
            except LoaderError as error:
                assert str(error).startswith("this epoch began before the process was forked"), error
                del batches
                os._exit(0 if len(list(loader)) == 7 else 1)
            os._exit(2)
    """
    assert run_python(script, dataset, kind) == "6 7\n"


@pytest.mark.parametrize("load", [Loader, make_loader])
def test_a_pickled_loader_reads_its_own_epochs(load: Any, dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=CROP, decode="tensor")
    loader = load(data, 8, num_workers=2, shuffle=True, seed=5)
    batches = iter(loader)
    first = next(batches)[0]
    copied = pickle.loads(pickle.dumps(loader))
    copied.set_epoch(0)
    assert torch.equal(next(iter(copied))[0], first) and len(list(batches)) == 6


def test_workers_that_cannot_be_started_leave_none_behind(data: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    start = multiprocessing.process.BaseProcess.start
    started: list[Any] = []

    def fail_at_the_third(process: Any) -> None:
        if len(started) == 2:
            raise OSError(12, "Cannot allocate memory")
        started.append(process)
        start(process)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", fail_at_the_third)
    said = "cannot start worker 3 of 4: this machine allows no more memory; use a smaller num_workers"
    with pytest.raises(LoaderError, match=f"^{said}$"):
        list(Loader(data, 8, crop=CROP, num_workers=4, multiprocessing_context="fork"))
    assert len(started) == 2 and not any(process.is_alive() for process in started)


def test_a_stopped_worker_is_named_after_the_timeout(data: LMDBDataset) -> None:
    others = set(multiprocessing.active_children())
    batches = iter(Loader(data, 8, crop=CROP, num_workers=1, timeout=0.5))
    next(batches)
    (worker,) = set(multiprocessing.active_children()) - others
    os.kill(worker.pid or 0, signal.SIGSTOP)
    with pytest.raises(LoaderError, match=rf"^no batch for 0.5 s from worker 1 \(process {worker.pid}\) of 1: "):
        list(batches)
    assert not worker.is_alive()


GROUP = """
import os, signal, subprocess, sys
import presize.datasets
from presize.datasets import LMDBDataset, RandomResizedCrop

numbers = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM]
handled = []
for number in numbers:
    signal.signal(number, lambda number, _: handled.append(number) or print(number, flush=True))
data = LMDBDataset(sys.argv[1], crop=RandomResizedCrop(24), decode="tensor")
batches = iter(getattr(presize.datasets, sys.argv[2])(data, 4, num_workers=2))
for number in numbers:
    next(batches)
    subprocess.run(["kill", f"-{int(number)}", "--", f"-{os.getpid()}"], start_new_session=True, check=True)
print(len(list(batches)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["Loader", "make_loader"])
def test_signals_to_the_process_group_reach_the_script_once(loader: str, dataset: Path) -> None:
    printed = run_python(GROUP, dataset, loader).split()
    assert sorted(map(int, printed[:-1])) == [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM]
    assert printed[-1] == "10"


LIMITED = """
import resource, sys
import presize.datasets
from presize.datasets import LMDBDataset, RandomResizedCrop
from presize.errors import LoaderError

data = LMDBDataset(sys.argv[1], crop=RandomResizedCrop(24), decode="tensor")
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (150 << 20), resource.RLIM_INFINITY))
try:
    list(presize.datasets.Loader(data, 4, num_workers=64, mode="threads"))
except LoaderError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_limit_that_keeps_a_worker_from_starting_is_a_one_line_error(dataset: Path) -> None:
    said = r"cannot start worker \d+ of 64: ulimit -v \d+ allows no more memory; use a smaller num_workers\n"
    assert re.fullmatch(said, run_python(LIMITED, dataset))


@pytest.mark.slow
@pytest.mark.parametrize("room", range(2, 7))
@pytest.mark.parametrize("loader", ["Loader", "make_loader"])
def test_a_container_with_few_processes_suffices_or_gives_a_one_line_error(
    loader: str, room: int, dataset: Path
) -> None:
    script = """
    import os, sys, torch
    import presize.datasets
    from presize.datasets import LMDBDataset, RandomResizedCrop
    from presize.errors import LoaderError

    group, room, root, loader = sys.argv[1:]
    data = LMDBDataset(root, crop=RandomResizedCrop(24), decode="tensor")
    torch.zeros(10_000_000).add_(1)  # starts its threads
    with open(f"{group}/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
    with open(f"{group}/pids.max", "w") as most:
        most.write(str(int(open(f"{group}/pids.current").read()) + int(room)))
    try:
        print(len(list(getattr(presize.datasets, loader)(data, 8, num_workers=2))))
    except LoaderError as error:
        print(error)
    """
    with pids_group() as group:
        ran = run_command([sys.executable, "-c", dedent(script), group, room, dataset, loader])
    said = (
        r"7|cannot start worker [12] of 2: pids.max \d+ of a control group allows no more processes and threads; use.*"
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.fullmatch(said, ran.stdout.rstrip("\n"))


@pytest.mark.slow
@pytest.mark.parametrize("options", ["size=4k,nr_inodes=1", "size=1m,ro"])
def test_it_needs_no_dev_shm(options: str, dataset: Path) -> None:
    printed = run_python(
        """
        import sys
        from presize.datasets import LMDBDataset, Loader, RandomResizedCrop

        with Loader(LMDBDataset(sys.argv[1]), 8, crop=RandomResizedCrop(24), num_workers=2) as loader:
            print(sum(len(images) for images, _ in loader))
        """,
        dataset,
        within=with_dev_shm(options),
    )
    assert printed == "56\n"


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


SAMPLERS: dict[str, Any] = {
    "weighted": lambda data: WeightedRandomSampler([*range(len(data))], 70, generator=seeded()),
    "more than there are": lambda data: RandomSampler(data, num_samples=130, generator=seeded()),
    "with replacement": lambda data: RandomSampler(data, replacement=True, generator=seeded()),
    "of a subset": lambda _: SubsetRandomSampler([5, 3, 8], generator=seeded()),
    "NumPy's": lambda _: np.array([7, 7, 2]),
    "torch's": lambda _: torch.tensor([7, 7, 2]),
    "a list": lambda _: [7, 7, 7, -1],
    "a range": lambda _: range(9),
    "of ranks": lambda data: DistributedSampler(data, 2, 1, shuffle=True, seed=3),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", SAMPLERS.values(), ids=list(SAMPLERS))
def test_any_sampler_determines_the_order(make: Any, workers: int, dataset: Path) -> None:
    data = LMDBDataset(dataset, target="path", crop=CROP)
    labelled = LMDBDataset(dataset)
    with Loader(data, 16, sampler=make(labelled), num_workers=workers) as loader:
        batches = list(loader)
        expected = [int(index) for index in make(labelled)]
        assert [path for _, paths in batches for path in paths] == [data.data.path(i % len(data)) for i in expected]
        assert len(loader) == len(batches) == -(-len(expected) // 16)
    images = {image.numpy().tobytes() for batch, _ in batches for image in batch}
    assert len(images) == len(expected), "a crop for each visit"


def test_a_sampler_is_not_resumed_in_the_middle_and_yields_no_other_indices(data: LMDBDataset) -> None:
    loader = Loader(data, 4, crop=CROP, sampler=[56], num_workers=0)
    with pytest.raises(OptionError, match="state: an epoch of a sampler cannot be resumed midway"):
        loader.load_state_dict({**loader.state_dict(), "consumed": 4})
    with pytest.raises(OptionError, match="indices: expected numbers from -56 to 55, got 56"):
        next(iter(loader))


WAYS: dict[str, Any] = {
    "the loader's set_epoch": lambda loader, _: loader.set_epoch(3),
    "its sampler's": lambda loader, _: loader.sampler.set_epoch(3),
    "its batch_sampler's": lambda loader, _: loader.batch_sampler.sampler.set_epoch(3),
    "the sampler's own": lambda _, sampler: sampler.set_epoch(3),
    "a state": lambda loader, _: loader.load_state_dict({**loader.state_dict(), "epoch": 3}),
}


@pytest.mark.parametrize("set_epoch", WAYS.values(), ids=list(WAYS))
@pytest.mark.parametrize("first", [0, 1], ids=["before all epochs", "after an epoch"])
def test_setting_an_epoch_anywhere_sets_order_and_crops(set_epoch: Any, first: int, data: LMDBDataset) -> None:
    def make() -> tuple[Loader, Any]:
        sampler: Any = DistributedSampler(data, 2, 1, seed=3)
        return Loader(data, 8, sampler=sampler, crop=CROP, seed=1, num_workers=0), sampler

    loader, sampler = make()
    for _ in range(first):
        list(loader)
    set_epoch(loader, sampler)
    other, _ = make()
    other.set_epoch(3)
    assert digest(loader) == digest(other) and sampler.epoch == 3
    assert loader.state_dict()["epoch"] == 4
    sampler.set_epoch(4)  # as a script does from then on
    other.set_epoch(4)
    assert digest(loader) == digest(other)


def test_a_sampler_without_set_epoch_repeats_its_order_with_other_crops(data: LMDBDataset) -> None:
    loader = Loader(data, 28, sampler=DistributedSampler(data, 2, 1), crop=CROP, num_workers=0)
    (first, targets), (second, again) = *loader, *loader
    assert torch.equal(targets, again) and not torch.equal(first, second)


def test_the_batch_sampler_of_a_loader_yields_the_indices_of_its_batches(data: LMDBDataset) -> None:
    loader = Loader(data, 3, sampler=[5, 5, 1, 0], crop=CROP, num_workers=0)
    assert list(loader.batch_sampler) == [[5, 5, 1], [0]] and len(loader.batch_sampler) == 2
    loader = Loader(data, 3, shuffle=True, seed=2, crop=CROP, num_workers=0)
    indices = list(loader.batch_sampler)
    loader.set_epoch(0)
    assert [data.targets[batch].tolist() for batch in indices] == [targets.tolist() for _, targets in loader]


def test_attributes_of_a_sampler_are_read_and_changed_through_the_loader(data: LMDBDataset) -> None:
    sampler = WeightedRandomSampler([1.0] + [0.0] * 55, 6)
    loader = Loader(data, 6, sampler=sampler, crop=CROP, num_workers=0)
    loader.sampler.weights = torch.tensor([0.0] * 55 + [1.0])
    assert loader.sampler.num_samples == 6 and sampler.weights[55] == 1
    assert set(next(iter(loader))[1].tolist()) == {int(data.targets[55])}
    assert not hasattr(loader.sampler, "nothing") and not hasattr(Loader(data, 6, crop=CROP).sampler, "weights")
    loader.sampler.note = "mine"  # attribute of the loader
    assert not hasattr(sampler, "note") and loader.sampler.note == "mine"


class Chosen:
    """A sampler whose private attributes have names that EpochSampler uses, too."""

    def __init__(self, samples: list[int]) -> None:
        self._samples = self._schedule = samples

    def __iter__(self) -> Iterator[int]:
        return iter(self._samples)

    def __len__(self) -> int:
        return len(self._schedule)


def test_private_attributes_of_a_sampler_stay_as_they_are(data: LMDBDataset) -> None:
    loader = Loader(data, 3, sampler=Chosen([5, 1, 0]), crop=CROP, num_workers=0)
    assert next(iter(loader))[1].tolist() == data.targets[[5, 1, 0]].tolist()


@pytest.mark.parametrize("indices", [[0.5], [[0, 1], [2, 3]], ["0"]], ids=str)
def test_a_sampler_that_does_not_yield_indices_is_a_one_line_error(indices: Any, data: LMDBDataset) -> None:
    loader = Loader(data, 2, sampler=indices, crop=CROP, num_workers=0)
    for _ in range(2):
        with pytest.raises(OptionError, match=r"^sampler: expected whole numbers, one per sample: .*$"):
            next(iter(loader))
    assert loader.state_dict()["epoch"] == 0
