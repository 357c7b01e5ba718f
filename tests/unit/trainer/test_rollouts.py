"""What rollouts bring to an advantage: rewards by token, groups, baselines, ages of weights."""

from dataclasses import replace

import numpy as np
import pytest

from services.trainer.learner.advantages import RolloutRows, group_ids, run_ids, staleness_of
from services.trainer.learner.prepared_batch import PreparedBatch
from services.trainer.types import TrainBatch, TrainRow
from tests.unit.trainer.builders import data_row, random_batch

BATCH = random_batch(6, seed=3, step=8)


def rollouts_of(rows: list[TrainRow]) -> RolloutRows:
    batch = TrainBatch(step=1, rows=rows, metrics={}, replayed=False)
    return RolloutRows.from_prepared(PreparedBatch.from_batch(batch), None)


def test_a_runs_reward_is_its_last_trained_tokens() -> None:
    row = replace(BATCH.rows[0], mask=np.zeros_like(BATCH.rows[0].mask))
    row.mask[1] = True
    assert row.run_reward is not None
    row = replace(row, run_reward=replace(row.run_reward, reward=2.5))
    rollouts = rollouts_of([row])
    rewards_T = rollouts.rewards(rollouts.mask_NT)[0]
    assert rewards_T[1] == 2.5
    assert rewards_T.sum() == 2.5


def test_an_advantage_also_sees_the_scores_before_the_penalty() -> None:
    rollouts = rollouts_of(list(BATCH.rows))
    rewards_NT = rollouts.rewards(rollouts.mask_NT)
    batch = rollouts.token_batch(rollouts.mask_NT, rewards_NT - 0.25 * rollouts.mask_NT, None)
    scores = [row.run_reward.reward for row in BATCH.rows if row.run_reward is not None]
    assert batch.raw_scores_B.tolist() == pytest.approx(scores)
    assert (batch.scores_B < batch.raw_scores_B).all()


def test_a_mask_that_leaves_less_moves_the_reward_to_what_is_left() -> None:
    rollouts = rollouts_of(list(BATCH.rows))
    narrow_NT = rollouts.mask_NT & (rollouts.mask_NT.cumsum(-1) == 1)
    rewards_NT = rollouts.rewards(narrow_NT)
    assert np.array_equal(rewards_NT != 0, narrow_NT & (rewards_NT.sum(-1) != 0)[:, None])
    scores = [row.run_reward.reward for row in BATCH.rows if row.run_reward is not None]
    assert rewards_NT.sum(-1).tolist() == scores


def test_a_row_without_trained_tokens_keeps_its_score() -> None:
    row = replace(BATCH.rows[0], mask=np.zeros_like(BATCH.rows[0].mask))
    assert row.run_reward is not None
    row = replace(row, run_reward=replace(row.run_reward, reward=1.0))
    rollouts = rollouts_of([row])
    assert rollouts.rewards(rollouts.mask_NT).sum() == 1.0


def test_a_row_without_tokens_puts_nothing_into_the_padding() -> None:
    empty = replace(
        BATCH.rows[0],
        tokens=BATCH.rows[0].tokens[:2],
        prompt_length=2,
        mask=np.zeros(0, dtype=np.bool_),
        rollout_logprobs=np.zeros(0, dtype=np.float32),
        advantages=np.zeros(0, dtype=np.float32),
    )
    rollouts = rollouts_of([empty, BATCH.rows[1]])
    assert not rollouts.rewards(rollouts.mask_NT)[0].any()


def test_rewards_of_tokens_take_the_place_of_the_runs() -> None:
    given = np.arange(BATCH.rows[0].response_length, dtype=np.float32)
    rollouts = rollouts_of([replace(BATCH.rows[0], token_rewards=given), BATCH.rows[1]])
    rewards_NT = rollouts.rewards(rollouts.mask_NT)
    assert rewards_NT[0, : len(given)].tolist() == given.tolist()


