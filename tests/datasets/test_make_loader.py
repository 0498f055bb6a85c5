"""make_loader: a plain DataLoader gives the batches that a Loader gives, and can be resumed like it."""

from __future__ import annotations

import gc
import json
import mmap
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path
from textwrap import dedent
from traceback import clear_frames
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler, Subset, WeightedRandomSampler, random_split

from presize.datasets import (
    CenterCrop,
    FolderDataset,
    LMDBDataset,
    Loader,
    RandomResizedCrop,
    ShardShuffled,
    Shuffled,
    Weighted,
    class_balanced,
    collate,
    make_loader,
)
from presize.datasets.reading.outputs import Decode
from presize.errors import DatasetError, LoaderError, OptionError
from processes import run_python, with_dev_shm
from tampering import overwrite_value

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")

CROP = RandomResizedCrop(24)

Digest = list[tuple[bytes, list[int]]]


def digest(batches: Any) -> Digest:
    return [(images.numpy().tobytes(), targets.tolist()) for images, targets in batches]


def labels_of(batches: Any) -> list[int]:
    return [label for _, targets in batches for label in targets.tolist()]


@pytest.fixture(scope="module")
def data(dataset: Path) -> LMDBDataset:
    return LMDBDataset(dataset, crop=CROP, flip=0.5, decode="tensor")


@pytest.fixture(scope="module")
def plain(dataset: Path) -> list[Digest]:
    """Two epochs, read by a Loader in this thread."""
    loader = Loader(LMDBDataset(dataset), 8, crop=CROP, flip=0.5, shuffle=True, seed=5, workers=0)
    return [digest(loader), digest(loader)]


# --- what it gives ---


