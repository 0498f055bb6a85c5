"""Orders: each sample once, well mixed, the same in every release; and the batches of each rank."""

from __future__ import annotations

import math
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards import Shards, dealt

from presize.datasets.reading.draws import permute
from presize.datasets.reading.order import (
    Order,
    Schedule,
    Sequential,
    ShardShuffled,
    Shuffled,
    Weighted,
    class_balanced,
    with_seed,
)
from presize.errors import DatasetError, OptionError
from presize.store.dataset import Dataset

SEEDS = st.integers(0, 2**63 - 1)
LENGTHS = st.one_of(st.integers(0, 40), st.integers(1000, 1100), st.integers(1, 6000))


def epoch_of(order: Order, epoch: int = 0) -> npt.NDArray[np.int64]:
    return order.samples(epoch, np.arange(len(order)))


def hosts_of(data: Shards, ranks: int, ranks_per_host: int, window: int = 8, seed: int = 1) -> ShardShuffled:
    return ShardShuffled(data, seed, window, by_host=True, ranks=ranks, ranks_per_host=ranks_per_host)


def read_by(order: ShardShuffled, host: int, epoch: int = 0, start: int = 0) -> npt.NDArray[np.int64]:
    """Return the samples that the ranks of a host read together in an epoch, from global position `start`."""
    assert order.ranks is not None and order.ranks_per_host is not None
    positions = np.arange(start, len(order))
    return order.samples(epoch, positions[positions % order.ranks // order.ranks_per_host == host])


def z_score(counts: npt.NDArray[np.int64], expected: npt.NDArray[np.float64] | float) -> float:
    """Return the number of standard deviations of chi-square above its expectation."""
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


ORDERS: list[Order] = [
    Sequential(5000),
    Shuffled(5000, seed=7),
    ShardShuffled(dealt(5000, 20), seed=7, window=3),
    ShardShuffled(dealt(5000, 20), seed=7, window=3, by_host=True, ranks=6, ranks_per_host=2),
    Weighted(np.arange(5000), seed=7),
    class_balanced(np.arange(5000) // 1700, seed=7),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_the_sample_of_a_position_does_not_depend_on_other_queries(order: Order) -> None:
    for epoch in (0, 3):
        samples, keys = epoch_of(order, epoch), order.keys(epoch, np.arange(len(order)))
        some = np.array([4999, 0, 17, 17, 2500, 1])
        assert order.samples(epoch, some).tolist() == samples[some].tolist()
        assert order.keys(epoch, some).tolist() == keys[some].tolist()
        assert order.samples(epoch, some[:0]).shape == (0,)
        assert samples.dtype == keys.dtype == np.int64


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_a_pickled_order_is_the_same_order(order: Order) -> None:
    again = pickle.loads(pickle.dumps(order))
    assert (again.seed, again.population, len(again)) == (order.seed, order.population, len(order))
    assert epoch_of(again, 5).tolist() == epoch_of(order, 5).tolist()


@pytest.mark.parametrize("order", ORDERS[1:], ids=lambda order: type(order).__name__)
def test_each_epoch_and_each_seed_has_a_different_order(order: Order) -> None:
    epochs = [tuple(epoch_of(order, epoch)) for epoch in range(20)]
    seeds = [tuple(epoch_of(with_seed(order, seed))) for seed in (0, 1, 2, 2**63 - 1)]
    assert len({*epochs, *seeds}) == 24


@pytest.mark.parametrize("order", ORDERS[:4], ids=lambda order: type(order).__name__)
def test_without_replacement_the_key_of_a_visit_is_its_sample(order: Order) -> None:
    positions = np.arange(100)
    assert order.keys(1, positions).tolist() == order.samples(1, positions).tolist()


@pytest.mark.parametrize("order", ORDERS[4:], ids=lambda order: type(order).__name__)
def test_with_replacement_each_visit_has_a_key_that_is_no_sample(order: Order) -> None:
    keys = order.keys(1, np.arange(len(order)))
    assert len(set(keys)) == len(order)
    assert keys.min() >= order.population


@given(length=LENGTHS, seed=SEEDS, epoch=st.integers(0, 1000))
def test_a_shuffle_has_every_sample_once(length: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(epoch_of(Shuffled(length, seed), epoch)), np.arange(length))


@given(length=st.integers(10**6, 2**48), seed=SEEDS)
def test_any_part_of_a_long_shuffle_is_in_range_and_has_no_sample_twice(length: int, seed: int) -> None:
    positions = np.r_[0:500, length // 2 : length // 2 + 500, length - 500 : length]
    samples = Shuffled(length, seed).samples(0, positions)
    assert len(set(samples)) == 1500
    assert 0 <= samples.min()
    assert samples.max() < length


@pytest.mark.parametrize(
    ("order", "samples", "reason"),
    [
        (Shuffled(1000, 1), [485, 149, 626, 480, 501, 912], "sorted"),
        (Shuffled(1_281_167, 1), [617697, 705462, 90253, 1065363, 592250, 904716], "a Feistel network"),
        (Shuffled(14_197_122, 1), [1310962, 1875837, 12443626, 11987191, 5824994, 9006389], "a longer one"),
        (ShardShuffled(dealt(5000, 20), 1, 4), [2674, 4034, 4359, 1897, 1786, 4863], "by shards"),
        (hosts_of(dealt(5000, 3), 4, 2, window=4), [867, 2487, 2318, 2586, 1323, 1594], "by shards and hosts"),
        (Weighted(np.arange(5000), 1), [3666, 4625, 2038, 4107, 3151, 4184], "weighted"),
        (class_balanced(np.arange(5000) // 1700, 1), [3372, 3809, 390, 3706, 2682, 4653], "balanced"),
    ],
)
def test_the_order_of_a_seed_never_changes(order: Order, samples: list[int], reason: str) -> None:
    """Otherwise a run could not be resumed after an upgrade."""
    assert order.samples(2, np.arange(6)).tolist() == samples, reason


@pytest.mark.parametrize(
    ("length", "samples", "reason"),
    [
        (1024, [485, 149, 626, 480, 501, 912], "the longest sorted one"),
        (1025, [1017, 506, 793, 97, 727, 859], "the shortest unsorted one"),
        (1027, [813, 745, 554, 634, 741, 546], "its sides are 49 and 21, and 49 is the last that is tried"),
        (1056, [220, 40, 735, 129, 525, 948], "32 times 33: the longer side comes first"),
        (1166, [594, 373, 1143, 1150, 1080, 1039], "53 times 22, but 53 is one above the largest try"),
        (100202021, [74355669, 26215831, 90183449, 55526422, 87691415, 99736258], "the last of the 4,097 tries fits"),
        (102490747, [79728985, 13406248, 2917561, 64748901, 94480232, 58327030], "one more try would fit better"),
    ],
)
def test_the_order_of_a_length_never_changes(length: int, samples: list[int], reason: str) -> None:
    assert Shuffled(length, seed=1).samples(2, np.arange(6)).tolist() == samples, reason


def test_the_memory_of_a_shuffle_does_not_depend_on_its_length() -> None:
    order = Shuffled(2**40)
    tracemalloc.start()
    order.samples(0, np.arange(256))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000


@pytest.mark.parametrize(
    ("length", "bins", "reason"),
    [(7, 7, "sorted"), (1000, 50, "sorted"), (1031, 64, "a prime, so that some walk"), (10**9, 64, "two long sides")],
)
def test_a_sample_lands_anywhere_with_equal_probability_and_so_does_the_next_one_relative_to_it(
    length: int, bins: int, reason: str
) -> None:
    side = math.isqrt(length - 1) + 1
    positions = np.array([0, 1, side - 1, side, length - 1]) % length
    landed = np.array([permute(positions, length, (seed, 0, 0)) for seed in range(4000)])
    assert z_score(np.bincount(landed[:, 0] * bins // length, minlength=bins), 4000 / bins) < 4, reason
    if length > 7:  # a distance of 0 is a separate bin
        distances = (landed[:, 1:] - landed[:, :1]) % length
        for column in distances.T:
            assert z_score(np.bincount(column * bins // length, minlength=bins), 4000 / bins) < 4, reason


def test_a_shuffle_by_shards_stays_within_a_window_of_shards() -> None:
    data = dealt(5000, 20)
    order = ShardShuffled(data, seed=1, window=4)
    visited = data.column[epoch_of(order)].reshape(5, 1000)  # 250 samples per shard
    assert [len(set(group)) for group in visited] == [4] * 5
    assert len(set(visited.ravel())) == 20
    # Mixed: shards follow one another as in a random order.
    assert (np.diff(visited[0]) == 0).mean() == pytest.approx(1 / 4, abs=0.05)


@pytest.mark.parametrize("shard", [-1, 2**31 - 1])
def test_an_invalid_shard_is_damage(shard: int) -> None:
    column = np.zeros(30, np.int32)
    column[7] = shard
    with pytest.raises(DatasetError, match=f"there is no shard {shard}"):
        ShardShuffled(Shards(column)).samples(0, np.arange(3))


@st.composite
def shared_shards(draw: st.DrawFn) -> tuple[Shards, ShardShuffled, int]:
    """Draw shards of any sizes, an order that divides them among hosts, and the number of hosts."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=15))
    column = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    data = Shards(np.random.default_rng(draw(st.integers(0, 9))).permutation(column))
    hosts, per_host = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    return data, hosts_of(data, hosts * per_host, per_host, draw(st.integers(1, 16)), draw(SEEDS)), hosts


@given(shared=shared_shards(), epoch=st.integers(0, 1000))
def test_hosts_together_have_every_sample_once(shared: tuple[Shards, ShardShuffled, int], epoch: int) -> None:
    data, order, _ = shared
    assert np.array_equal(np.sort(epoch_of(order, epoch)), np.arange(len(data)))


@given(shared=shared_shards(), epoch=st.integers(0, 9))
def test_each_cut_between_hosts_divides_at_most_one_shard(
    shared: tuple[Shards, ShardShuffled, int], epoch: int
) -> None:
    data, order, hosts = shared
    reads = [len(set(data.column[read_by(order, host, epoch)])) for host in range(hosts)]
    assert sum(reads) <= len(set(data.column)) + hosts - 1


@given(shared=shared_shards(), epoch=st.integers(0, 9), at=st.floats(0, 1), choice=st.integers(0, 19))
def test_the_ranks_of_a_host_read_exactly_the_groups_ahead(
    shared: tuple[Shards, ShardShuffled, int], epoch: int, at: float, choice: int
) -> None:
    data, order, hosts = shared
    assert order.ranks_per_host is not None
    host, start = choice % hosts, int(at * len(data))
    rank = host * order.ranks_per_host + choice % order.ranks_per_host
    groups = order.groups_ahead(epoch, 0, rank)
    group_of = {shard: number for number, group in enumerate(groups) for shard in group}
    assert sum(map(len, groups)) == len(group_of), "no shard is in two groups of a host"
    visited = data.column[read_by(order, host, epoch)].tolist()
    assert set(visited) == set(group_of)
    numbers = [group_of[shard] for shard in visited]
    assert numbers == sorted(numbers)
    left = data.column[read_by(order, host, epoch, start)].tolist()
    assert order.groups_ahead(epoch, start, rank) == (groups[group_of[left[0]] :] if left else [])


def test_without_hosts_all_ranks_read_the_groups_ahead() -> None:
    data = dealt(900, 9)
    order = ShardShuffled(data, seed=1, window=4)
    visited = data.column[epoch_of(order, 2)].reshape(3, 300)
    for start, first in [(0, 0), (299, 0), (300, 1), (899, 2), (900, 3)]:
        groups = order.groups_ahead(2, start, rank=start)
        assert [set(group) for group in groups] == [set(group) for group in visited[first:]]


def test_a_shard_without_samples_is_skipped() -> None:
    order = ShardShuffled(Shards(np.repeat(np.array([0, 5, 7], np.int32), 10)), seed=3, window=1)
    assert sorted(epoch_of(order)) == list(range(30))
    assert sorted(order.groups_ahead(0, 0)) == [[0], [5], [7]]


def test_each_epoch_assigns_the_shards_to_hosts_again() -> None:
    data = dealt(6000, 60)
    order = hosts_of(data, ranks=4, ranks_per_host=2)
    parts = [set(data.column[read_by(order, 0, epoch)]) for epoch in range(20)]
    assert [len(part) for part in parts] == [30] * 20
    assert set().union(*parts) == set(range(60))
    kept = [len(part & following) for part, following in pairwise(parts)]
    assert np.mean(kept) == pytest.approx(15, abs=3)


def test_a_shard_is_divided_among_hosts_at_random() -> None:
    """The division does not follow sample numbers, which are sorted by class in a sorted folder."""
    order = hosts_of(dealt(4000, 1), ranks=4, ranks_per_host=1)
    parts = [[read_by(order, host, epoch) for host in range(4)] for epoch in range(10)]
    assert {len(part) for part in chain(*parts)} == {1000}
    scores = [z_score(np.bincount(part // 400, minlength=10), 100.0) for part in chain(*parts)]
    assert -1 < np.mean(scores) < 1  # -0.5: drawn without replacement; the standard error is 0.1
    assert 150 < len(set(parts[0][0]) & set(parts[1][0])) < 350


def test_on_one_host_the_order_is_the_plain_one() -> None:
    data = dealt(5000, 20)
    plain = ShardShuffled(data, 1, 3)
    assert epoch_of(hosts_of(data, 4, 4, window=3), 2).tolist() == epoch_of(plain, 2).tolist()


def test_the_repr_of_an_order_includes_its_hosts() -> None:
    """A state contains a CRC of the repr. The repr of a plain order must not change, or stored states would be
    refused."""
    data = dealt(5000, 20)
    assert repr(ShardShuffled(data, 3, 4)) == "ShardShuffled(seed=3, window=4)"
    by_host = "ShardShuffled(seed=1, window=8, by_host=True, ranks=6, ranks_per_host=2)"
    assert repr(hosts_of(data, 6, 2)) == by_host


def test_hosts_are_those_of_torchrun_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dealt(5000, 20)
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    order = ShardShuffled(data, by_host=True)
    assert (order.ranks, order.ranks_per_host) == (8, 4)
    assert ShardShuffled(data, by_host=True, ranks=16).ranks == 16
    assert ShardShuffled(data).ranks is None
    pickled = pickle.dumps(order)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    again = pickle.loads(pickled)
    assert (again.ranks, again.ranks_per_host) == (8, 4)
    assert epoch_of(again).tolist() == epoch_of(order).tolist()
    with pytest.raises(OptionError, match="by_host: give ranks= and ranks_per_host=, or start with torchrun, which se"):
        ShardShuffled(data, by_host=True)


def class_variance(order: Order, classes: npt.NDArray[np.int64], batch: int) -> float:
    """Return the variance of the number of a batch's samples of a class, relative to that of a global shuffle
    (hypergeometric), over all classes and the batches of five epochs."""
    share = 1 / (classes.max() + 1)
    chance = batch * share * (1 - share) * (len(classes) - batch) / (len(classes) - 1)
    counts = [
        np.bincount(classes[samples], minlength=classes.max() + 1)
        for epoch in range(5)
        for samples in epoch_of(order, epoch).reshape(-1, batch)
    ]
    return float(((np.array(counts) - batch * share) ** 2).mean() / chance)


def test_batches_of_a_folder_sorted_by_class_are_mixed_as_well_by_shards_as_globally() -> None:
    classes = np.repeat(np.arange(10), 2000)
    cut = Shards(np.repeat(np.arange(40, dtype=np.int32), 500))  # consecutive samples, as from other tools
    assert class_variance(Shuffled(20_000), classes, 100) == pytest.approx(1, abs=0.06)
    assert class_variance(ShardShuffled(dealt(20_000, 40), window=4), classes, 100) == pytest.approx(1, abs=0.06)
    assert class_variance(ShardShuffled(cut, window=4), classes, 100) > 10


def test_a_dataset_is_pickled_as_its_path(dataset: Path) -> None:
    order = ShardShuffled(Dataset(dataset), seed=1, window=2)
    before = epoch_of(order)
    pickled = pickle.dumps(order)
    assert len(pickled) < 400
    assert epoch_of(pickle.loads(pickled)).tolist() == before.tolist()
    assert sorted(before) == list(range(len(order)))


def test_samples_are_drawn_in_proportion_to_their_weights() -> None:
    weights = np.array([1, 0, 3, 0.5, 0, 2])
    drawn = np.bincount(epoch_of(Weighted(weights, length=65_000)), minlength=6)
    kept = weights > 0
    assert z_score(drawn[kept], 10_000 * weights[kept]) < 4
    assert not drawn[~kept].any()
    assert (len(Weighted([1, 1, 1])), len(class_balanced([0, 1, 0]))) == (3, 3), "as long as the dataset by default"


@given(weights=st.lists(st.floats(0, allow_infinity=False), min_size=1).filter(any), seed=SEEDS)
def test_only_samples_with_a_weight_are_drawn(weights: list[float], seed: int) -> None:
    drawn = epoch_of(Weighted(weights, seed, length=50))
    assert all(weights[sample] > 0 for sample in drawn)


def test_classes_are_drawn_equally_often_and_so_are_the_samples_of_a_class() -> None:
    targets = np.array([3] * 90 + [-1] * 9 + [8])
    drawn = epoch_of(class_balanced(targets, seed=2, length=90_000))
    counts = np.bincount(drawn, minlength=100)
    assert z_score(np.array([counts[:90].sum(), counts[90:99].sum(), counts[99]]), 30_000) < 4
    assert z_score(counts[:90], 30_000 / 90) < 4
    assert z_score(counts[90:99], 30_000 / 9) < 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sequential(-1), "length: expected a whole number from 0 to 281474976710656, got -1"),
        (lambda: Shuffled(3.0), "length: expected a whole number from 0 to 281474976710656, got 3.0"),  # type: ignore[arg-type]
        (lambda: Shuffled(3, seed=-1), "seed: expected a whole number from 0 to 9223372036854775807, got -1"),
        (lambda: Shuffled(3, seed=2**63), "seed: expected .* got 9223372036854775808"),
        (lambda: ShardShuffled(dealt(3, 1), window=0), "window: expected a whole number from 1 .* got 0"),
        (lambda: ShardShuffled(dealt(3, 1), ranks=2), "ranks: needs by_host=True, got 2 without it"),
        (lambda: ShardShuffled(dealt(3, 1), ranks_per_host=2), "ranks_per_host: needs by_host=True, got 2 without it"),
        (lambda: hosts_of(dealt(3, 1), 0, 1), "ranks: expected a whole number from 1 .* got 0"),
        (lambda: hosts_of(dealt(3, 1), 6, 4), "ranks: expected a multiple of ranks_per_host, 4, got 6"),
        (lambda: Weighted([]), "weights: expected one number per sample, got none"),
        (lambda: Weighted([[1.0]]), r"weights: expected one number .* got an array of shape \(1, 1\) and type float64"),
        (lambda: Weighted(["a"]), "weights: expected one number per sample, got an array of shape .* type <U1"),
        (lambda: Weighted([1, -0.5]), "weights: expected finite numbers of 0 or more, got -0.5 for sample 1"),
        (lambda: Weighted([1, 1, math.nan]), "weights: expected finite .* got nan for sample 2"),
        (lambda: Weighted([math.inf]), "weights: expected finite .* got inf for sample 0"),
        (lambda: Weighted([0, 0]), "weights: expected at least one above 0, got only zeros"),
        (lambda: Weighted([1], length=-1), "length: expected a whole number from 0"),
        (lambda: class_balanced([]), "targets: expected one whole number per sample, got none"),
        (lambda: class_balanced(np.zeros(0, int)), "targets: expected one whole number per sample, got none"),
        (lambda: class_balanced([[1]]), r"targets: .* got an array of shape \(1, 1\) and type int64"),
        (lambda: class_balanced([0.5]), r"targets: .* got an array of shape \(1,\) and type float64"),
        (lambda: Schedule(10, 0), "batch_size: expected a whole number from 1 .* got 0"),
        (lambda: Schedule(10, 1, ranks=0), "ranks: expected a whole number from 1 .* got 0"),
        (lambda: Schedule(10, 1, 2, 2), "rank: expected a whole number from 0 to 1, got 2"),
        (lambda: Schedule(10, 1, last="cut"), "last: expected one of keep, drop, pad, got 'cut'"),  # type: ignore[arg-type]
        (lambda: Schedule(10, 1).batch_count(11), "start: expected a whole number from 0 to 10, got 11"),
        (lambda: Schedule(10, 1).consumed(0, -1), "batches: expected a whole number from 0"),
    ],
)
def test_invalid_arguments_are_refused_by_name_and_value(make: Callable[[], object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def taken(schedule: Schedule, start: int, batches: int) -> list[int]:
    """Return the positions of the first `batches` batches of all ranks."""
    ranks = [replace(schedule, rank=rank) for rank in range(schedule.ranks)]
    return [
        position
        for rank in ranks
        for number in range(min(batches, rank.batch_count(start)))
        for position in rank.batch(start, number).tolist()
    ]


STAGES = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(0, 12)), max_size=4)


@given(length=st.integers(0, 400), stages=STAGES, last_ranks=st.integers(1, 6), last_batch=st.integers(1, 9))
def test_any_interruptions_with_any_ranks_visit_each_position_once(
    length: int, stages: list[tuple[int, int, int]], last_ranks: int, last_batch: int
) -> None:
    start, seen = 0, []
    for ranks, batch_size, batches in stages:
        schedule = Schedule(length, batch_size, ranks)
        seen += taken(schedule, start, batches)
        start = schedule.consumed(start, batches)
        assert sorted(seen) == list(range(start)), "the consumed samples are a prefix of the global order"
    seen += taken(Schedule(length, last_batch, last_ranks), start, length)
    assert sorted(seen) == list(range(length))


SCHEDULES = st.builds(Schedule, st.integers(0, 300), st.integers(1, 9), st.integers(1, 6), last=st.just("keep"))


@given(schedule=SCHEDULES, last=st.sampled_from(["drop", "pad"]), data=st.data())
def test_drop_and_pad_yield_equally_many_full_batches_on_all_ranks(schedule: Schedule, last: Any, data: Any) -> None:
    start = data.draw(st.integers(0, schedule.length))
    ranks = [replace(schedule, rank=rank, last=last) for rank in range(schedule.ranks)]
    counts = {rank.batch_count(start) for rank in ranks}
    assert len(counts) == 1
    batches = counts.pop()
    assert all(len(rank.batch(start, i)) == schedule.batch_size for rank in ranks for i in range(batches))
    together, left = schedule.batch_size * schedule.ranks, schedule.length - start
    positions = taken(ranks[0], start, batches)
    if last == "drop":
        assert sorted(positions) == list(range(start, start + left // together * together))
    else:
        padded = range(start, start + -(-left // together) * together)
        assert sorted(positions) == sorted(position % schedule.length for position in padded)


@given(schedule=SCHEDULES, last=st.sampled_from(["keep", "drop", "pad"]), data=st.data())
def test_the_batches_of_a_rank_are_slices_of_its_positions(schedule: Schedule, last: Any, data: Any) -> None:
    rank = replace(schedule, rank=data.draw(st.integers(0, schedule.ranks - 1)), last=last)
    start = data.draw(st.integers(0, schedule.length))
    batches = [rank.batch(start, i).tolist() for i in range(rank.batch_count(start))]
    assert [*chain(*batches)] == rank.positions(start, 0, 10**9).tolist()
    assert rank.sample_count(start) == sum(map(len, batches))
    assert all(len(batch) == rank.batch_size for batch in batches[:-1])
    assert all(batches)


@given(schedule=SCHEDULES)
def test_with_keep_ranks_differ_by_at_most_a_sample_and_rank_0_has_the_most(schedule: Schedule) -> None:
    counts = [replace(schedule, rank=rank).sample_count(0) for rank in range(schedule.ranks)]
    assert max(counts) - min(counts) <= 1
    assert counts[0] == max(counts)


def test_ranks_take_turns() -> None:
    assert Schedule(20, 3, ranks=2, rank=1).batch(0, 0).tolist() == [1, 3, 5]
    assert Schedule(20, 3, ranks=2, rank=1).batch(6, 1).tolist() == [13, 15, 17]
