"""Rows of the wire become rows to train on; losses on labelled ones are those of a loop."""

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from services.trainer.batch_rows import RowFormatter, RowReader, with_mismatched
from services.trainer.types import TrainBatch, TrainRow, batch_metrics
from tests.unit.subtests import as_subtests
from tests.unit.trainer.builders import PAIR, data_row
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.policy_loss.kto import kto
from trinity.algorithm.token_selection.kto import select_kto
from trinity.algorithm.token_selection.selection_batch import SelectionBatch
from trinity.api.v1 import buffer_pb2, experience_pb2
from trinity.data.codec import SampleRef, experience_to_proto
from trinity.errors import RunFailed, UserError
from trinity.types import (
    EID,
    Alignment,
    Array,
    ArrayData,
    Experience,
    FinishReason,
    JsonObject,
    SamplingParams,
    Sequence,
    VersionSpan,
)

REF = SampleRef(tenant="t", experiment_id="e", assignment_id="a", taskset="tasks", task_index=0)
READER = RowReader(formatter=None, mixed_with_rollouts=False)
TEACHER = np.array([-0.1, -0.2, -0.3], dtype=np.float32)
BETA, GOOD, BAD = 0.3, 1.5, 0.5


def message_of(
    *,
    position: int = 0,
    arrays: dict[str, Array] | None = None,
    finish_reason: FinishReason = FinishReason.STOP,
) -> buffer_pb2.BatchRow:
    sequence = Sequence(
        tokens=np.arange(5, dtype=np.int32),
        prompt_length=2,
        action_mask=np.array([True, False, True]),
        rollout_logprobs=np.full(3, -1.0, dtype=np.float32),
    )
    experience = Experience(
        body=sequence,
        eid=EID(stage="rft", batch=1, task=position, run=2, suffix=""),
        reward=0.5,
        reward_parts={"accuracy": 0.25, "format": 0.25},
        finish_reason=finish_reason,
        sampling=SamplingParams(),
        version_spans=(
            VersionSpan(start=0, end=2, version=7, incarnation=1),
            VersionSpan(start=2, end=3, version=4, incarnation=1),
        ),
        arrays=arrays or {},
    )
    return buffer_pb2.BatchRow(
        position=position,
        experience=experience_to_proto(experience, REF),
        advantage=1.5,
        weight=1.0,
    )


def only_row(message: buffer_pb2.BatchRow) -> TrainRow:
    (row,) = READER.read([message])
    return row


def test_rows_are_in_order_of_position() -> None:
    rows = READER.read([message_of(position=place) for place in (2, 0, 1)])
    assert [row.position for row in rows] == [0, 1, 2]


def test_the_parts_of_a_reward_come_with_it() -> None:
    reward = only_row(message_of()).run_reward
    assert reward is not None
    assert reward.parts == {"accuracy": 0.25, "format": 0.25}


def test_the_mask_and_the_temperature_are_the_samples() -> None:
    message = message_of()
    message.experience.sampling.temperature = 0.7
    row = only_row(message)
    assert row.mask.tolist() == [True, False, True]
    assert row.temperature == pytest.approx(0.7)
    message.experience.sampling.temperature = 0.0
    assert only_row(message).temperature == 1.0


def test_a_rows_age_is_that_of_its_oldest_token() -> None:
    assert only_row(message_of()).oldest_version == 4


def test_further_arrays_reach_the_row() -> None:
    row = only_row(
        message_of(
            arrays={
                "token_rewards": Array(np.array([0, 0, 2.0]), Alignment.RESPONSE),
                "teacher_logprobs": Array(TEACHER, Alignment.RESPONSE),
                "reward_baseline": Array(np.array(0.25), Alignment.SEQUENCE),
                "unknown": Array(np.zeros(9)),
            }
        )
    )
    assert row.token_rewards is not None
    assert row.token_rewards.tolist() == [0, 0, 2.0]
    assert row.teacher_logprobs is not None
    assert row.teacher_logprobs.tolist() == TEACHER.tolist()
    assert row.reward_baseline == 0.25
    assert row.advantages.tolist() == [1.5, 1.5, 1.5]


def test_a_row_without_further_arrays_has_none() -> None:
    row = only_row(message_of())
    assert (row.token_rewards, row.teacher_logprobs, row.reward_baseline) == (None, None, None)