@pytest.mark.parametrize(
    ("workers", "context"),
    [(0, None), (1, "fork"), (2, "fork"), (4, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)],
    ids=str,
)
def test_the_batches_are_those_of_a_loader_however_they_are_read(
    workers: int, context: str | None, data: LMDBDataset, plain: list[Digest]
) -> None:
    loader = make_loader(data, 8, shuffle=True, seed=5, workers=workers, multiprocessing_context=context)
    assert digest(loader) == plain[0]
    assert digest(loader) == plain[1], "the next epoch, which persistent workers know too"
    loader.set_epoch(0)
    assert digest(loader) == plain[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_channels_last_uint8(workers: int, data: LMDBDataset) -> None:
    for images, targets in make_loader(data, 8, workers=workers):
        assert images.shape == (8, 3, 24, 24) and images.dtype == torch.uint8
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert targets.dtype == torch.int64


def test_batches_that_are_kept_stay_what_they_were(data: LMDBDataset, plain: list[Digest]) -> None:
    loader = make_loader(data, 8, shuffle=True, seed=5, workers=2)
    kept = list(loader)
    for _ in loader:
        pass
    assert digest(kept) == plain[0]


def test_workers_stay_from_epoch_to_epoch(data: LMDBDataset, raw: Path) -> None:
    whole = Subset(FolderDataset(raw, to_square), [*range(8)])
    for loader in (make_loader(data, 8, workers=1), make_loader(whole, 4, workers=1)):
        list(loader)
        before = {process.pid for process in multiprocessing.active_children()}
        list(loader)
        assert before and {process.pid for process in multiprocessing.active_children()} == before
        del loader
        gc.collect()


@pytest.mark.parametrize(("last", "batches"), [("keep", [16, 16, 16, 8]), ("drop", [16] * 3), ("pad", [16] * 4)])
def test_the_last_batch_is_kept_dropped_or_filled_up(last: Any, batches: list[int], data: LMDBDataset) -> None:
    loader = make_loader(data, 16, last=last, workers=0)
    assert len(loader) == len(batches)
    assert [len(images) for images, _ in loader] == batches


@pytest.mark.parametrize("make", [ShardShuffled, lambda data, seed: Weighted(1 + np.arange(len(data)), seed)])
def test_any_order_gives_what_it_gives_in_a_loader(make: Any, dataset: Path, data: LMDBDataset) -> None:
    expected = Loader(LMDBDataset(dataset), 8, crop=CROP, flip=0.5, order=make(data.data, seed=3), workers=0)
    assert digest(make_loader(data, 8, order=make(data.data, seed=3), workers=2)) == digest(expected)


def test_shards_are_shuffled_without_losing_a_sample(data: LMDBDataset) -> None:
    loader = make_loader(data, 8, order=ShardShuffled(data.data, window=2), workers=0)
    assert sorted(labels_of(loader)) == sorted(data.targets.tolist())


def test_classes_are_balanced_in_an_epoch_of_any_length(data: LMDBDataset) -> None:
    skewed = np.where(np.arange(len(data)) < 4, 0, 1)  # as if one class had four samples
    counts = np.zeros(len(data), np.int64)
    order = class_balanced(skewed, seed=1, length=400)
    for samples in DataLoader(range(len(data)), 100, sampler=make_loader(data, 100, order=order, workers=0).sampler):
        np.add.at(counts, samples.numpy(), 1)
    assert 150 < counts[:4].sum() < 250


def test_a_sample_drawn_twice_is_cropped_twice(data: LMDBDataset) -> None:
    weights = np.zeros(len(data))
    weights[7] = 1
    images, targets = next(iter(make_loader(data, 12, order=Weighted(weights, length=12), workers=0)))
    assert set(targets.tolist()) == {int(data.targets[7])}
    assert len({image.numpy().tobytes() for image in images}) > 8


def test_ranks_share_each_epoch(dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=CenterCrop(24), decode="tensor", target="path")
    paths = [
        path
        for rank in range(3)
        for _, targets in make_loader(data, 5, shuffle=True, workers=0, rank=rank, ranks=3, last="keep")
        for path in targets
    ]
    assert sorted(paths) == sorted(data.data.path(i) for i in range(len(data)))


@pytest.mark.parametrize("make", [make_loader, Loader])
def test_two_hosts_of_two_ranks_each_read_their_own_shards(make: Any, dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=CenterCrop(24), decode="tensor", target="path")
    shards = dict(zip((data.data.path(i) for i in range(len(data))), data.numbers("shard").tolist(), strict=True))
    order = ShardShuffled(data.data, seed=3, window=2, by_host=True, ranks=4, ranks_per_host=2)
    loaders = [make(data, 5, order=order, workers=0, rank=rank, ranks=4, last="keep") for rank in range(4)]
    for epoch in range(2):
        read = [[path for _, targets in loader for path in targets] for loader in loaders]
        assert sorted(chain(*read)) == sorted(shards)
        hosts = [{shards[path] for path in read[rank] + read[rank + 1]} for rank in (0, 2)]
        for rank in range(4):
            assert hosts[rank // 2] == set(chain(*order.groups_ahead(epoch, 0, rank)))
        assert len(hosts[0] & hosts[1]) <= 1


# --- where it stands ---


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 1), (1, 4)])
def test_an_epoch_is_resumed_where_it_was_left_with_other_workers(
    before: int, after: int, data: LMDBDataset, plain: list[Digest]
) -> None:
    first = make_loader(data, 8, shuffle=True, seed=5, workers=before)
    batches = []
    for batch in first:
        batches.append(batch)
        if len(batches) == 3:
            break
    state = json.loads(json.dumps(first.state_dict()))
    second = make_loader(data, 8, shuffle=True, seed=5, workers=after)
    second.load_state_dict(state)
    assert len(second) == len(plain[0])
    assert digest(batches) + digest(second) == plain[0]
    assert digest(second) == plain[1]


