"""The plan is pure: the assignment of samples to shards, and the contents of the digest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presize.builder.fingerprint import CodecFingerprint
from presize.builder.plan import differences, make_plan
from presize.options import BuildOptions, ImageOptions, Size
from presize.sources.contents import Source
from presize.store.dealing import assign_shards, groups_of, mix, shard_count, shard_limit


@pytest.mark.parametrize(
    ("samples", "shards", "reason"),
    [
        (1, 1, "one image, one file"),
        (512 * 32_768, 512, "all shards are full"),
        (512 * 32_768 + 1, 513, "one more image needs another shard"),
        (2, 2, "the square root, rounded up"),
        (1000, 32, "enough for all cores of a usual machine"),
        (10_000, 100, "a hundred images each"),
        (10_000_000, 512, "half of the 1024 files that may be open by default"),
        (100_000_000, 3052, "no shard above 32,768 samples, so that a lost one is soon rebuilt"),
    ],
)
def test_the_number_of_shards_follows_from_the_number_of_samples(samples: int, shards: int, reason: str) -> None:
    assert shard_count(samples) == shards, reason
    assert shard_count(samples, shard_samples=30) == -(-samples // 30), "an upper bound"


@pytest.mark.parametrize("samples", [1, 100, 50_000, 65_536, 100_000, 1_000_000, 4_000_000])
@pytest.mark.parametrize("companions", [0, 1, 3])
def test_the_shards_of_images_and_companions_can_all_be_open(samples: int, companions: int) -> None:
    shards = shard_count(samples, shard_limit(samples, None, companions))
    files = shards * (1 + companions)
    assert files <= 512
    assert shards == shard_count(samples) or files > 500


@pytest.mark.parametrize(
    ("samples", "companions", "limit"),
    [(65_536, 1, None), (65_537, 1, 257), (1_000_000, 1, 3907), (1_000_000, 3, 7813), (100_000_000, 1, 32_768)],
)
def test_the_number_of_samples_of_a_shard_with_companions_never_changes(
    samples: int, companions: int, limit: int | None
) -> None:
    assert shard_limit(samples, None, companions) == limit, "existing datasets depend on it"
    assert shard_limit(samples, 10, companions) == 10, "the requested number"


def test_the_assignment_to_shards_never_changes() -> None:
    dealt = [[2, 4, 6], [1, 5, 8], [0, 3, 7, 9]]
    assert [shard.tolist() for shard in assign_shards(10, 3)] == dealt, "existing datasets depend on it"


GROUPS = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(
    lambda lengths: np.repeat(range(len(lengths)), lengths)
)


def assert_dealt(dealt: Sequence[np.ndarray], samples: int) -> None:
    """Assert that each sample is in one shard, in dataset order, and that shards are even."""
    assert np.array_equal(np.sort(np.concatenate(dealt)), np.arange(samples))
    assert all((np.diff(shard) > 0).all() for shard in dealt)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


@given(samples=st.integers(1, 3000), shards=st.integers(1, 60))
def test_each_sample_is_in_exactly_one_shard(samples: int, shards: int) -> None:
    assert_dealt(assign_shards(samples, shards), samples)


@given(groups=GROUPS, shards=st.integers(1, 20))
def test_samples_of_a_run_stay_together_except_at_shard_bounds(groups: np.ndarray, shards: int) -> None:
    dealt = assign_shards(len(groups), shards, groups)
    assert_dealt(dealt, len(groups))
    pieces = sum(len(np.unique(groups[shard])) for shard in dealt)
    assert pieces <= groups[-1] + shards  # each bound between two shards cuts at most one run


def test_there_are_no_more_shards_than_runs_unless_requested() -> None:
    groups = np.repeat([0, 1, 2], 1000)
    assert shard_count(3000, None, groups) == 3
    assert shard_count(3000, 500, groups) == 6
    assert shard_count(3000, None, np.arange(3000)) == shard_count(3000)


@pytest.mark.parametrize(
    ("samples", "length", "reason"),
    [
        (100, 1, "a shard has ten samples, which would be one run"),
        (10_000, 6, "16 groups in a shard of a hundred"),
        (57_600, 15, "16 groups in a shard of 240"),
        (1_100_000, 64, "more would not make reading faster"),
    ],
)
def test_groups_of_neighbours_are_small_enough_to_keep_shards_mixed(samples: int, length: int, reason: str) -> None:
    container = np.repeat(np.arange(2), [samples - 5, 5]).astype(np.int32)
    lengths = np.bincount(groups_of(container))
    assert lengths[0] == length, reason
    assert lengths.sum() == samples
    first_of_second = groups_of(container)[samples - 5]
    assert groups_of(container)[samples - 6] == first_of_second - 1, "a run ends with its container"


def source(paths: list[str], nbytes: int = 7, label: int = 0) -> Source:
    rows = pa.table(
        {
            "path": pa.array(paths, pa.large_string()),
            "source_nbytes": pa.array([nbytes] * len(paths), pa.int64()),
            "source_mtime_ns": pa.array([5] * len(paths), pa.int64()),
            "label": pa.array([label] * len(paths), pa.int32()),
        }
    )
    return Source(Path("/raw"), rows, ("a", "b"))


CODECS = CodecFingerprint("some digest", {"simplejpeg": "1", "numpy": "2"})


def plan_digest(samples: Source, options: BuildOptions = BuildOptions(), page_size: int = 4096) -> str:
    return make_plan(samples, options, CODECS, page_size).digest


OTHERS = {
    "the same": plan_digest(source(["a/1", "a/2"])),
    "another file": plan_digest(source(["a/1", "a/3"])),
    "another size on disk": plan_digest(source(["a/1", "a/2"], nbytes=8)),
    "another label": plan_digest(source(["a/1", "a/2"], label=1)),
    "one file more": plan_digest(source(["a/1", "a/2", "a/3"])),
    "another option of images": plan_digest(source(["a/1", "a/2"]), BuildOptions(ImageOptions(quality=80))),
    "two sizes": plan_digest(source(["a/1", "a/2"]), BuildOptions(ImageOptions((Size(256, 256), Size(160, 160))))),
    "other shards": plan_digest(source(["a/1", "a/2"]), BuildOptions(shard_samples=1)),
    "another page size": plan_digest(source(["a/1", "a/2"]), page_size=16384),
}


def test_the_digest_covers_samples_options_and_page_size() -> None:
    assert len(set(OTHERS.values())) == len(OTHERS)
    two = source(["a/1", "a/2"])
    chunks = replace(two, table=pa.concat_tables([two.table.slice(0, 1), two.table.slice(1)]))
    assert plan_digest(chunks) == OTHERS["the same"], "for any chunks"


def test_differences_are_described_in_words() -> None:
    old = make_plan(source(["a/1", "a/2"]), BuildOptions(), CODECS, 4096).identity
    new = make_plan(source(["a/1"]), BuildOptions(ImageOptions(quality=80)), CODECS, 4096).identity
    assert differences(old, new) == ["quality was 90, is 80", "the source has changed (2 files then, 1 now)"]
    assert differences(old, old) == []
    image = old["options"]["image"]
    later = old | {"options": old["options"] | {"image": image | {"dither": True}}}
    assert differences(old, later) == ["dither was the default, is True"]
    assert differences(later, old) == ["dither was True, is the default"]
    versions = {"pillow": "11.3", "numpy": "1"}, {"pillow": "13.0", "numpy": "2"}
    assert differences(old, old | {"codecs": "others"}, versions) == [
        "the build used pillow 11.3 and numpy 1, this machine has pillow 13.0 and numpy 2, "
        "which together give different bytes"
    ]
    for then, words in (
        ({}, "the build used numpy (unknown), this machine has numpy 2, which gives different bytes"),
        (
            {"numpy": "2"},
            "the same library versions give different bytes: the processor or the builds of the libraries differ",
        ),
    ):
        (said,) = differences(old, old | {"codecs": "others"}, (then, {"numpy": "2"}))
        assert said.startswith(words)


def test_versions_are_not_part_of_the_identity() -> None:
    """An upgrade that yields the same bytes must not prevent updates and resuming."""
    plans = [make_plan(source(["a/1"]), BuildOptions(), CODECS._replace(versions={"numpy": v}), 4096) for v in "23"]
    assert plans[0].digest == plans[1].digest
    assert [plan.versions for plan in plans] == [{"numpy": "2"}, {"numpy": "3"}]


def test_the_hash_is_that_of_splitmix64() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # first outputs from seed 0
    assert mix(np.arange(3, dtype=np.uint64)).tolist() == published
