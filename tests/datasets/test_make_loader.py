"""make_loader: a DataLoader of any dataset, its workers, and the shared memory that they need."""

from __future__ import annotations

import mmap
import multiprocessing
import operator
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, RandomSampler, Subset, WeightedRandomSampler

from batches import digest
from presize.datasets import FolderDataset, LMDBDataset, RandomResizedCrop, collate, make_loader
from presize.datasets.reading.stored_image import Decode
from presize.errors import LoaderError, OptionError
from processes import run_python, with_dev_shm

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")

CROP = RandomResizedCrop(24)


# --- other datasets ---


def to_square(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((8, 8)))).permute(2, 0, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_dataset_is_read_with_its_transform(workers: int, raw: Path, dataset: Path) -> None:
    intact = sorted(LMDBDataset(dataset).data.path(i) for i in range(len(LMDBDataset(dataset))))
    folder = FolderDataset(raw, to_square)
    wanted = [i for i, (path, _) in enumerate(folder.samples) if Path(path).relative_to(raw).as_posix() in intact]
    whole = Subset(folder, wanted)
    batches = list(make_loader(whole, 8, num_workers=workers))
    assert [label for _, labels in batches for label in labels.tolist()] == [folder.targets[i] for i in wanted]
    assert torch.equal(torch.cat([images for images, _ in batches]), torch.stack([folder[i][0] for i in wanted]))


def test_a_list_can_be_read() -> None:
    loader = make_loader([*range(10)], 4, shuffle=True, num_workers=0)  # type: ignore[arg-type]
    assert sorted(torch.cat(list(loader)).tolist()) == [*range(10)]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_empty_dataset_yields_no_batches(workers: int, data: LMDBDataset) -> None:
    loader = make_loader(Subset(data, []), 8, shuffle=True, num_workers=workers)
    assert len(loader) == 0 and list(loader) == []


class Endless(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


def test_a_path_is_refused_with_the_fix(dataset: Path) -> None:
    with pytest.raises(OptionError, match=r"dataset: expected a dataset, got a path; give LMDBDataset\('.*'\)$"):
        make_loader(dataset, 4, num_workers=0)  # type: ignore[arg-type]


def test_an_iterable_dataset_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match=r"dataset: expected one with a length, got Endless; .* use DataLoader"):
        make_loader(Endless(), 4, num_workers=0)


class Numbers(torch.utils.data.Dataset[Any]):
    """A dataset of numbers like those of scripts, with attributes that change between epochs."""

    transform: Any = None
    factor = 1

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return index * self.factor if self.transform is None else self.transform(index)


class Plus:
    def __init__(self, more: int) -> None:
        self.more = more

    def __call__(self, number: int) -> int:
        return number + self.more


class All:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = [*transforms]

    def __call__(self, number: int) -> int:
        for transform in self.transforms:
            number = transform(number)
        return number


def set_transform(dataset: Any) -> None:
    dataset.transform = All(Plus(3))


class Slotted:
    """A part of a transform that is not called, and has no dict."""

    __slots__ = ("more",)

    def __init__(self, more: Any) -> None:
        self.more = more

    def add(self, number: int) -> int:
        return number + int(self.more)


def local(by: Slotted) -> Any:
    return lambda number: by.add(number)


class Found:
    def __init__(self, table: list[int]) -> None:
        self.table = table

    def __call__(self, number: int) -> int:
        return self.table[number]


CHANGES: list[tuple[Callable[[Any], object], int]] = [
    (lambda dataset: setattr(dataset, "factor", 7), 7),
    (set_transform, 4),
    (lambda dataset: setattr(dataset.transform.transforms[0], "more", 8), 9),
    (lambda dataset: dataset.transform.transforms.append(Plus(10)), 19),
    (lambda dataset: setattr(dataset.transform.transforms[0], "more", np.array(4)), 15),
    (lambda dataset: dataset.transform.transforms[0].more.fill(5), 16),
    (lambda dataset: setattr(dataset, "transform", partial(operator.add, torch.tensor(6))), 7),
    (lambda dataset: dataset.transform.args[0].add_(1), 8),
    (lambda dataset: setattr(dataset, "by", Slotted(2)), 8),
    (lambda dataset: setattr(dataset, "transform", dataset.by.add), 3),
    (lambda dataset: setattr(dataset.by, "more", 3), 4),
    (lambda dataset: setattr(dataset, "transform", local(dataset.by)), 4),
    (lambda dataset: setattr(dataset.by, "more", np.array(4)), 5),
    (lambda dataset: setattr(dataset, "transform", Found([*range(200)])), 1),
    (lambda dataset: dataset.transform.table.reverse(), 198),
]
"""Changes by a script between epochs, and the value that the dataset then makes of 1."""


@pytest.mark.parametrize(
    "wrapped", [lambda one: one, lambda one: Subset(one, range(24)), lambda one: ConcatDataset([one])]
)
def test_workers_restart_if_attributes_of_the_dataset_changed_and_only_then(wrapped: Any) -> None:
    dataset = Numbers()
    loader = make_loader(wrapped(dataset), 24, num_workers=1)
    assert next(iter(loader))[1] == 1
    for change, one in CHANGES:
        change(dataset)
        assert next(iter(loader))[1] == one
        workers = multiprocessing.active_children()
        assert next(iter(loader))[1] == one and multiprocessing.active_children() == workers


class Slow(Numbers):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)
        return index


