"""EpochSampler: an order in plain DataLoaders, over ranks, epochs and interruptions."""

from __future__ import annotations

import json
import operator
import pickle
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shards import dealt

from presize.datasets.reading.order import Order, Sequential, ShardShuffled, Shuffled, Weighted, class_balanced
from presize.datasets.sampler import EpochSampler, Visit
from presize.errors import OptionError

ENDINGS: dict[str, dict[str, Any]] = {"keep": {"last": "keep"}, "drop": {"drop_last": True}, "pad": {"last": "pad"}}


def test_a_visit_is_its_sample_number() -> None:
    visit = Visit(7, seed=1, epoch=2, key=3)
    assert visit == 7
    assert hash(visit) == hash(7)
    assert {visit: "x"}[7] == "x"
    assert repr(visit) == str(visit) == f"{visit}" == "7"
    assert operator.index(visit) == 7
    assert "abcdefgh"[visit] == "h"
    assert json.dumps([visit]) == "[7]"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_visit_keeps_its_fields_when_pickled(protocol: int) -> None:
    visit = pickle.loads(pickle.dumps(Visit(7, seed=2**63 - 1, epoch=2, key=2**62), protocol))
    assert type(visit) is Visit
    assert (int(visit), visit.seed, visit.epoch, visit.key) == (7, 2**63 - 1, 2, 2**62)


def test_a_sampler_yields_the_order() -> None:
    for order in (
        Sequential(3000, 5),
        Shuffled(3000, 5),
        Weighted(np.ones(3000), 5),
        class_balanced([0, 1, 1], 5, 3000),
    ):
        visits = list(EpochSampler(order))
        positions = np.arange(3000)
        assert visits == order.samples(0, positions).tolist()
        assert [visit.key for visit in visits] == order.keys(0, positions).tolist()
        assert {(visit.seed, visit.epoch) for visit in visits} == {(order.seed, 0)}


def test_an_order_is_not_a_number() -> None:
    with pytest.raises(OptionError, match=r"^order: expected an order, such as Shuffled\(len\(dataset\)\), got 3$"):
        EpochSampler(3)  # type: ignore[arg-type]


def loaded(order: Order, state: dict[str, int], **options: Any) -> EpochSampler:
    sampler = EpochSampler(order, **options)
    sampler.load_state_dict(json.loads(json.dumps(state)))
    return sampler


def test_an_order_without_samples_takes_the_loaded_seed() -> None:
    assert loaded(Shuffled(0), EpochSampler(Shuffled(0, 7)).state_dict()).state_dict()["seed"] == 7


@given(
    length=st.integers(1, 200),
    stages=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=4),
)
def test_an_interrupted_run_visits_the_same_samples_as_a_complete_one(
    length: int, stages: list[tuple[int, int, int]]
) -> None:
    """A stage is (ranks, batch size, number of batches that each rank consumes before it ends)."""
    order = Shuffled(length, 8)
    state = EpochSampler(order).state_dict()
    seen: list[tuple[int, int]] = []
    for ranks, batch_size, batches in stages:
        states = []
        for rank in range(ranks):
            sampler = loaded(order, state, rank=rank, ranks=ranks, batch_size=batch_size, last="keep")
            drawn = list(sampler)  # more than is consumed
            seen += [(visit.epoch, int(visit)) for visit in drawn[: batches * batch_size]]
            states.append(sampler.state_after(batches, batch_size))
        assert all(other == states[0] for other in states)
        state = states[0]
    whole = EpochSampler(order)
    expected = [(visit.epoch, int(visit)) for _ in range(state["epoch"] + 1) for visit in whole]
    assert sorted(seen) == sorted(expected[: state["epoch"] * length + state["consumed"]])


def test_each_iteration_is_another_epoch_even_after_one_left_early() -> None:
    sampler = EpochSampler(Shuffled(20))
    assert sampler.epoch == 0
    iter(sampler), iter(sampler)  # never used
    assert {visit.epoch for visit in sampler} == {0}
    assert next(iter(sampler)).epoch == 1
    assert {visit.epoch for visit in sampler} == {2}
    assert sampler.epoch == 2


def test_set_epoch_takes_effect() -> None:
    sampler = EpochSampler(Shuffled(20))
    for epoch in (5, 5, 0, 1):
        sampler.set_epoch(epoch)
        assert [visit.epoch for visit in sampler] == [epoch] * 20


