"""Rows of the wire become rows to train on, with all that came along."""

import json
from dataclasses import replace

import numpy as np
import pytest

from services.trainer.batch_rows import RowFormatter, RowReader
from services.trainer.types import TrainRow
from tests.unit.subtests import as_subtests
from tests.unit.trainer.builders import PAIR, data_row
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
