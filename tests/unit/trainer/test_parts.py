"""How a batch is shared among ranks and cut into micro-batches."""

import numpy as np
import pytest

from services.trainer.collectives import Ranks
from services.trainer.learner.microbatches import (
    MicroBatchSplitter,
    micro_batches,
    row_units,
    units_of_rank,
)
from services.trainer.learner.prepared_batch import MicroBatch
from tests.unit.trainer.builders import random_batch, random_pairs


def numbers_of(parts: list[MicroBatch]) -> list[int]:
    return sorted(number for part in parts for number in part)


def test_ranks_share_a_batch_without_gaps_or_overlap() -> None:
    units = row_units(random_batch(11).rows)
    shares = [units_of_rank(units, rank, 4) for rank in range(4)]
    assert [number for share in shares for (number,) in share] == list(range(11))
    assert {len(share) for share in shares} == {2, 3}


def test_micro_batches_hold_every_row_once_within_the_budget() -> None:
    rows = random_batch(40).rows
    parts = micro_batches(rows, row_units(rows), max_tokens=64)
    assert numbers_of(parts) == list(range(40))
    assert all(len(part) * max(rows[number].length for number in part) <= 64 for part in parts)


def test_a_row_over_the_budget_is_on_its_own() -> None:
    rows = random_batch(3).rows
    assert [len(part) for part in micro_batches(rows, row_units(rows), max_tokens=1)] == [1, 1, 1]


def test_the_cut_does_not_depend_on_the_order_of_units() -> None:
    rows = random_batch(40).rows
    units = row_units(rows)
    assert micro_batches(rows, units, 64) == micro_batches(rows, units[::-1], 64)


def test_rows_that_must_keep_their_order_do() -> None:
    rows = random_batch(40).rows
    parts = micro_batches(rows, row_units(rows), 64, keep_order=True)
    assert [number for part in parts for number in part] == list(range(40))
    assert all(len(part) * max(rows[number].length for number in part) <= 64 for part in parts)


@pytest.mark.parametrize("max_tokens", [1, 40, 64, 8192])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_pairs_never_part(max_tokens: int, num_ranks: int) -> None:
    rows = random_pairs(9).rows
    for rank in range(num_ranks):
        share = units_of_rank(row_units(rows), rank, num_ranks)
        for part in micro_batches(rows, share, max_tokens):
            sides = [rows[number].side for number in part]
            positions = [rows[number].position for number in part]
            assert sides == ["chosen", "rejected"] * (len(part) // 2)
            assert positions[::2] == positions[1::2]


def test_rows_without_trained_tokens_are_in_no_part_and_one_empty_part_is_left() -> None:
    rows = random_batch(6).rows
    splitter = MicroBatchSplitter(ranks=Ranks(0, 1), max_tokens=64, keep_order=False)
    mask_BT = np.zeros((6, 12), dtype=np.bool_)
    assert list(splitter.parts(rows, mask_BT)) == [((), True)]
    mask_BT[[1, 4], 0] = True
    assert numbers_of([part for part, _ in splitter.parts(rows, mask_BT)]) == [1, 4]


def test_a_pair_stays_whole_when_one_side_has_nothing_to_train_on() -> None:
    rows = random_pairs(2).rows
    splitter = MicroBatchSplitter(ranks=Ranks(0, 1), max_tokens=8192, keep_order=False)
    mask_BT = np.zeros((4, 12), dtype=np.bool_)
    mask_BT[2, 0] = True
    assert list(splitter.parts(rows, mask_BT)) == [([2, 3], True)]
