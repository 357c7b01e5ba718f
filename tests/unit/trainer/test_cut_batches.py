"""The rows of each update of a step: all of them once, with what belongs to them."""

from dataclasses import replace

import numpy as np
import pytest

from services.trainer.learner.prepared_batch import (
    AdvantageInputs,
    CriticTargets,
    PreparedBatch,
    with_tokens,
)
from tests.unit.trainer.builders import random_batch, random_pairs


def prepared(num_rows: int) -> PreparedBatch:
    """A batch in which every matrix says of which row it is."""
    made = PreparedBatch.from_batch(random_batch(num_rows, seed=3))
    numbers_BT = np.broadcast_to(np.arange(num_rows)[:, None] + 1.0, made.layout.shape)
    own_BT = np.where(made.layout.is_token_BT, numbers_BT, 0.0)
    targets = CriticTargets(old_values_BT=own_BT, returns_BT=own_BT, mask_BT=made.mask_BT)
    return replace(
        made,
        old_logprobs_BT=own_BT,
        advantages_BT=own_BT,
        policy={"logprobs": own_BT},
        corrections_BT=own_BT,
        reference_logprobs_BT=own_BT,
        critic=targets,
    )


@pytest.mark.parametrize(
    ("num_updates", "sizes"), [(1, [11]), (2, [5, 6]), (3, [3, 4, 4]), (11, [1] * 11)]
)
def test_an_update_has_neighbours_and_what_belongs_to_them(
    num_updates: int, sizes: list[int]
) -> None:
    whole = prepared(11)
    parts = whole.cut(num_updates)
    assert [len(part.numbers) for part in parts] == sizes
    assert np.concatenate([part.numbers for part in parts]).tolist() == list(range(11))
    for part in parts:
        rows = part.prepared
        assert [row.position for row in rows.rows] == part.numbers.tolist()
        expected_NT = np.where(rows.layout.is_token_BT, part.numbers[:, None] + 1.0, 0.0)
        assert rows.critic is not None
        for matrix_NT in (
            rows.old_logprobs_BT,
            rows.advantages_BT,
            rows.policy["logprobs"],
            rows.corrections_BT,
            rows.reference_logprobs_BT,
            rows.critic.old_values_BT,
            rows.critic.returns_BT,
        ):
            np.testing.assert_array_equal(matrix_NT, expected_NT)


def test_an_update_is_divided_by_its_own_rows_and_tokens() -> None:
    whole = prepared(7)
    parts = [part.prepared for part in whole.cut(2)]
    totals = [rows.totals(rows.mask_BT, 16) for rows in parts]
    assert [one.num_sequences for one in totals] == [3, 4]
    tokens = [int(whole.mask_BT[:3].sum()), int(whole.mask_BT[3:].sum())]
    assert [one.num_tokens for one in totals] == tokens


def test_one_update_is_the_batch_itself() -> None:
    whole = prepared(4)
    [part] = whole.cut(1)
    assert part.prepared is whole


def test_a_row_alone_is_one_update() -> None:
    assert [part.numbers.tolist() for part in prepared(1).cut(3)] == [[0]]


def test_what_is_not_trained_on_is_zero() -> None:
    """As losses and advantages of users are promised."""
    rows = random_batch(6, seed=3).rows
    made = PreparedBatch.from_batch(random_batch(6, seed=3))
    assert any(not row.mask.all() for row in rows)
    for matrix_BT in (made.old_logprobs_BT, made.rollout_logprobs_BT, made.advantages_BT):
        assert not matrix_BT[~made.mask_BT].any()
        assert matrix_BT[made.mask_BT].all()


def test_pairs_stay_together() -> None:
    parts = PreparedBatch.from_batch(random_pairs(3)).cut(2)
    assert [part.numbers.tolist() for part in parts] == [[0, 1], [2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("num_updates", "expected"),
    [(2, [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10]]), (8, [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7]])],
)
def test_a_task_stays_whole_where_each_update_compares_its_rows(
    num_updates: int, expected: list[list[int]]
) -> None:
    """Rows of four tasks lie among each other; there are no more updates than tasks."""
    whole = prepared(11)
    rows = [
        replace(row, run_reward=replace(row.run_reward, assignment_id=f"task {number % 4}"))
        for number, row in enumerate(whole.rows)
        if row.run_reward is not None
    ]
    inputs = AdvantageInputs(
        rewards_BT=whole.advantages_BT,
        mask_BT=whole.mask_BT,
        old_logprobs_BT=whole.old_logprobs_BT,
    )
    compared = replace(whole, batch=replace(whole.batch, rows=rows), advantage_inputs=inputs)
    parts = compared.cut(num_updates)
    assert [part.numbers.tolist() for part in parts] == expected
    for part in parts:
        assert part.prepared.advantage_inputs is not None
        np.testing.assert_array_equal(
            part.prepared.advantage_inputs.rewards_BT, part.prepared.advantages_BT
        )


def test_an_update_without_a_token_to_train_on_is_none() -> None:
    whole = prepared(6)
    rows_B = np.array([True, True, False, False, True, True])
    masked = replace(whole, mask_BT=whole.mask_BT & rows_B[:, None])
    parts = with_tokens(masked.cut(3), lambda rows: rows.mask_BT)
    assert [part.numbers.tolist() for part in parts] == [[0, 1], [4, 5]]
    nothing = replace(whole, mask_BT=np.zeros_like(whole.mask_BT))
    assert len(with_tokens(nothing.cut(3), lambda rows: rows.mask_BT)) == 1