def test_a_loader_goes_on_where_a_data_loader_was_left(dataset: Path, data: LMDBDataset, plain: list[Digest]) -> None:
    first = make_loader(data, 8, shuffle=True, seed=5, workers=0)
    batches = iter(first)
    next(batches)
    second = Loader(LMDBDataset(dataset), 8, crop=CROP, flip=0.5, shuffle=True, seed=5, workers=0)
    second.load_state_dict(first.state_dict())
    assert digest(second) == plain[0][1:]


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_epoch_the_state_is_the_next_ones_beginning(
    workers: int, data: LMDBDataset, plain: list[Digest]
) -> None:
    first = make_loader(data, 8, shuffle=True, seed=5, workers=workers)
    list(first)
    ended = first.state_dict()
    begun = iter(first)  # workers may read ahead; nobody has taken a batch
    assert first.state_dict() == ended
    second = make_loader(data, 8, shuffle=True, seed=5, workers=0)
    second.load_state_dict(ended)
    assert digest(second) == plain[1] == digest(begun)


def test_after_a_break_the_next_epoch_begins(data: LMDBDataset, plain: list[Digest]) -> None:
    loader = make_loader(data, 8, shuffle=True, seed=5, workers=2)
    for _ in loader:
        break
    assert digest(loader) == plain[1]


# --- other datasets ---