@pytest.mark.parametrize("after_s", [0.01, 0.03, 0.05])
def test_an_epoch_after_an_interrupted_one_is_complete(after_s: float) -> None:
    """As in a notebook whose cell is interrupted while workers still have work of the previous cell."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    loader = make_loader(Slow(), 2, num_workers=2)
    next(iter(loader))
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        with pytest.raises(KeyboardInterrupt):
            for _ in range(9):
                list(loader)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert torch.cat(list(loader)).tolist() == [*range(24)]


def drawn(_: Any) -> torch.Tensor:
    return torch.tensor([float(torch.rand(())), random.random(), np.random.random()])


def test_a_random_transform_does_not_change_the_generators_of_the_program(dataset: Path) -> None:
    after = []
    for transform in (zeros, drawn):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        list(make_loader(LMDBDataset(dataset, transform, target=None), 7, num_workers=0))
        after.append(drawn(None))
    assert torch.equal(*after)


class Drawing(Dataset[torch.Tensor]):
    """A dataset that is no LMDBDataset."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return drawn(index)


def test_workers_of_ranks_draw_different_numbers_and_those_of_the_first_rank_the_numbers_of_one_process() -> None:
    def numbers_of(**options: int) -> list[torch.Tensor]:
        torch.manual_seed(3)
        return list(torch.cat(list(make_loader(Drawing(), 7, seed=0, num_workers=2, **options))).unbind(1))

    ranks = [numbers_of(rank=rank, ranks=2) for rank in range(2)]
    for first, second in zip(*ranks, strict=True):
        assert set(first.tolist()).isdisjoint(second.tolist())
    assert all(map(torch.equal, numbers_of(rank=1, ranks=2), ranks[1]))
    assert [numbers[:7].tolist() for numbers in numbers_of()] == [numbers[:7].tolist() for numbers in ranks[0]]


def zeros(_: Any) -> torch.Tensor:
    return torch.zeros(3, 4, 4)


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
@pytest.mark.parametrize("which", ["make_loader", "DataLoader", "transform"])
def test_kept_batches_hold_no_descriptors(which: str, strategy: str, data: LMDBDataset) -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    dataset = LMDBDataset(data.root, zeros) if which == "transform" else data
    loader = DataLoader(dataset, 1, num_workers=1) if which == "DataLoader" else make_loader(dataset, 1, num_workers=1)
    try:
        first = list(loader)
        opened = len(os.listdir("/proc/self/fd"))
        kept = [*first, *loader, *loader]
        assert len(os.listdir("/proc/self/fd")) < opened + 20
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
    assert [int(targets) for _, targets in kept] == [*data.targets] * 3


# --- torch's own samplers in a plain DataLoader ---


@pytest.mark.parametrize(("workers", "collate_fn"), [(0, None), (2, collate)], ids=["torch's collate", "our collate"])
def test_torchs_own_samplers_draw_new_crops_each_epoch(workers: int, collate_fn: Any, data: LMDBDataset) -> None:
    weights = np.zeros(len(data))
    weights[:4] = 1
    for sampler in (RandomSampler(data), WeightedRandomSampler(weights, 40)):
        torch.manual_seed(0)
        loader = DataLoader(data, 8, sampler=sampler, num_workers=workers, collate_fn=collate_fn)
        epochs = [digest(loader), digest(loader)]
        assert epochs[0] != epochs[1]
        torch.manual_seed(0)
        again = DataLoader(data, 8, sampler=sampler, num_workers=workers, collate_fn=collate_fn)
        assert [digest(again), digest(again)] == epochs


def test_two_workers_do_not_draw_the_same_crops(data: LMDBDataset) -> None:
    loader = DataLoader(data, 8, sampler=[7] * 32, num_workers=2, collate_fn=collate)
    assert len({image.numpy().tobytes() for images, _ in loader for image in images}) > 24


# --- refusals ---


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_without_a_message_is_raised_unchanged(workers: int, data: LMDBDataset) -> None:
    class Unfinished(LMDBDataset):
        def __getitems__(self, numbers: Any) -> Any:
            raise NotImplementedError

    loader = make_loader(Unfinished(data.data.root, decode="tensor", crop=CROP), 8, num_workers=workers)
    with pytest.raises(NotImplementedError):
        next(iter(loader))


def to_float(image: torch.Tensor) -> torch.Tensor:
    return image / 255


