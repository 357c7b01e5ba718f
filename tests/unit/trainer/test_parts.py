"""How a batch is shared among ranks and cut into micro-batches."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from services.trainer.collectives import Ranks
from services.trainer.learner.microbatches import (
    MicroBatchLimits,
    MicroBatchSplitter,
    consecutive_parts,
    micro_batches,
    packed_parts,
    parts_of_rows,
    together,
    work_metrics,
)
from services.trainer.learner.prepared_batch import MicroBatch, row_units, units_of_rank
from services.trainer.types import TrainBatch, TrainRow
from tests.unit.subtests import as_subtests
from tests.unit.trainer.builders import data_row, make_plan, random_batch, random_pairs
from trinity.algorithm.token_advantage.token_batch import BoolMatrix


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


@as_subtests("max_tokens", [1, 40, 64, 8192])
@as_subtests("num_ranks", [1, 2, 3])
def test_pairs_never_part(max_tokens: int, num_ranks: int) -> None:
    rows = random_pairs(9).rows
    for rank in range(num_ranks):
        share = units_of_rank(row_units(rows), rank, num_ranks)
        for part in micro_batches(rows, share, max_tokens):
            sides = [rows[number].side for number in part]
            positions = [rows[number].position for number in part]
            assert sides == ["chosen", "rejected"] * (len(part) // 2)
            assert positions[::2] == positions[1::2]


@pytest.mark.parametrize("packed", [True, False])
def test_rows_without_trained_tokens_are_in_no_part_and_one_empty_part_is_left(
    packed: bool,
) -> None:
    rows = random_batch(6).rows
    mask_BT = np.zeros((6, 12), dtype=np.bool_)
    assert parts_of(rows, mask_BT, packed) == [()]
    mask_BT[[1, 4], 0] = True
    assert numbers_of(parts_of(rows, mask_BT, packed)) == [1, 4]


@pytest.mark.parametrize("packed", [True, False])
def test_a_pair_stays_whole_when_one_side_has_nothing_to_train_on(packed: bool) -> None:
    rows = random_pairs(2).rows
    mask_BT = np.zeros((4, 12), dtype=np.bool_)
    mask_BT[2, 0] = True
    assert [tuple(part) for part in parts_of(rows, mask_BT, packed)] == [(2, 3)]


def splitter_of(
    rank: int = 0, num_ranks: int = 1, *, num_rows: int | None = None, **changes: bool
) -> MicroBatchSplitter:
    settings = {"keep_order": False, "deals_tokens": True, **changes}
    limits = MicroBatchLimits(max_tokens=64, num_rows=num_rows)
    return MicroBatchSplitter(ranks=StubRanks(rank, num_ranks), limits=limits, **settings)


def parts_of(
    rows: Sequence[TrainRow], mask_BT: BoolMatrix, packed: bool = True
) -> list[MicroBatch]:
    return [part for part, _ in splitter_of().parts(rows, mask_BT, packed=packed)]


class StubRanks(Ranks):
    """Ranks whose fellows have as much to do as this one."""

    def all_reduce_max(self, value: float) -> float:
        return value


def everything(rows: Sequence[TrainRow]) -> BoolMatrix:
    return np.ones((len(rows), 12), dtype=np.bool_)


def like_lengths(num: int, size: int) -> list[TrainRow]:
    """Groups of rows of about the same length, log-normal over the groups."""
    generator = np.random.default_rng(0)
    rows = []
    for position in range(num):
        if position % size == 0:
            middle = generator.lognormal(np.log(300), 0.9)
        answer = generator.integers(2, 40, max(1, int(middle * generator.lognormal(0, 0.15))))
        rows.append(data_row(position, np.arange(2, 6), answer))
    return rows


def busiest_over_mean(rows: Sequence[TrainRow], num_ranks: int, **changes: bool) -> float:
    loads = [
        sum(
            rows[number].length
            for part, _ in splitter_of(rank, num_ranks, **changes).parts(
                rows, everything(rows), packed=True
            )
            for number in part
        )
        for rank in range(num_ranks)
    ]
    assert sum(loads) == sum(row.length for row in rows)
    return max(loads) / (sum(loads) / num_ranks)


def test_ranks_get_equal_numbers_of_tokens_and_neighbours_would_not_be_equal() -> None:
    rows = like_lengths(512, 8)
    assert busiest_over_mean(rows, 8) < 1.01
    assert busiest_over_mean(rows, 8, deals_tokens=False) > 1.2


@as_subtests("num_ranks", [1, 2, 3, 8])
@as_subtests("keep_order", [True, False])
def test_every_row_is_in_one_packed_part_of_one_rank_within_the_budget(
    num_ranks: int, keep_order: bool
) -> None:
    rows = random_batch(40).rows
    parts = [
        part
        for rank in range(num_ranks)
        for part, _ in splitter_of(rank, num_ranks, keep_order=keep_order).parts(
            rows, everything(rows), packed=True
        )
    ]
    assert numbers_of(parts) == list(range(40))
    assert all(sum(rows[number].length for number in part) <= 64 for part in parts)


def test_packed_parts_are_few_and_equal() -> None:
    rows = random_batch(40).rows
    total = sum(row.length for row in rows)
    parts = packed_parts(rows, row_units(rows), 64)
    assert len(parts) <= -(-total // 64) + 1
    loads = [sum(rows[number].length for number in part) for part in parts]
    assert max(loads) - min(loads) <= max(row.length for row in rows)


def test_a_packed_row_over_the_budget_is_on_its_own_and_the_others_are_not() -> None:
    rows = [*random_batch(12).rows, data_row(12, np.arange(2, 6), np.arange(2, 90))]
    parts = packed_parts(rows, row_units(rows), 64)
    assert (12,) in parts
    assert numbers_of(parts) == list(range(13))
    assert len(parts) <= 1 + -(-sum(row.length for row in rows[:12]) // 64) + 1


def of_prompts(*prompts: int, num_answered: int = 4) -> list[TrainRow]:
    """Rows of prompts of four tokens, that begin with these."""
    return [
        data_row(number, np.array([first, 2, 3, 4]), np.arange(2, 2 + num_answered))
        for number, first in enumerate(prompts)
    ]


def test_a_micro_batch_may_be_full() -> None:
    rows = of_prompts(5, 5, 5, 5)
    units, two_by_two = row_units(rows), [[0, 1], [2, 3]]
    assert [list(part) for part in micro_batches(rows, units, 16)] == two_by_two
    assert [list(part) for part in consecutive_parts(rows, units, 16)] == two_by_two
    assert [list(part) for part in together(rows, units, 16)] == two_by_two
    assert [list(part) for part in parts_of_rows(units, 2)] == two_by_two
    assert [len(part) for part in packed_parts(rows, units, 16)] == [2, 2]
    assert [len(part) for part in packed_parts(rows, units, 15)] == [1, 1, 1, 1]
    assert [len(part) for part in packed_parts(rows, units, 32)] == [4]


@as_subtests("num_ranks", [1, 2, 3])
@as_subtests("changes", [{}, {"deals_tokens": False}, {"keep_order": True}])
def test_prompts_that_are_not_shared_decide_nothing(
    num_ranks: int, changes: dict[str, bool]
) -> None:
    def dealt(rows: Sequence[TrainRow]) -> list[list[MicroBatch]]:
        splitters = [splitter_of(rank, num_ranks, **changes) for rank in range(num_ranks)]
        found = [each.parts(rows, everything(rows), packed=True) for each in splitters]
        return [[part for part, _ in parts] for parts in found]

    assert dealt(of_prompts(*[5] * 17)) == dealt(of_prompts(*range(17)))


def test_a_prompt_that_is_shared_is_dealt_to_one_rank() -> None:
    rows = of_prompts(*[5, 5, 6, 6, 7, 7, 8, 8] * 2, num_answered=1)
    cut = [
        splitter_of(rank, 2).parts(rows, everything(rows), packed=True, shares_prompts=True)
        for rank in range(2)
    ]
    owned = [{int(rows[number].tokens[0]) for part, _ in parts for number in part} for parts in cut]
    assert [len(prompts) for prompts in owned] == [2, 2]
    assert owned[0].isdisjoint(owned[1])


def test_work_is_counted_by_tokens() -> None:
    """Two answers of 3 and 4 tokens to a prompt of 4, and one of 3 to another one."""
    rows = [*of_prompts(5, num_answered=3), *of_prompts(5), *of_prompts(6, num_answered=3)]
    parts, alone = [(0, 1), (2,)], Ranks(0, 1)
    padded = work_metrics(rows, parts, alone, packed=False)
    assert padded["perf/padding_share"] == pytest.approx(1 - 22 / (2 * 8 + 7))
    assert padded["perf/shared_prompts"] == 0
    packed = work_metrics(rows, parts, alone, packed=True, shares_prompts=True)
    assert packed["perf/shared_prompts"] == pytest.approx(1 - (3 + 4 + 5 + 3 + 4) / 22)
    assert (packed["perf/padding_share"], packed["perf/busiest_rank"]) == (0, 1)
    assert packed["perf/num_micro_batches"] == 2
    sharing = work_metrics(rows, parts, Ranks(0, 1, num_sharing=4), packed=True)
    assert sharing["perf/padding_share"] == pytest.approx(1 - 22 / (16 + 8))
    idle = work_metrics(rows, [()], alone, packed=True, shares_prompts=True)
    assert list(idle.values()) == [1, 0, 0, 1]


def test_an_idle_rank_takes_part_in_every_call() -> None:
    rows = random_batch(1).rows
    parts = list(splitter_of(1, 2).parts(rows, everything(rows), packed=True))
    assert parts == [((), True)]


@pytest.mark.parametrize("make", [random_batch, random_pairs])
def test_micro_batches_of_a_number_of_rows_have_that_number(
    make: Callable[[int], TrainBatch],
) -> None:
    rows = make(10).rows
    found = list(splitter_of(num_rows=4).parts(rows, everything(rows), packed=True))
    assert [len(part) for part, _ in found] == [4] * (len(rows) // 4) + [2] * (len(rows) % 4 > 0)
    assert numbers_of([part for part, _ in found]) == list(range(len(rows)))


def test_limits_are_those_that_the_user_writes() -> None:
    def limits(**trainer: object) -> tuple[MicroBatchLimits, MicroBatchLimits, MicroBatchLimits]:
        plan = make_plan(Path("/models/tiny"), {"algorithm_type": "ppo"}, trainer)
        return (
            MicroBatchLimits.of_policy(plan),
            MicroBatchLimits.without_gradients(plan),
            MicroBatchLimits.of_critic(plan),
        )

    by_tokens = MicroBatchLimits(max_tokens=8192)
    assert limits() == (by_tokens, by_tokens, by_tokens)
    own = {"log_prob_max_token_len_per_gpu": 90, "critic": {"max_token_len_per_gpu": 70}}
    assert [limit.max_tokens for limit in limits(**own)] == [8192, 90, 70]
    rows = {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 4}
    assert [limit.num_rows for limit in limits(**rows)] == [4, 4, 4]
    more = {"log_prob_micro_batch_size_per_gpu": 8, "critic": {"ppo_micro_batch_size_per_gpu": 2}}
    assert [limit.num_rows for limit in limits(**rows, **more)] == [4, 8, 2]


def test_ranks_that_share_rows_have_their_limits_together() -> None:
    sharing = {"ulysses_sequence_parallel_size": 4, "rank_num": 4}
    shared = make_plan(Path("/models/tiny"), {"algorithm_type": "ppo"}, sharing)
    assert MicroBatchLimits.of_policy(shared).max_tokens == 4 * 8192