def test_a_reward_part_that_a_row_does_not_have_is_no_number() -> None:
    def with_parts(row: TrainRow, **parts: float) -> TrainRow:
        assert row.run_reward is not None
        return replace(row, run_reward=replace(row.run_reward, parts=parts))

    rows = [
        with_parts(BATCH.rows[0], speed=1.0, style=2.0),
        with_parts(BATCH.rows[1], style=3.0),
        replace(BATCH.rows[2], run_reward=None),
    ]
    rollouts = rollouts_of(rows)
    batch = rollouts.token_batch(rollouts.mask_NT, rollouts.rewards(rollouts.mask_NT), None)
    assert batch.parts["style"].tolist()[:2] == [2.0, 3.0]
    assert np.isnan(batch.parts["style"]).tolist() == [False, False, True]
    assert np.isnan(batch.parts["speed"]).tolist() == [False, True, True]


def test_runs_of_one_task_are_a_group_and_rows_without_a_run_are_alone() -> None:
    rows = [replace(BATCH.rows[0], run_reward=None), *BATCH.rows, BATCH.rows[5]]
    groups = group_ids(rows).tolist()
    assert groups[1] == groups[2] == groups[3] == groups[4]
    assert groups[5] == groups[6] == groups[7]
    assert len({groups[0], groups[1], groups[5]}) == 3


def test_samples_of_one_run_are_told_from_other_runs_of_its_task() -> None:
    rows = [BATCH.rows[0], BATCH.rows[0], BATCH.rows[1], replace(BATCH.rows[0], run_reward=None)]
    runs = run_ids(rows).tolist()
    assert runs[0] == runs[1]
    assert len(set(runs)) == 3
    rollouts = rollouts_of(rows)
    batch = rollouts.token_batch(rollouts.mask_NT, rollouts.rewards(rollouts.mask_NT), None)
    assert batch.runs_B is not None and batch.runs_B.tolist() == runs


def test_the_weights_that_the_step_starts_from_are_of_age_0() -> None:
    made_by = zip(BATCH.rows[:3], (7, 3, 9), strict=True)
    rows = [
        replace(row, versions=np.full(row.response_length, version, dtype=np.int32))
        for row, version in made_by
    ]
    lags = staleness_of(rows, step=8, width=12)
    assert lags is not None
    for row, found, lag in zip(rows, lags.tolist(), (0, 4, 0), strict=True):
        assert found == [lag] * row.response_length + [0] * (12 - row.response_length)
    assert staleness_of([*rows, replace(BATCH.rows[4], versions=None)], step=8, width=12) is None


def test_training_data_among_rollouts_is_left_out() -> None:
    expert = replace(data_row(6, np.array([3, 4]), np.array([5])), is_expert=True)
    rollouts = rollouts_of([BATCH.rows[0], expert, BATCH.rows[1]])
    assert rollouts.numbers.tolist() == [0, 2]
    assert [row.position for row in rollouts.rows] == [0, 1]
    assert len(rollouts.mask_NT) == 2


@pytest.mark.parametrize("num_with", [0, 3, 6])
def test_what_a_teacher_and_a_baseline_say_counts_when_every_row_has_it(num_with: int) -> None:
    rows = [
        replace(
            row,
            teacher_logprobs=np.full(row.response_length, -0.5, dtype=np.float32),
            reward_baseline=0.25,
        )
        if row.position < num_with
        else row
        for row in BATCH.rows
    ]
    rollouts = rollouts_of(rows)
    mask_NT = rollouts.mask_NT
    batch = rollouts.token_batch(mask_NT, rollouts.rewards(mask_NT), None)
    if num_with < 6:
        assert (batch.teacher_logprobs_BT, batch.baselines_B) == (None, None)
        return
    assert batch.baselines_B is not None
    assert batch.baselines_B.tolist() == [0.25] * 6
    assert batch.teacher_logprobs_BT is not None
    assert set(batch.teacher_logprobs_BT[mask_NT].tolist()) == {-0.5}