def to_square(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((8, 8)))).permute(2, 0, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_dataset_is_read_with_its_transform(workers: int, raw: Path, dataset: Path) -> None:
    intact = sorted(LMDBDataset(dataset).data.path(i) for i in range(len(LMDBDataset(dataset))))
    folder = FolderDataset(raw, to_square)
    wanted = [i for i, (path, _) in enumerate(folder.samples) if Path(path).relative_to(raw).as_posix() in intact]
    whole = Subset(folder, wanted)
    batches = list(make_loader(whole, 8, workers=workers))
    assert labels_of(batches) == [folder.targets[i] for i in wanted]
    assert torch.equal(torch.cat([images for images, _ in batches]), torch.stack([folder[i][0] for i in wanted]))


def test_a_list_can_be_read_too() -> None:
    loader = make_loader([*range(10)], 4, shuffle=True, workers=0)  # type: ignore[arg-type]
    assert sorted(torch.cat(list(loader)).tolist()) == [*range(10)]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_empty_dataset_gives_no_batches(workers: int, data: LMDBDataset) -> None:
    loader = make_loader(Subset(data, []), 8, shuffle=True, workers=workers)
    assert len(loader) == 0 and list(loader) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_parts_and_sums_of_a_dataset_are_cropped(workers: int, data: LMDBDataset) -> None:
    train, val = random_split(data, [50, 6], torch.Generator().manual_seed(0))
    both = ConcatDataset([data, data])
    for part, expected in [
        (Subset(data, [3, 1, 4, 1]), [3, 1, 4, 1]),
        (train, train.indices),
        (val, val.indices),
        (both, [*range(56)] * 2),
    ]:
        batches = list(make_loader(part, 16, workers=workers))
        assert labels_of(batches) == data.targets[expected].tolist()
        assert {tuple(images.shape[1:]) for images, _ in batches} == {(3, 24, 24)}


# --- torch's own samplers in a plain DataLoader ---


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate_fn", [None, collate], ids=["torch's collate", "our collate"])
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


# --- what cannot be ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size: expected a whole number from 1"),
        ({"batch_size": 2.5}, "batch_size: expected a whole number from 1"),
        ({"workers": -1}, "workers: expected a whole number from 0"),
        ({"prefetch": 0}, "prefetch: expected a whole number from 1"),
        ({"last": "some"}, "last: expected one of keep, drop, pad"),
        ({"seed": -1}, "seed: expected a whole number from 0"),
        ({"rank": 3, "ranks": 2}, "rank: expected a whole number from 0 to 1, got 3"),
        ({"order": Shuffled(9)}, "order: expected one over 56 samples"),
        ({"order": Shuffled(56), "shuffle": True}, "order: expected either order, or shuffle and seed"),
    ],
)
def test_options_that_cannot_be_are_one_line(options: dict[str, Any], said: str, data: LMDBDataset) -> None:
    with pytest.raises(OptionError, match=said) as error:
        make_loader(data, **{"batch_size": 8, "workers": 0} | options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_without_words_is_raised_as_it_is(workers: int, data: LMDBDataset) -> None:
    class Unfinished(LMDBDataset):
        def __getitems__(self, numbers: Any) -> Any:
            raise NotImplementedError

    loader = make_loader(Unfinished(data.data.root, decode="tensor", crop=CROP), 8, workers=workers)
    with pytest.raises(NotImplementedError):
        next(iter(loader))


@pytest.mark.parametrize(("decode", "bytes_per_sample"), [("numpy", 24 * 24 * 3 + 8), ("tensor", 8)])
def test_batches_that_shared_memory_cannot_hold_are_one_error(
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
            make_loader(data, 8, workers=2)
        assert "\n" not in str(error.value)
    assert len(digest(make_loader(data, 8, workers=0))) == 7, "without workers none is needed"
    with_free(need)
    assert len(make_loader(data, 8, workers=2, prefetch=2)) == 7
    assert set(asked) <= {"/dev/shm"}


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
def test_a_dev_shm_that_is_small_full_or_read_only_is_one_line(
    options: str, said: str, context: str, dataset: Path
) -> None:
    printed = run_python(
        """
        import sys
        from presize.datasets import LMDBDataset, RandomResizedCrop, make_loader
        from presize.errors import LoaderError

        data = LMDBDataset(sys.argv[1], crop=RandomResizedCrop(24), decode="tensor")
        try:
            list(make_loader(data, 8, workers=2, multiprocessing_context=sys.argv[2]))
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
def test_a_dev_shm_that_fills_up_during_an_epoch_is_one_line_and_no_hang(decode: str, dataset: Path) -> None:
    """Targets are sent by a thread of the worker, whose errors Python only prints."""
    printed = run_python(
        """
        import shutil, sys
        from presize.datasets import LMDBDataset, RandomResizedCrop, make_loader
        from presize.errors import LoaderError

        loader = make_loader(LMDBDataset(sys.argv[1], crop=RandomResizedCrop(24), decode=sys.argv[2]), 2, workers=2)
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


def test_a_worker_may_have_a_beginning_of_its_own(data: LMDBDataset, tmp_path: Path) -> None:
    loader = make_loader(data, 8, workers=2, worker_init_fn=lambda number: (tmp_path / str(number)).touch())
    assert len(digest(loader)) == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_a_damaged_sample_names_its_path_through_workers(dataset: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(dataset, tmp_path / "damaged"))
    overwrite_value(copied, 20)
    damaged = LMDBDataset(copied, crop=CROP, decode="tensor")
    loader = make_loader(damaged, 24, workers=2, persistent_workers=False)
    with pytest.raises(DatasetError, match=rf"sample 20 \({damaged.data.path(20)}\) of .* is damaged") as error:
        list(loader)
    clear_frames(error.tb)  # which ends the workers; left to the garbage collector they take 5 s each


# --- several processes ---


@pytest.mark.slow
def test_ranks_of_torch_distributed_take_each_sample_once(dataset: Path, tmp_path: Path) -> None:
    script = dedent("""
        import json, sys
        import torch.distributed as dist
        from presize.datasets import CenterCrop, LMDBDataset, Loader
        dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
        data = LMDBDataset(sys.argv[3], target="path")
        with Loader(data, 5, crop=CenterCrop(24), shuffle=True, seed=4, workers=1, last="keep") as loader:
            print(json.dumps([[path for _, paths in loader for path in paths] for epoch in range(2)]))
        dist.destroy_process_group()
    """)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, (tmp_path / "meet").as_uri(), str(rank), os.fspath(dataset)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",  # or the source tree would stand before what is installed
        )
        for rank in range(2)
    ]
    try:
        ended = [process.communicate(timeout=60) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], [err for _, err in ended]
    one, other = (json.loads(out) for out, _ in ended)
    data = LMDBDataset(dataset)
    for epoch in range(2):
        assert sorted(one[epoch] + other[epoch]) == sorted(data.data.path(i) for i in range(len(data)))
    assert one[0] != one[1]