@pytest.mark.parametrize("name", ["advantages", "token_rewards", "teacher_logprobs"])
def test_an_array_of_another_length_is_refused(name: str) -> None:
    with pytest.raises(RunFailed, match=rf"{name} of shape \[4\] for 3 response tokens"):
        only_row(message_of(arrays={name: Array(np.zeros(4, dtype=np.float32))}))


def test_experts_of_the_response_reach_the_row_in_one_type() -> None:
    routes = np.array([[[1, 2]], [[0, 0]], [[32766, 3]]], dtype=np.int32)
    row = only_row(message_of(arrays={"routed_experts": Array(routes, Alignment.RESPONSE)}))
    assert row.routed_experts is not None
    assert row.routed_experts.dtype == np.int16
    assert row.routed_experts.tolist() == routes.tolist()
    message = message_of(arrays={"routed_experts": Array(routes, Alignment.RESPONSE)})
    reader = RowReader(formatter=None, mixed_with_rollouts=False, replays_experts=False)
    [alone] = reader.read([message])
    assert alone.routed_experts is None, "the stage does not replay what another one recorded"


@as_subtests(
    "routes",
    [
        np.ones((2, 1, 2), np.uint8),
        np.ones((3, 2), np.uint8),
        np.ones((3, 1, 2), np.float32),
        np.full((3, 1, 2), -1, np.int16),
        np.full((3, 1, 2), 32767, np.int16),
        np.array([[[1, -1]], [[0, 2]], [[3, 4]]], np.int16),
        np.array([[[1, 32767]], [[0, 2]], [[3, 4]]], np.int16),
        np.ones((3, 0, 2), np.uint8),
    ],
)
def test_experts_that_do_not_fit_the_response_are_refused(routes: ArrayData) -> None:
    with pytest.raises(RunFailed, match="numbers of experts plus 1"):
        only_row(message_of(arrays={"routed_experts": Array(routes, Alignment.RESPONSE)}))


def test_a_baseline_of_several_numbers_is_refused() -> None:
    with pytest.raises(RunFailed, match="reward_baseline"):
        only_row(message_of(arrays={"reward_baseline": Array(np.zeros(2))}))


def test_an_aborted_answer_is_not_trained_on() -> None:
    assert not only_row(message_of(finish_reason=FinishReason.ABORT)).mask.any()


def formatter_of(num_rows: int) -> RowFormatter:
    def made(row: JsonObject, *, index: int, position: int, weight: float) -> list[TrainRow]:
        del row, index, weight
        sides = PAIR if num_rows == 2 else (None,)
        return [data_row(position, np.array([3]), np.array([4]), side) for side in sides]

    return made


def data_message(position: int) -> buffer_pb2.BatchRow:
    return buffer_pb2.BatchRow(position=position, row_json=json.dumps({"prompt": "1"}), weight=1.0)


def test_a_preference_is_two_rows_of_one_position() -> None:
    reader = RowReader(formatter=formatter_of(2), mixed_with_rollouts=False)
    rows = reader.read([data_message(1), data_message(0)])
    assert [(row.position, row.side) for row in rows] == [
        (0, "chosen"),
        (0, "rejected"),
        (1, "chosen"),
        (1, "rejected"),
    ]


@pytest.mark.parametrize("among_rollouts", [True, False])
def test_training_data_among_rollouts_is_an_experts(among_rollouts: bool) -> None:
    reader = RowReader(formatter=formatter_of(1), mixed_with_rollouts=among_rollouts)
    rows = reader.read([message_of(position=0), data_message(1)])
    assert [row.is_expert for row in rows] == [False, among_rollouts]


def test_training_data_that_nobody_can_format_is_refused() -> None:
    with pytest.raises(RunFailed, match="row 3 of the batch is training data"):
        READER.read([data_message(3)])


def refuses_position_1(
    row: JsonObject, *, index: int, position: int, weight: float
) -> list[TrainRow]:
    if position == 1:
        raise UserError("the chat template refuses it")
    return list(formatter_of(1)(row, index=index, position=position, weight=weight))


def test_a_bad_row_of_data_ends_the_run_or_leaves_its_position_empty(
    caplog: pytest.LogCaptureFixture,
) -> None:
    messages = [data_message(place) for place in range(3)]
    reader = RowReader(formatter=refuses_position_1, mixed_with_rollouts=False)
    with pytest.raises(UserError, match="the chat template refuses it"):
        reader.read(messages)
    assert not caplog.records
    for _ in range(2):  # a replay leaves out the same
        rows = replace(reader, skips_bad_rows=True).read(messages)
        assert [row.position for row in rows] == [0, 2]
    assert caplog.records[0].__dict__["position"] == 1