def test_set_epoch_with_the_loaded_epoch_keeps_its_position() -> None:
    state = EpochSampler(Shuffled(20)).state_dict(consumed=12)
    sampler = loaded(Shuffled(20), state)
    sampler.set_epoch(0)
    assert len(list(sampler)) == 8
    assert len(sampler) == len(list(sampler)) == 20 and sampler.epoch == 1
    sampler.set_epoch(0)
    assert len(list(sampler)) == 20


def test_the_state_at_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    for last, batches in (("keep", 4), ("drop", 3), ("pad", 4)):
        sampler = EpochSampler(Shuffled(20), batch_size=6, **ENDINGS[last])
        sampler.set_epoch(3)
        assert len(list(sampler)) == {"keep": 20, "drop": 18, "pad": 24}[last]
        assert sampler.state_after(batches - 1, 6)["epoch"] == 3
        state = sampler.state_after(batches, 6)
        assert (state["epoch"], state["consumed"]) == (4, 0)


def test_a_rank_is_that_of_the_process_when_an_epoch_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = EpochSampler(Shuffled(20, seed=3))
    alone = list(sampler)
    for name, value in (("is_initialized", True), ("get_world_size", 2), ("get_rank", 1)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    sampler.set_epoch(0)
    assert len(sampler) == 10
    assert list(sampler) == alone[1::2]
    monkeypatch.undo()
    assert sampler.state_after(3, 2)["consumed"] == 12, "of the ranks that took part, although they have ended"


def test_a_state_is_a_few_integers() -> None:
    state = EpochSampler(Shuffled(10**8, 2**60)).state_dict()
    assert set(map(type, state.values())) == {int}
    assert len(state) == 6
    assert state == json.loads(json.dumps(state))


def test_a_state_contains_everything_that_determines_an_order() -> None:
    shards = dealt(20, 4)
    for order, other, message in [
        (Shuffled(20, 1), Shuffled(21, 1), "an epoch has 21 positions, and had 20 when this was saved"),
        (Shuffled(20, 1), Shuffled(20, 2), "seed is 2, and was 1 when this was saved"),
        (Shuffled(20, 1), Sequential(20, 1), "this was saved with another order"),
        (Shuffled(20, 1), ShardShuffled(shards, 1), "this was saved with another order"),
        (Shuffled(20, 1), Weighted(np.ones(30), 1, length=20), "the dataset has 30 samples, and had 20 when"),
        (Weighted([1, 2, 3]), Weighted([3, 2, 1]), "this was saved with another order"),
        (class_balanced([0, 0, 1, 1]), class_balanced([0, 1, 0, 1]), "this was saved with another order"),
        (class_balanced([0, 1, 2, 3]), class_balanced([0, 0, 0, 0]), "this was saved with another order"),
        (ShardShuffled(shards, 1, window=2), ShardShuffled(shards, 1, window=3), "this was saved with another order"),
        (by_host(4, 2), by_host(8, 2), "this was saved with another order"),
        (by_host(4, 2), by_host(4, 1), "this was saved with another order"),
        (by_host(4, 2), ShardShuffled(shards, 1, window=1), "this was saved with another order"),
    ]:
        state = EpochSampler(order).state_dict()
        EpochSampler(pickle.loads(pickle.dumps(order))).load_state_dict(state)
        with pytest.raises(OptionError, match=f"state: {message}"):
            EpochSampler(other).load_state_dict(state)


def by_host(ranks: int, ranks_per_host: int) -> ShardShuffled:
    return ShardShuffled(dealt(20, 4), 1, window=1, by_host=True, ranks=ranks, ranks_per_host=ranks_per_host)


def test_an_order_by_host_resumes_at_the_position_of_all_ranks() -> None:
    state = EpochSampler(by_host(4, 2)).state_dict(consumed=8)
    assert loaded(by_host(4, 2), state, rank=3, ranks=4).start == 8
    with pytest.raises(OptionError, match="state: consumed: expected a multiple of 4, the ranks of the order, got 9"):
        loaded(by_host(4, 2), {**state, "consumed": 9})


def test_an_order_by_host_needs_its_original_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="order: was made for 8 ranks, but there are 4"):
        EpochSampler(by_host(8, 2), rank=0, ranks=4)
    sampler = EpochSampler(by_host(2, 1))  # before the trainer initializes torch.distributed
    with pytest.raises(OptionError, match="order: was made for 2 ranks, but there are 1"):
        sampler.begin()
    for name, value in (("is_initialized", True), ("get_world_size", 2), ("get_rank", 1)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    assert sampler.begin() == (0, 0)
    with pytest.raises(OptionError, match="order: was made for 8 ranks, but there are 2"):
        EpochSampler(by_host(8, 2))


@given(hosts=st.integers(1, 3), ranks_per_host=st.integers(1, 3), batches=st.integers(0, 5), more=st.integers(1, 5))
def test_an_order_by_host_resumes_with_the_remaining_shards_of_each_host(
    hosts: int, ranks_per_host: int, batches: int, more: int
) -> None:
    order, ranks = by_host(hosts * ranks_per_host, ranks_per_host), hosts * ranks_per_host
    samplers = [EpochSampler(order, rank=rank, ranks=ranks, last="keep") for rank in range(ranks)]
    whole = [list(sampler) for sampler in samplers]
    assert sorted(chain(*whole)) == list(range(20))
    state = samplers[0].state_after(batches, batch_size=2)
    for rank in range(ranks):
        resumed = loaded(order, state, rank=rank, ranks=ranks, batch_size=more, last="keep")
        ended = state["epoch"] == 1
        assert list(resumed) == (list(samplers[rank]) if ended else whole[rank][2 * batches :])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"consumed": 21}, "state: consumed: expected a whole number from 0 to 20, got 21"),
        ({"consumed": None}, "state: consumed: .* got None"),
        ({"epoch": -1}, "state: epoch: expected a whole number from 0 to 9223372036854775807, got -1"),
        ({"length": None}, "state: length: expected a whole number, got None"),
        (None, r"state: expected what state_dict\(\) returned, got "),
        ([("seed", 3)], r"state: expected what state_dict\(\) returned, got "),
    ],
)
def test_an_invalid_state_is_refused_and_changes_nothing(changed: Any, message: str) -> None:
    sampler = EpochSampler(Shuffled(20))
    sampler.set_epoch(2)
    with pytest.raises(OptionError, match=message):
        sampler.load_state_dict({**sampler.state_dict(), **changed} if isinstance(changed, dict) else changed)
    assert (sampler.epoch, sampler.start) == (2, 0)


