"""Common guarantees of Loader, make_loader and a plain DataLoader with EpochSampler and collate."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import chain, islice
from pathlib import Path
from traceback import clear_frames
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader

from batches import digest
from builds import build_images
from presize.datasets import (
    CenterCrop,
    EpochSampler,
    LMDBDataset,
    Loader,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Sequential,
    ShardShuffled,
    Shuffled,
    Weighted,
    collate,
    make_loader,
)
from presize.errors import DatasetError, LoaderError, OptionError, PresizeWarning
from presize.options import BuildOptions, Companion, Coordinates, ImageOptions, Size
from processes import run_command

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")

CROP = RandomResizedCrop(24)
DAEMON = 'num_workers: this process is a worker itself.*; use num_workers=0, or a Loader with mode="threads"'


class Plain(DataLoader[Any]):
    """A DataLoader as in docs/training.md, with a count of consumed batches."""

    delivered = 0

    def __iter__(self) -> Iterator[Any]:
        self.delivered = 0
        for batch in super().__iter__():
            self.delivered += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        sampler: Any = self.sampler
        return sampler.state_after(self.delivered if sampler.begun else 0, self.batch_size)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        sampler: Any = self.sampler
        sampler.load_state_dict(state)
        self.delivered = 0


def plain_loader(
    dataset: Any,
    batch_size: int,
    *,
    shuffle: Any = False,
    seed: int | None = None,
    num_workers: int = 0,
    **options: Any,
) -> Plain:
    orders = {True: Shuffled, False: Sequential}
    order = orders[shuffle](len(dataset), seed) if isinstance(shuffle, bool) else shuffle
    sharing = {name: options.pop(name) for name in ("rank", "ranks", "last", "drop_last") if name in options}
    sampler = EpochSampler(order, batch_size=batch_size, **sharing)
    return Plain(dataset, batch_size, sampler=sampler, num_workers=num_workers, collate_fn=collate, **options)


MAKERS: dict[str, Callable[..., Any]] = {
    "Loader": Loader,
    "Loader of threads": lambda *args, **options: Loader(*args, mode="threads", **options),
    "make_loader": make_loader,
    "DataLoader": plain_loader,
}


@pytest.fixture(params=MAKERS.values(), ids=list(MAKERS))
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def epochs(dataset: Path) -> list[Any]:
    """Read two epochs by a Loader in this thread."""
    loader = Loader(LMDBDataset(dataset), 8, crop=CROP, flip=0.5, shuffle=True, seed=5, num_workers=0)
    return [digest(loader), digest(loader)]


# --- batches ---


@pytest.mark.parametrize(
    ("workers", "context"),
    [
        (0, None),
        (1, "fork"),
        (4, "fork"),
        *(pytest.param(2, name, marks=pytest.mark.slow) for name in ("spawn", "forkserver")),
    ],
    ids=str,
)
def test_all_ways_of_reading_yield_the_same_batches(
    workers: int, context: str | None, make: Any, data: LMDBDataset, epochs: list[Any]
) -> None:
    loader = make(data, 8, shuffle=True, seed=5, num_workers=workers, multiprocessing_context=context)
    assert [digest(loader), digest(loader)] == epochs and epochs[0] != epochs[1]
    loader.sampler.set_epoch(0)
    assert digest(loader) == epochs[0]


def test_a_part_of_a_batch_can_be_replaced(make: Any, data: LMDBDataset) -> None:
    batch = next(iter(make(data, 8, num_workers=0)))
    batch[0] = batch[0].float()
    assert type(batch) is list and batch[0].dtype == torch.float32


def test_each_epoch_has_every_sample_once_with_its_target(make: Any, dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=CenterCrop(24), decode="tensor", target=("path", "label"))
    expected = sorted(target for _, target in data.samples)
    loader = make(data, 8, shuffle=True, num_workers=0)
    for _ in range(2):
        found = [pair for _, (paths, labels) in loader for pair in zip(paths, labels.tolist(), strict=True)]
        assert sorted(found) == expected


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build 10 images with a mask, a map of 16 bits and a copy of the image, up to two boxes, captions and names."""
    rng = np.random.default_rng(0)
    images, rows = {}, []
    for number in range(10):
        name = f"{number}.png"
        mask = np.kron(rng.integers(0, 4, (6, 8)).astype(np.uint8), np.ones((16, 20), np.uint8))
        image = np.dstack([mask * 60, mask * 30, 255 - mask * 60])
        images |= {name: image, f"masks/{name}": mask, f"far/{name}": mask.astype(np.uint16) * 257}
        images[f"again/{name}"] = image
        boxes = [[10 * k, 5, 40, 50] for k in range(number % 3)]
        rows.append({"path": name, "label": number % 2, "bbox": boxes, "kind": [*range(number % 3)]})
    options = BuildOptions(
        ImageOptions(sizes=(Size(64, 64),)),
        boxes=(Coordinates("bbox", "xywh"),),
        companions=(
            Companion("mask", "masks/{name}"),
            Companion("far", "far/{name}"),
            Companion("again", "again/{name}", format="jpeg", filter="bicubic"),
        ),
    )
    return build_images(tmp_path_factory.mktemp("paired"), images, options, rows)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build 10 images of 16 bits, of alpha, and of grey raw pixels."""
    rng = np.random.default_rng(0)
    images = {
        f"{number}.png": np.kron(rng.integers(0, 256, (6, 8, 4)), np.ones((10, 10, 1))).astype(np.uint8)
        for number in range(10)
    }
    formats: dict[str, dict[str, Any]] = {
        "16 bits": {"depth": 16, "format": "png"},
        "alpha": {"color": "rgba", "format": "png"},
        "grey": {"color": "gray", "format": "raw"},
    }
    return {
        name: build_images(
            tmp_path_factory.mktemp("other"), images, BuildOptions(ImageOptions(sizes=(Size(48, 48),), **options))
        )
        for name, options in formats.items()
    }


KINDS: dict[str, dict[str, Any]] = {
    "no target": {"target": None},
    "several targets": {"target": ("label", "path")},
    "text": {"target": "path"},
    "a dict": {"target": {"y": "label", "at": "path"}},
    "a target_transform": {"target_transform": lambda label: {"label": 2.0 * label}},
    "views": {"crop": [RandomResizedCrop(32)] * 2 + [RandomResizedCrop(12)] * 3},
    "a list of one view": {"crop": [CenterCrop(20)]},
    "companions": {"target": "label"},
    "one companion, not cropped to a place": {"companions": ("mask",), "crop": Resize(Size(50, 70))},
    "boxes": {"target": ("bbox", "kind", "path"), "companions": ()},
    "boxes and companions": {"target": {"boxes": "bbox", "y": "label"}, "companions": ("mask", "far")},
    "16 bits": {},
    "16 bits, views": {"crop": [RandomCrop(24), CenterCrop(12)]},
    "alpha": {},
    "grey": {},
}


@pytest.mark.parametrize(
    ("name", "workers"),
    [("Loader", 2), ("Loader of threads", 2), ("make_loader", 0), ("make_loader", 2), ("DataLoader", 2)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_every_kind_equal_those_of_a_loader_in_this_thread(
    kind: str, name: str, workers: int, dataset: Path, paired: Path, others: dict[str, Path]
) -> None:
    root = others.get(kind.partition(",")[0], paired if "compan" in kind or "boxes" in kind else dataset)
    chosen = {"crop": CROP, "flip": 0.5, "target": None if root in others.values() else "label"} | KINDS[kind]
    data = LMDBDataset(root, decode="tensor", **chosen)
    target: Any = chosen["target"]
    options: dict[str, Any] = {"shuffle": True, "seed": 3}
    size = 4 if root != dataset else 16
    expected = list(Loader(data, size, num_workers=0, **options))
    loader = MAKERS[name](data, size, num_workers=workers, **options)
    found = list(loader)  # keeping them would reveal reused memory
    assert digest(found) == digest(expected)
    if target is not None and ("view" in kind or "compan" in kind):
        assert type(found[0][0]) is tuple
    first = found[0] if target is None else found[0][0]
    for images in first if isinstance(first, tuple) else [first]:
        assert type(images) is torch.Tensor
        assert images.ndim == 3 or images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("crop", [CROP, [RandomResizedCrop(32), RandomResizedCrop(12)]], ids=["one view", "two views"])
def test_a_sum_of_parts_yields_the_samples_of_the_whole(crop: Any, dataset: Path) -> None:
    whole, other = (LMDBDataset(dataset, crop=crop, flip=0.5, decode="tensor") for _ in range(2))
    parts = ConcatDataset([whole.subset(range(9)), torch.utils.data.Subset(other, range(9, len(other)))])
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "num_workers": 0}
    expected = digest(Loader(whole, 8, **options))
    assert digest(Loader(parts, 8, **options)) == digest(make_loader(parts, 8, **options)) == expected


ENDINGS: list[tuple[dict[str, Any], list[int]]] = [
    ({"last": "keep"}, [16, 16, 16, 8]),
    ({"drop_last": True}, [16] * 3),
    ({"last": "pad"}, [16] * 4),
    ({"drop_last": True, "rank": 1, "ranks": 2}, [16]),
    ({"drop_last": False, "rank": 1, "ranks": 2}, [16, 16]),
]


@pytest.mark.parametrize(("ending", "batches"), ENDINGS)
def test_the_last_batch_is_kept_dropped_or_padded(
    ending: Any, batches: list[int], make: Any, data: LMDBDataset
) -> None:
    loader = make(data, 16, **ending, num_workers=0)
    assert len(data) == 56 and len(loader) == len(batches)
    assert [len(images) for images, _ in loader] == batches


def test_kept_batches_stay_unchanged(make: Any, data: LMDBDataset, epochs: list[Any]) -> None:
    loader = make(data, 8, shuffle=True, seed=5, num_workers=2)
    kept = list(loader)
    for _ in loader:
        pass
    assert digest(kept) == epochs[0]
    del loader
    assert digest(kept) == epochs[0], "their memory outlives the loader"


# --- order ---

ORDERS: dict[str, Callable[[LMDBDataset], Any]] = {
    "by shards": lambda data: ShardShuffled(data.data, seed=3, window=2),
    "weighted": lambda data: Weighted(1 + np.arange(len(data)), 3),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=list(ORDERS))
def test_any_order_yields_the_same_as_in_a_loader(order: Any, make: Any, data: LMDBDataset) -> None:
    expected = digest(Loader(data, 8, shuffle=order(data), num_workers=0))
    assert digest(make(data, 8, shuffle=order(data), num_workers=0)) == expected


def test_a_sample_drawn_twice_is_cropped_twice(make: Any, data: LMDBDataset) -> None:
    weights = np.zeros(len(data))
    weights[7] = 1
    images, targets = next(iter(make(data, 12, shuffle=Weighted(weights, length=12), num_workers=0)))
    assert set(targets.tolist()) == {int(data.targets[7])}
    assert len({image.numpy().tobytes() for image in images}) > 8


def test_ranks_share_each_epoch(make: Any, dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=CenterCrop(24), decode="tensor", target="path")
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "num_workers": 0, "ranks": 3, "last": "keep"}
    shares = [make(data, 5, rank=rank, **options) for rank in range(3)]
    assert sorted(path for loader in shares for _, paths in loader for path in paths) == sorted(
        data.data.path(i) for i in range(len(data))
    )


def test_two_hosts_of_two_ranks_read_separate_shards(make: Any, dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=CenterCrop(24), decode="tensor", target="path")
    shards = dict(zip((data.data.path(i) for i in range(len(data))), data.numbers("shard").tolist(), strict=True))
    order = ShardShuffled(data.data, seed=3, window=2, by_host=True, ranks=4, ranks_per_host=2)
    loaders = [make(data, 5, shuffle=order, num_workers=0, rank=rank, ranks=4, last="keep") for rank in range(4)]
    for epoch in range(2):
        read = [[path for _, targets in loader for path in targets] for loader in loaders]
        assert sorted(chain(*read)) == sorted(shards)
        hosts = [{shards[path] for path in read[rank] + read[rank + 1]} for rank in (0, 2)]
        for rank in range(4):
            assert hosts[rank // 2] == set(chain(*order.groups_ahead(epoch, 0, rank)))
        assert len(hosts[0] & hosts[1]) <= 1


# --- position ---


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 4)])
def test_an_epoch_is_resumed_at_its_position_with_other_workers(
    before: int, after: int, make: Any, data: LMDBDataset, epochs: list[Any]
) -> None:
    first = make(data, 8, shuffle=True, seed=5, num_workers=before)
    with closing(iter(first)) as batches:
        read = list(islice(batches, 3))
        state = json.loads(json.dumps(first.state_dict()))
    second = make(data, 8, shuffle=True, seed=5, num_workers=after)
    second.load_state_dict(state)
    assert len(second) == len(epochs[0]), "the length of a whole epoch"
    assert digest(read) + digest(second) == epochs[0]
    assert digest(second) == epochs[1]


@pytest.mark.parametrize("resumed_by", MAKERS.values(), ids=list(MAKERS))
def test_one_kind_of_loader_resumes_from_the_state_of_another(
    resumed_by: Any, make: Any, data: LMDBDataset, epochs: list[Any]
) -> None:
    first = make(data, 8, shuffle=True, seed=5, num_workers=0)
    with closing(iter(first)) as batches:
        next(batches)
        state = first.state_dict()
    second = resumed_by(data, 8, shuffle=True, seed=5, num_workers=0)
    second.load_state_dict(state)
    assert digest(second) == epochs[0][1:]


def test_an_epoch_is_resumed_with_other_ranks_and_another_batch_size(make: Any, dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=CenterCrop(24), decode="tensor", target="path")
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "num_workers": 0, "last": "keep"}
    ranks = [make(data, 4, rank=rank, ranks=2, **options) for rank in range(2)]
    read = []
    for loader in ranks:
        with closing(iter(loader)) as batches:
            read += [path for _, paths in islice(batches, 2) for path in paths]
    resumed = [make(data, 7, rank=rank, ranks=3, **options) for rank in range(3)]
    for loader in resumed:
        loader.load_state_dict(ranks[0].state_dict())
        read += [path for _, paths in loader for path in paths]
    assert sorted(read) == sorted(data.data.path(i) for i in range(len(data)))


def test_the_state_after_an_epoch_is_the_start_of_the_next(make: Any, data: LMDBDataset, epochs: list[Any]) -> None:
    first = make(data, 8, shuffle=True, seed=5, num_workers=2)
    list(first)
    ended = first.state_dict()
    begun = iter(first)  # workers may read ahead; no batch is consumed
    assert first.state_dict() == ended
    second = make(data, 8, shuffle=True, seed=5, num_workers=0)
    second.load_state_dict(ended)
    assert digest(second) == epochs[1] == digest(begun)


def test_the_state_of_another_order_is_refused(make: Any, data: LMDBDataset) -> None:
    state = make(data, 8, shuffle=True, seed=5, num_workers=0).state_dict()
    with pytest.raises(OptionError, match="state: seed is 6, and was 5 when this was saved; give seed=5"):
        make(data, 8, shuffle=True, seed=6, num_workers=0).load_state_dict(state)


def test_after_a_break_the_next_epoch_starts(make: Any, data: LMDBDataset, epochs: list[Any]) -> None:
    loader = make(data, 8, shuffle=True, seed=5, num_workers=2)
    for _ in loader:
        break
    assert digest(loader) == epochs[1]


# --- end ---


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_sample_is_reported_to_the_caller_with_its_path(workers: int, make: Any, damaged: Path) -> None:
    data = LMDBDataset(damaged, crop=CROP, decode="tensor")
    loader = make(data, 8, num_workers=workers)
    batches, read = iter(loader), []
    said = rf"sample 20 \({re.escape(data.data.path(20))}\) of .* is damaged"
    with pytest.raises(DatasetError, match=said) as error:
        for batch in batches:
            read.append(batch)
    assert len(read) == 2, "the batches before it"
    assert list(batches) == []
    clear_frames(error.tb)  # ends the workers; left to the garbage collector, each takes 5 s


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (Loader, "a loader worker died .killed by SIGKILL, most often by the OOM"),
        (make_loader, r"worker.*(killed|exited|died)"),
    ],
)
def test_a_killed_worker_is_an_error_and_not_a_hang(load: Any, said: str, data: LMDBDataset) -> None:
    others = set(multiprocessing.active_children())
    batches = iter(load(data, 1, num_workers=2, prefetch_factor=1))
    next(batches)
    os.kill((set(multiprocessing.active_children()) - others).pop().pid or 0, signal.SIGKILL)
    with pytest.raises((LoaderError, RuntimeError), match=said):
        list(batches)


@pytest.mark.parametrize("load", [Loader, make_loader])
def test_a_worker_killed_between_epochs_is_replaced(load: Any, data: LMDBDataset, epochs: list[Any]) -> None:
    others = set(multiprocessing.active_children())
    loader = load(data, 8, shuffle=True, seed=5, num_workers=2)
    assert digest(loader) == epochs[0]
    killed = (set(multiprocessing.active_children()) - others).pop()
    with suppress(RuntimeError):  # raised by torch's handler of SIGCHLD
        os.kill(killed.pid or 0, signal.SIGKILL)
        killed.join()
    assert digest(loader) == epochs[1]


@pytest.mark.parametrize(
    ("name", "workers", "said"),
    [("Loader", 2, DAEMON), ("make_loader", 2, DAEMON), ("Loader of threads", 2, "7"), ("make_loader", 0, "7")],
)
def test_in_a_worker_of_a_pool_a_loader_has_threads_or_no_workers(
    name: str, workers: int, said: str, data: LMDBDataset
) -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert re.search(said, pool.apply(read_here, (name, data, workers)))


def read_here(name: str, data: LMDBDataset, workers: int) -> str:
    try:
        return str(len(list(MAKERS[name](data, 8, num_workers=workers))))
    except LoaderError as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
@pytest.mark.parametrize("load", ["Loader", "make_loader"])
def test_a_script_without_a_main_guard_is_told_what_is_missing(
    load: str, context: str, dataset: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nfrom presize.datasets import LMDBDataset, {load}, RandomResizedCrop\n"
        "data = LMDBDataset(sys.argv[1], crop=RandomResizedCrop(24), decode='tensor')\n"
        f"list({load}(data, 8, num_workers=1, multiprocessing_context={context!r}))\n"
    )
    ran = run_command([sys.executable, script, dataset])
    assert ran.returncode == 1
    said = ran.stderr.strip().splitlines()[-1]
    assert "LoaderError: a " in said and said.count('if __name__ == "__main__"') == 1


@pytest.mark.parametrize("load", [Loader, make_loader])
@pytest.mark.parametrize(
    ("options", "on_ranks"), [({}, ""), ({"rank": 0, "ranks": 2, "batch_size": 40}, " on each of 2 ranks")]
)
def test_an_epoch_without_full_batches_warns(
    load: Any, options: dict[str, Any], on_ranks: str, data: LMDBDataset
) -> None:
    loader = load(data, **{"batch_size": 57, "drop_last": True, "num_workers": 0} | options)
    said = f"drop_last: an epoch has no batch, since 56 samples cannot fill one of {loader.batch_size}{on_ranks}"
    with pytest.warns(PresizeWarning, match=said):
        assert list(loader) == []
    with pytest.warns(PresizeWarning, match=said):
        assert list(DataLoader(data, loader.batch_size, sampler=loader.sampler, drop_last=True)) == []


@pytest.mark.parametrize("load", [Loader, make_loader])
def test_a_number_of_another_integer_type_is_accepted(load: Any, data: LMDBDataset, epochs: list[Any]) -> None:
    options: dict[str, Any] = {"num_workers": np.int8(0), "prefetch_factor": np.uint8(2), "seed": np.int64(5)}
    options |= {"rank": np.int64(0), "drop_last": np.False_, "shuffle": np.True_, "timeout": np.float32(9)}
    loader = load(data, np.int64(8), ranks=np.int32(1), **options)
    assert digest(loader) == epochs[0]
    assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict() and type(loader.batch_size) is int
    assert repr(CenterCrop(np.int64(24))) == "CenterCrop(size=24)"  # type: ignore[arg-type]
    assert Loader(data, 8, flip=np.float32(0.5), crop=RandomResizedCrop(9, (np.float32(0.1), 1))).crop


def in_a_dict(image: Any) -> dict[str, Any]:
    return {"name": "image", "pixels": np.array(image)}


UNEQUAL = "crop: the images of .* have different sizes and cannot be stacked; choose a crop, such as RandomResizedCrop"


@pytest.mark.parametrize(
    ("name", "workers", "options", "said"),
    [
        ("Loader", 0, {}, UNEQUAL),
        ("make_loader", 0, {"decode": "tensor"}, UNEQUAL),
        ("make_loader", 1, {"decode": "tensor"}, UNEQUAL),
        ("make_loader", 0, {"decode": "numpy"}, UNEQUAL),
        ("make_loader", 0, {"decode": "tensor", "target": None}, UNEQUAL),
        ("DataLoader", 0, {"decode": "tensor", "target": ("label", "path")}, UNEQUAL),
        ("make_loader", 0, {"transform": in_a_dict}, UNEQUAL),
        ("DataLoader", 0, {"transform": in_a_dict, "target": None}, UNEQUAL),
        ("make_loader", 1, {}, 'decode: PIL images cannot be stacked; choose "tensor", or give a transform'),
    ],
)
def test_images_that_cannot_be_stacked_are_one_line_errors(
    name: str, workers: int, options: dict[str, Any], said: str, dataset: Path
) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        list(MAKERS[name](LMDBDataset(dataset, **options), 8, num_workers=workers))
    assert "\n" not in str(raised.value)


def test_a_batch_of_the_wrong_size_names_the_image(make: Any, dataset: Path) -> None:
    data = LMDBDataset(dataset, crop=CenterCrop(100), decode="tensor")
    with pytest.raises(DatasetError, match=r"sample 0 \(.*\) of .* is \d+ pixels high and \d+ wide, too small for"):
        next(iter(make(data, 4, num_workers=0)))


# --- options ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size: expected a whole number from 1"),
        ({"batch_size": 2.5}, "batch_size: expected a whole number from 1"),
        ({"num_workers": -1}, "num_workers: expected a whole number from 0 to 4096, got -1"),
        ({"prefetch_factor": 0}, "prefetch_factor: expected a whole number from 1 to 64, got 0"),
        ({"last": "drop"}, "last: expected one of keep, pad, got 'drop'"),
        ({"drop_last": True, "last": "pad"}, 'drop_last: cannot be combined with last="pad", which fills up the last'),
        ({"drop_last": True, "last": "keep"}, 'drop_last: cannot be combined with last="keep", which keeps the last'),
        ({"drop_last": "yes"}, "drop_last: expected True or False, got 'yes'"),
        ({"seed": -1}, "seed: expected a whole number from 0"),
        ({"rank": 3, "ranks": 2}, "rank: expected a whole number from 0 to 1, got 3"),
        ({"shuffle": Shuffled(9)}, "shuffle: expected an order over 56 samples"),
        ({"shuffle": range(56)}, "shuffle: expected True, False or an order, such as"),
        ({"shuffle": Shuffled(56, seed=1), "seed": 0}, "seed: the order already has a seed, .*; leave one"),
        ({"shuffle": Shuffled(56), "seed": -1}, "seed: expected a whole number from 0"),
    ],
)
@pytest.mark.parametrize("load", [Loader, make_loader])
def test_invalid_options_are_one_line_errors(load: Any, options: dict[str, Any], said: str, data: LMDBDataset) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        load(data, **{"batch_size": 8, "num_workers": 0} | options)
    assert "\n" not in str(raised.value)


NORMALIZE = ((0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize(
    ("load", "options", "said"),
    [
        (Loader, {"mode": "fibres"}, "mode: expected one of processes, threads, got 'fibres'"),
        (Loader, {"flip": 1.5}, "flip: expected a probability from 0 to 1, got 1.5"),
        (Loader, {"crop": 224}, "crop: expected one of presize.datasets' crops"),
        (Loader, {"transform": 5}, "transform: expected a function, got 5"),
        (Loader, {"on_error": "ignore"}, "on_error: expected one of raise, skip"),
        (Loader, {"multiprocessing_context": "thread"}, "context: expected one of fork, spawn, forkserver, got 'thr"),
        (Loader, {"multiprocessing_context": 3}, "context: expected one of fork, spawn, forkserver, got 3"),
        (Loader, {"sampler": [0], "shuffle": True}, "sampler: cannot be combined with shuffle"),
        (Loader, {"sampler": [0], "ranks": 2, "rank": 0}, "rank: a sampler divides epochs among ranks itself"),
        (Loader, {"sampler": iter([0])}, "sampler: expected indices with a length, got list_iterator"),
        (Loader, {"sampler": EpochSampler(Sequential(56))}, "sampler: give the order of an EpochSampler as shuffle="),
        (Loader, {"batch_sampler": [[0, 1]]}, "batch_sampler: a Loader takes no batch_sampler; give an order as shuf"),
        (Loader, {"collate_fn": list}, "collate_fn: a Loader does not call it, .*; use make_loader"),
        (Loader, {"worker_init_fn": print}, "worker_init_fn: a Loader does not call it"),
        (Loader, {"generator": torch.Generator()}, "generator: a Loader draws from seed="),
        (Loader, {"timeout": "3"}, "timeout: expected seconds, or 0 to wait forever, got '3'"),
        (make_loader, {"timeout": -1}, "timeout: expected seconds, or 0 to wait forever, got -1"),
        (Loader, {"timeout": -1}, "timeout: expected seconds, or 0 to wait forever, got -1"),
        (Loader, {"dtype": torch.float16}, "dtype: torch.float16 needs normalize"),
        (Loader, {"normalize": ((0.5,), (0.5,))}, r"normalize: expected \(mean, std\) of 3 channels"),
        (Loader, {"normalize": ((0.5,) * 3, (0.0,) * 3)}, r"normalize: expected \(mean, std\)"),
        (Loader, {"normalize": ((123, 117, 104), (58, 57, 57))}, "normalize: .*1, got 123; divide mean and std by 255"),
        (Loader, {"normalize": NORMALIZE, "dtype": torch.int8}, "dtype: expected a floating-point type"),
        (
            Loader,
            {"normalize": NORMALIZE, "dtype": "float32"},
            "dtype: expected a floating-point type, .* got 'float32'",
        ),
        (Loader, {"device": 5.5}, "device: expected one that torch knows, .* got 5.5"),
        (make_loader, {"multiprocessing_context": 3}, "context: expected one of fork, spawn, forkserver, got 3"),
        (make_loader, {"collate_fn": 5}, "collate_fn: expected a function, got 5"),
        (make_loader, {"worker_init_fn": 5}, "worker_init_fn: expected a function, got 5"),
        (make_loader, {"sampler": [0]}, "sampler: make_loader takes an order as shuffle=; for a sampler use DataLoad"),
        (make_loader, {"batch_sampler": [[0]]}, "batch_sampler: make_loader takes an order as shuffle=; for a batch_"),
    ],
)
def test_invalid_options_of_one_of_them_are_one_line_errors(
    load: Any, options: dict[str, Any], said: str, data: LMDBDataset
) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        load(data, 8, num_workers=0, **options)
    assert "\n" not in str(raised.value)


HARMLESS: dict[str, Any] = {"persistent_workers": True, "collate_fn": collate, "worker_init_fn": None, "timeout": 0}


@pytest.mark.parametrize("load", [Loader, make_loader])
def test_harmless_options_of_a_dataloader_are_accepted(load: Any, data: LMDBDataset) -> None:
    assert load(data, 16, collate_fn=torch.utils.data.default_collate).batch_size == 16
    harmless = HARMLESS | {"sampler": None, "batch_sampler": None, "generator": None, "in_order": True}
    context = multiprocessing.get_context("fork")
    pinned = {"pin_memory": True, "pin_memory_device": "cuda", "in_order": False} if load is Loader else {}
    loader = load(data, 16, num_workers=1, **{**harmless, **pinned}, multiprocessing_context=context)
    assert len(loader) == 4 and loader.multiprocessing_context in ("fork", context)


def test_a_loader_has_dataloaders_attributes(make: Any, data: LMDBDataset) -> None:
    loader = make(data, 16, num_workers=2, drop_last=True, prefetch_factor=3)
    assert (loader.dataset, loader.batch_size, loader.num_workers, loader.prefetch_factor) == (data, 16, 2, 3)
    assert len(loader) == len(loader.batch_sampler) == 3
    assert (loader.collate_fn, loader.generator, loader.pin_memory) == (collate, None, False)
    assert make(data, 16, num_workers=2, timeout=30).timeout == 30
    assert loader.in_order and loader.batch_sampler.sampler is loader.sampler


@pytest.mark.parametrize("load", [Loader, make_loader])
@pytest.mark.parametrize("name", ["workers", "order", "wokers"])
def test_a_name_that_dataloader_does_not_have_is_a_type_error(load: Any, name: str, data: LMDBDataset) -> None:
    with pytest.raises(TypeError, match=f"got an unexpected keyword argument '{name}'"):
        load(data, 16, num_workers=0, **{name: 2})


@pytest.mark.parametrize("load", [Loader, make_loader])
def test_a_seed_is_given_to_an_order_without_one(load: Any, data: LMDBDataset) -> None:
    orders = ShardShuffled(data.data, seed=4, window=2), ShardShuffled(data.data, window=2)
    ours, theirs = (
        load(data, 8, shuffle=orders[0], num_workers=0),
        load(data, 8, shuffle=orders[1], seed=4, num_workers=0),
    )
    assert digest(ours) == digest(theirs) and orders[1].seed is None
