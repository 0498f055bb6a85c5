"""The start of a build as a table: the state of OUT, the user's flags, and the decision."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from presize.builder.resume import Decision, Flag, Published, Unfinished, decide

ANY = "any"

TABLE: list[tuple[str, object, str, str, Decision, str]] = [
    # unfinished, has work, published, flag -> decision, and why
    ("none", False, "none", "", "start afresh", "OUT is empty"),
    ("none", False, "none", "--update", "start afresh", "there is nothing to update: all is built"),
    ("none", False, "some sizes", "", "refuse", "a dataset of fewer sizes is not ours to replace"),
    ("none", False, "some sizes", "--update", "update", "which check_may_update then refuses by name"),
    ("none", False, "all sizes", "", "refuse", "a dataset that differs is not ours to replace"),
    ("none", False, "all sizes", "--update", "update", "this is what --update is for"),
    ("none", False, "this plan", "", "nothing to do", "the same command, again"),
    ("none", False, "this plan", "--update", "update", "with checksums, contents may differ all the same"),
    ("none", False, ANY, "--overwrite", "start afresh", "even what is the same is built again when asked for"),
    ("this build", ANY, ANY, ANY, "resume", "the same command goes on, whatever its flags"),
    ("this update", ANY, "all sizes", "", "resume", "the base is there, and so is what was made of it"),
    ("this update", ANY, "this plan", "", "resume", "the base of an update may have the same plan"),
    ("this update", ANY, "all sizes", "--update", "resume", "the same command goes on"),
    ("this update", ANY, "this plan", "--update", "resume", "the same command goes on"),
    ("this update", ANY, ANY, "--overwrite", "start afresh", "the user no longer wants the base's images"),
    ("this update", ANY, "some sizes", "", "refuse", "half of its base has gone, and what is left is not ours"),
    ("this update", ANY, "some sizes", "--update", "update", "which check_may_update then refuses by name"),
    ("this update", True, "none", "", "refuse", "its base has gone, and finished shards would be lost"),
    ("this update", False, "none", "", "start afresh", "its base has gone, and nothing is lost"),
    ("this update", ANY, "none", "--update", "start afresh", "its base has gone: all is built"),
    ("another build", True, "none", "", "refuse", "finished shards would be lost"),
    ("another build", True, "none", "--update", "refuse", "finished shards would be lost, and no base is there"),
    ("another build", True, "all sizes", "--update", "refuse", "the build was replacing that dataset"),
    ("another build", True, "some sizes", "--update", "refuse", "the build was replacing that dataset"),
    ("another build", True, "this plan", "--update", "refuse", "the build was replacing that dataset"),
    ("another build", False, "none", "", "start afresh", "it had finished nothing"),
    ("another build", False, "none", "--update", "start afresh", "it had finished nothing, and no base is there"),
    ("another build", False, "some sizes", "--update", "update", "which check_may_update then refuses by name"),
    ("another build", False, "all sizes", "--update", "update", "it had finished nothing"),
    ("another build", False, "this plan", "--update", "update", "it had finished nothing"),
    ("another build", ANY, "some sizes", "", "refuse", "a dataset is there"),
    ("another build", ANY, "all sizes", "", "refuse", "a dataset is there"),
    ("another build", True, "this plan", "", "refuse", "the build was replacing the dataset that is asked for now"),
    ("another build", False, "this plan", "", "nothing to do", "it had finished nothing, and the dataset is there"),
    ("another build", ANY, ANY, "--overwrite", "start afresh", "the user allows it"),
    ("another update", True, "none", "", "refuse", "finished shards would be lost"),
    ("another update", False, "none", "", "start afresh", "it had finished nothing"),
    ("another update", ANY, "some sizes", "", "refuse", "a dataset is there"),
    ("another update", ANY, "all sizes", "", "refuse", "a dataset is there"),
    ("another update", True, "this plan", "", "refuse", "an update of the dataset that is asked for was under way"),
    ("another update", False, "this plan", "", "nothing to do", "the source changed back; the base is as it was"),
    ("another update", ANY, "none", "--update", "start afresh", "its base has gone: all is built"),
    ("another update", ANY, "some sizes", "--update", "update", "which check_may_update then refuses by name"),
    ("another update", ANY, "all sizes", "--update", "update", "the source changed again; the base is as it was"),
    ("another update", ANY, "this plan", "--update", "update", "the source changed back; the base is as it was"),
    ("another update", ANY, ANY, "--overwrite", "start afresh", "the user allows it"),
]

SITUATIONS = [
    situation
    for situation in product(get_args(Unfinished), (False, True), get_args(Published), get_args(Flag))
    if situation[:2] != ("none", True)  # an absent build has no work
]


def rows_for(situation: tuple[object, ...]) -> list[int]:
    return [
        number
        for number, row in enumerate(TABLE)
        if all(cell in (ANY, value) for cell, value in zip(row[:4], situation, strict=True))
    ]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: ", ".join(map(str, situation)))
def test_a_build_starts_as_the_table_says(situation: tuple[Unfinished, bool, Published, Flag]) -> None:
    (row,) = rows_for(situation)
    decision, reason = TABLE[row][-2:]
    assert decide(*situation) == decision, reason


def test_every_row_of_the_table_is_reachable() -> None:
    assert {row for situation in SITUATIONS for row in rows_for(situation)} == set(range(len(TABLE)))