def test_the_state_of_a_model_is_refused() -> None:
    with pytest.raises(OptionError, match=r"state: expected what state_dict\(\) returned, got {'epoch': 2, 'weight'"):
        EpochSampler(Shuffled(20)).load_state_dict({"epoch": 2, "weight": [1.0]})


def test_a_state_in_the_middle_of_an_epoch_needs_the_consumed_samples() -> None:
    sampler = EpochSampler(Shuffled(20))
    next(iter(sampler))
    with pytest.raises(OptionError, match=r"consumed: needed .* use state_after\(batches, batch_size\)"):
        sampler.state_dict()
    with pytest.raises(OptionError, match="consumed: expected a whole number from 0 to 20, got 21"):
        sampler.state_dict(consumed=21)
    assert sampler.state_dict(consumed=7)["consumed"] == 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EpochSampler(Shuffled(9), rank=1), "rank: expected a whole number from 0 to 0, got 1"),
        (lambda: EpochSampler(Shuffled(9)).set_epoch(-1), "epoch: expected .* got -1"),
        (lambda: class_balanced(Shuffled(9)), "targets: expected a list or an array, such as dataset.targets, got Sh"),  # type: ignore[arg-type]
        (lambda: Weighted(Shuffled(9)), "weights: expected a list or an array"),  # type: ignore[arg-type]
        (lambda: EpochSampler(Shuffled(9)).state_after(1, 0), "batch_size: expected .* got 0"),
    ],
)
def test_invalid_arguments_are_refused_by_name_and_value(make: Callable[[], object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


VALUES = st.one_of(
    st.integers(-3, 200),
    st.integers(),
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.integers()),
    st.just(np.array([1, 2])),
)


@given(changes=st.dictionaries(st.sampled_from(["length", "population", "seed", "order", "epoch", "consumed"]), VALUES))
def test_a_changed_state_is_an_error_or_another_position_of_the_same_order(changes: dict[str, Any]) -> None:
    order = Shuffled(100, seed=3)
    saved = EpochSampler(order).state_dict()
    sampler = EpochSampler(order)
    try:
        sampler.load_state_dict(saved | changes)
    except OptionError as error:
        assert "\n" not in str(error) and len(str(error)) < 10_000
        assert sampler.state_dict() == saved, "it is unchanged"
        return
    loaded = {**saved, **changes}
    assert {name: loaded[name] for name in ("length", "population", "seed", "order")} == {
        name: saved[name] for name in ("length", "population", "seed", "order")
    }
    rest = order.samples(loaded["epoch"], np.arange(loaded["consumed"], 100))
    assert list(sampler) == rest.tolist()