def test_a_pair_of_rollouts_is_refused() -> None:
    message = message_of()
    sequence = experience_pb2.Sequence()
    sequence.CopyFrom(message.experience.sequence)
    message.experience.pair.chosen.CopyFrom(sequence)
    with pytest.raises(RunFailed, match="is a pair"):
        only_row(message)


def random_inputs(seed: int, shift: float) -> tuple[SelectionBatch, PolicyInputs, list[bool]]:
    """Five answers, each followed by its prompt with another answer; rows of 1 to 4 tokens."""
    generator = np.random.default_rng(seed)
    mask_BT = np.arange(4) < generator.integers(1, 5, 10)[:, None]
    logprobs_BT = np.where(mask_BT, -generator.exponential(1.0, (10, 4)), 0.0)
    reference_BT = np.where(mask_BT, logprobs_BT - generator.normal(shift, 0.5, (10, 4)), 0.0)
    labels = [bool(each) for each in generator.integers(0, 2, 5)]
    signs_B = np.zeros(10)
    signs_B[::2] = np.where(labels, 1.0, -1.0)
    advantages_BT = np.where(mask_BT, signs_B[:, None], 0.0)
    batch = SelectionBatch(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=logprobs_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
        lots_BT=np.zeros((10, 4)),
        reference_logprobs_BT=reference_BT,
    )
    inputs = PolicyInputs(
        logprobs_BT=torch.tensor(logprobs_BT, requires_grad=True),
        old_logprobs_BT=torch.tensor(logprobs_BT),
        advantages_BT=torch.tensor(advantages_BT),
        mask_BT=torch.tensor(mask_BT),
        reference_logprobs_BT=torch.tensor(reference_BT),
        chosen_BT=torch.tensor(select_kto(batch)),
    )
    return batch, inputs, labels


def slow_shift(batch: SelectionBatch) -> float:
    """The mean over mismatched rows, clamped as a whole: TRL clamps the mean, too."""
    assert batch.reference_logprobs_BT is not None
    sums = []
    for row in range(1, len(batch.mask_BT), 2):
        total = 0.0
        for place in range(batch.mask_BT.shape[1]):
            if batch.mask_BT[row, place]:
                total += batch.logprobs_BT[row, place] - batch.reference_logprobs_BT[row, place]
        sums.append(total)
    return max(0.0, sum(sums) / len(sums))


@as_subtests("shift", [0.7, -0.7])
@as_subtests("seed", range(5))
def test_the_loss_and_its_gradient_are_those_of_a_loop(seed: int, shift: float) -> None:
    batch, inputs, labels = random_inputs(seed, shift)
    z = slow_shift(batch)
    assert (z > 0) == (shift > 0)
    found = kto(inputs, beta=BETA, desirable_weight=GOOD, undesirable_weight=BAD)
    assert found.loss_B is not None
    found.loss_B.mean().backward()
    gradient_BT = inputs.logprobs_BT.grad
    assert gradient_BT is not None and batch.reference_logprobs_BT is not None
    for number, label in enumerate(labels):
        row = 2 * number
        gaps_T = batch.logprobs_BT[row] - batch.reference_logprobs_BT[row]
        gap = float(gaps_T[batch.mask_BT[row]].sum())
        weight, sign = (GOOD, 1.0) if label else (BAD, -1.0)
        q = 1 / (1 + math.exp(-sign * BETA * (gap - z)))
        assert found.loss_B[row].item() == pytest.approx(weight * (1 - q), rel=1e-12)
        assert found.loss_B[row + 1].item() == found.loss_B[row].item()
        slope = -weight * sign * BETA * q * (1 - q) / len(labels)
        expected_T = np.where(batch.mask_BT[row], slope, 0.0)
        assert gradient_BT[row].numpy() == pytest.approx(expected_T, rel=1e-12)
        assert not gradient_BT[row + 1].any(), "the reference point has no gradient"
    assert found.metrics["kto_divergence"].numpy() == pytest.approx([z] * 10)


