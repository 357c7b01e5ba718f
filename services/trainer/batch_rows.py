"""Rows of a batch as they come from the buffer, turned into rows to train on."""

import json
from typing import Protocol

import numpy as np

from services.trainer.rows import RunReward, TrainRow
from trinity.api.v1 import buffer_pb2, experience_pb2
from trinity.codec import sequence_from_proto, tensor_from_proto
from trinity.errors import RunFailed
from trinity.types import FloatArray, JsonObject

ADVANTAGES = "advantages"
NEVER_TRAINED = frozenset(
    {experience_pb2.FINISH_REASON_ABORT, experience_pb2.FINISH_REASON_PROMPT_TRUNCATED}
)


class RowFormatter(Protocol):
    """Makes tokens of a row of training data."""

    def __call__(
        self, row: JsonObject, *, index: int, position: int, weight: float
    ) -> TrainRow: ...


def train_row(message: buffer_pb2.BatchRow, formatter: RowFormatter | None) -> TrainRow:
    """The row, tokens and all.

    Raises: RunFailed when the row is of a kind that the stage cannot train on.
    """
    if message.WhichOneof("source") == "experience":
        return _from_experience(message)
    if formatter is None:
        raise RunFailed(f"row {message.position} of the batch is training data, not a rollout")
    row = json.loads(message.row_json)
    return formatter(row, index=message.row_index, position=message.position, weight=message.weight)


def _from_experience(message: buffer_pb2.BatchRow) -> TrainRow:
    experience = message.experience
    if experience.WhichOneof("body") != "sequence":
        raise RunFailed(f"experience {experience.id} is a pair: this algorithm takes sequences")
    sequence = sequence_from_proto(experience.sequence)
    mask = sequence.action_mask
    if experience.finish_reason in NEVER_TRAINED:
        mask = np.zeros_like(mask)
    temperature = experience.sampling.temperature
    return TrainRow(
        position=message.position,
        tokens=sequence.tokens,
        prompt_length=sequence.prompt_length,
        mask=mask,
        old_logprobs=sequence.rollout_logprobs,
        advantages=_advantages(message, sequence.response_length),
        weight=message.weight,
        temperature=temperature if temperature > 0 else 1.0,
        run_reward=_run_reward(experience),
    )


def _run_reward(experience: experience_pb2.Experience) -> RunReward | None:
    if not experience.HasField("reward"):
        return None
    return RunReward(
        assignment_id=experience.assignment_id, run=experience.eid.run, reward=experience.reward
    )


def _advantages(message: buffer_pb2.BatchRow, response_length: int) -> FloatArray:
    """Token by token where the pipeline gave them so, else the sequence's for all."""
    if ADVANTAGES not in message.experience.arrays:
        return np.full(response_length, message.advantage, dtype=np.float32)
    data = tensor_from_proto(message.experience.arrays[ADVANTAGES]).data
    if data.shape != (response_length,):
        raise RunFailed(
            f"experience {message.experience.id} has advantages of shape {list(data.shape)} "
            f"for {response_length} response tokens"
        )
    return data.astype(np.float32)