@pytest.mark.parametrize(("decode", "bytes_per_sample"), [("numpy", 24 * 24 * 3 + 8), ("tensor", 8)])
def test_batches_too_large_for_shared_memory_are_one_error(
    decode: Decode, bytes_per_sample: int, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = LMDBDataset(dataset, crop=CROP, decode=decode)
    asked = []
    pages = 2 * 2 * -(-8 * bytes_per_sample // mmap.PAGESIZE)  # workers, prefetch, batch
    need = (pages + 4 * (2 + 2)) * mmap.PAGESIZE  # and semaphores

    def with_free(nbytes: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or SimpleNamespace(free=nbytes))

    for free in (0, need - 1):
        with_free(free)
        with pytest.raises(LoaderError, match=r"/dev/shm has .* free, and 4 batches of .*--shm-size") as error:
            make_loader(data, 8, num_workers=2)
        assert "\n" not in str(error.value)
    assert len(digest(make_loader(data, 8, num_workers=0))) == 7, "without workers no shared memory is needed"
    with_free(need)
    assert len(make_loader(data, 8, num_workers=2, prefetch_factor=2)) == 7
    assert set(asked) <= {"/dev/shm"}


@pytest.mark.parametrize(
    ("options", "lacks"),
    [
        ({"decode": "tensor"}, "crop="),
        ({"crop": CROP}, 'decode="tensor"'),
        ({}, 'crop= and decode="tensor"'),
        (
            {"crop": CROP, "decode": "tensor", "transform": to_float},
            "no transform (call it on batches in the training loop)",
        ),
    ],
)
def test_the_error_tells_how_much_shared_memory_is_missing(
    options: Any, lacks: str, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(LoaderError, match=rf"--shm-size\); batches need almost none with {re.escape(lacks)}$"):
        make_loader(LMDBDataset(dataset, **options), 8, num_workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("size=64k", "/dev/shm has 65.5 kB free, and 4 batches of .* need 81.9 kB there"),
        ("size=1m,nr_inodes=1", "/dev/shm: No space left on device, and a DataLoader's workers need it"),
        ("size=1m,ro", "/dev/shm: Read-only file system, and a DataLoader's workers need it"),
    ],
)
def test_a_small_full_or_read_only_dev_shm_is_a_one_line_error(
    options: str, said: str, context: str, dataset: Path
) -> None:
    printed = run_python(
        """
        import sys
        from presize.datasets import LMDBDataset, RandomResizedCrop, make_loader
        from presize.errors import LoaderError, OptionError

        data = LMDBDataset(sys.argv[1], crop=RandomResizedCrop(24), decode="tensor")
        try:
            list(make_loader(data, 8, num_workers=2, multiprocessing_context=sys.argv[2]))
        except LoaderError as error:
            print(error)
        """,
        dataset,
        context,
        within=with_dev_shm(options),
    )
    assert re.fullmatch(f"{said}; .*--shm-size.*\n", printed)


@pytest.mark.slow
@pytest.mark.parametrize("decode", ["tensor", "numpy"])
def test_a_dev_shm_that_fills_up_during_an_epoch_is_a_one_line_error_and_not_a_hang(decode: str, dataset: Path) -> None:
    """A thread of the worker sends targets. Python only prints its errors."""
    printed = run_python(
        """
        import shutil, sys
        from presize.datasets import LMDBDataset, RandomResizedCrop, make_loader
        from presize.errors import LoaderError, OptionError

        loader = make_loader(LMDBDataset(sys.argv[1], crop=RandomResizedCrop(24), decode=sys.argv[2]), 2, num_workers=2)
        batches = iter(loader)
        next(batches)
        try:
            with open("/dev/shm/of another program", "wb") as file:
                file.write(bytes(shutil.disk_usage("/dev/shm").free))
        except OSError:
            pass
        try:
            list(batches)
        except LoaderError as error:
            print(error)
        """,
        dataset,
        decode,
        within=with_dev_shm("size=1m"),
    )
    assert re.fullmatch(r".*shared memory.*: No space left on device.*; free some of /dev/shm.*--shm-size.*\n", printed)


def test_a_worker_init_fn_is_called(data: LMDBDataset, tmp_path: Path) -> None:
    loader = make_loader(data, 8, num_workers=2, worker_init_fn=lambda number: (tmp_path / str(number)).touch())
    assert len(digest(loader)) == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_a_state_in_the_middle_of_an_epoch_without_order_is_refused(data: LMDBDataset) -> None:
    loader = make_loader(data, 16, num_workers=2, in_order=False)
    batches = iter(loader)
    next(batches)
    with pytest.raises(OptionError, match=r"^in_order: without order, .* save a state between epochs"):
        loader.state_dict()
    assert len(list(batches)) == len(loader) - 1
    make_loader(data, 16, num_workers=2, in_order=False).load_state_dict(loader.state_dict())