def test_a_row_without_an_answer_does_not_pull_the_reference_point() -> None:
    batch, _, _ = random_inputs(0, 0.7)
    whole = select_kto(batch).max()
    mask_BT = np.vstack([batch.mask_BT, np.zeros((2, 4), dtype=bool)])
    more = [np.vstack([part, np.ones((2, 4))]) for part in (batch.logprobs_BT, batch.lots_BT)]
    assert batch.reference_logprobs_BT is not None
    with_empty = replace(
        batch,
        mask_BT=mask_BT,
        logprobs_BT=more[0],
        reference_logprobs_BT=np.vstack([batch.reference_logprobs_BT, np.zeros((2, 4))]),
    )
    assert select_kto(with_empty).max() == whole


@pytest.mark.parametrize("name", ["beta", "desirable_weight", "undesirable_weight"])
def test_factors_are_above_0(name: str) -> None:
    _, inputs, _ = random_inputs(0, 0.7)
    with pytest.raises(UserError, match=f"`{name}` of the policy loss kto is 0.0"):
        kto(inputs, **{name: 0.0})


def test_each_prompt_gets_the_answer_of_the_row_before() -> None:
    prompts, answers = ([2, 3], [4], [5, 6, 7]), ([10, 11], [12], [13, 14, 15])
    rows = [
        replace(data_row(place, np.array(prompt), np.array(answer)), weight=float(place + 1))
        for place, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    made = with_mismatched(rows, max_length=5)
    assert [row.side for row in made] == ["chosen", "rejected"] * 3
    assert [row.tokens.tolist() for row in made[::2]] == [row.tokens.tolist() for row in rows]
    assert [row.tokens.tolist() for row in made[1::2]] == [
        [2, 3, 13, 14, 15],
        [4, 10, 11],
        [5, 6, 7, 12],
    ]
    assert [row.response_length for row in made[1::2]] == [3, 2, 1]
    assert all(not row.advantages.any() and row.mask.all() for row in made[1::2])
    assert [row.position for row in made] == [0, 0, 1, 1, 2, 2]
    cut = with_mismatched(rows, max_length=4)
    assert cut[1].tokens.tolist() == [2, 3, 13, 14] and len(cut[1].mask) == 2


def spanned(lengths: list[int], versions: list[int], mask: list[bool]) -> buffer_pb2.BatchRow:
    """A sample whose response changed weights after these numbers of tokens."""
    sequence = Sequence(
        tokens=np.arange(2 + sum(lengths), dtype=np.int32),
        prompt_length=2,
        action_mask=np.array(mask, dtype=np.bool_),
        rollout_logprobs=np.full(sum(lengths), -1.0, dtype=np.float32),
    )
    ends = np.cumsum(lengths).tolist()
    experience = Experience(
        body=sequence,
        eid=EID(stage="rft", batch=1, task=0, run=0, suffix=""),
        reward=0.5,
        sampling=SamplingParams(),
        version_spans=tuple(
            VersionSpan(start=end - length, end=end, version=version, incarnation=1)
            for length, end, version in zip(lengths, ends, versions, strict=True)
        ),
    )
    message = experience_to_proto(experience, REF)
    return buffer_pb2.BatchRow(position=0, experience=message, advantage=1.0, weight=1.0)


def test_tokens_of_older_weights_are_left_out_one_by_one() -> None:
    """As a loop over spans and tokens says."""
    numbers = random.Random(5)
    for _ in range(200):
        lengths = [numbers.randrange(1, 4) for _ in range(numbers.randrange(1, 5))]
        versions = sorted(numbers.sample(range(1, 10), len(lengths)))
        mask = [numbers.random() < 0.8 for _ in range(sum(lengths))]
        oldest = numbers.randrange(10)
        expected, num_stale, ages, place = [], 0, [], 0
        for length, version in zip(lengths, versions, strict=True):
            for _ in range(length):
                expected.append(mask[place] and version >= oldest)
                num_stale += mask[place] and version < oldest
                if expected[-1]:
                    ages.append(11 - version)
                place += 1
        [row] = READER.read([spanned(lengths, versions, mask)], oldest_version=oldest)
        assert row.mask.tolist() == expected
        assert row.num_stale_tokens == num_stale
        figures = batch_metrics(
            TrainBatch(step=12, rows=[row], metrics={}, replayed=False),
            max_prompt_tokens=9,
            max_response_tokens=9,
        )
        if not ages:
            assert "staleness/token/mean" not in figures
            continue
        assert figures["staleness/token/mean"] == pytest.approx(sum(ages) / len(ages))
        assert figures["staleness/token/max"] == figures["staleness/sample/mean"] == max(ages)
        assert figures["staleness/num_mixed_samples"] == (min(ages) < max(ages))
        assert figures["staleness/num_masked_tokens"] == num_stale
