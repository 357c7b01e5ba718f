"""How a batch is shared among ranks and cut into micro-batches."""

from services.trainer.rows import micro_batches, rank_slice
from tests.unit.trainer.builders import random_batch


def test_ranks_share_a_batch_without_gaps_or_overlap() -> None:
    rows = random_batch(11).rows
    shares = [rank_slice(rows, rank, 4) for rank in range(4)]
    assert [row.position for share in shares for row in share] == list(range(11))
    assert {len(share) for share in shares} == {2, 3}


def test_micro_batches_hold_every_row_once_within_the_budget() -> None:
    rows = random_batch(40).rows
    parts = micro_batches(rows, max_tokens=64)
    assert sorted(row.position for part in parts for row in part) == list(range(40))
    assert all(len(part) * max(row.length for row in part) <= 64 for part in parts)


def test_a_row_over_the_budget_is_on_its_own() -> None:
    rows = random_batch(3).rows
    assert [len(part) for part in micro_batches(rows, max_tokens=1)] == [1, 1, 1]


def test_the_cut_does_not_depend_on_the_order_of_rows() -> None:
    rows = list(random_batch(40).rows)
    forwards = micro_batches(rows, max_tokens=64)
    backwards = micro_batches(rows[::-1], max_tokens=64)
    assert [[r.position for r in part] for part in forwards] == [
        [r.position for r in part] for part in backwards
    ]
