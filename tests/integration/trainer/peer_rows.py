"""Rows of batches as a buffer would hand them out."""

import json
import uuid

import numpy as np

from trinity.api.v1 import buffer_pb2, experience_pb2
from trinity.data.codec import SampleRef, experience_to_proto
from trinity.types import EID, Experience, SamplingParams, Sequence

TENANT = "default"


def rollout_rows(step: int, num_rows: int, vocabulary: int) -> list[buffer_pb2.BatchRow]:
    """The same rows for the same step, with log-probabilities near a uniform policy's."""
    generator = np.random.default_rng(step)
    return [
        buffer_pb2.BatchRow(
            position=position,
            experience=_experience(step, position, generator, vocabulary),
            advantage=float(generator.normal()),
            weight=1.0,
        )
        for position in range(num_rows)
    ]


def _experience(
    step: int, position: int, generator: np.random.Generator, vocabulary: int
) -> experience_pb2.Experience:
    response = int(generator.integers(2, 7))
    sequence = Sequence(
        tokens=generator.integers(2, vocabulary, 4 + response).astype(np.int32),
        prompt_length=4,
        action_mask=np.ones(response, dtype=np.bool_),
        rollout_logprobs=np.full(response, -np.log(vocabulary), dtype=np.float32),
    )
    experience = Experience(
        body=sequence,
        eid=EID(stage="rft", batch=step, task=position, run=0, suffix=""),
        reward=float(position % 2),
        sampling=SamplingParams(),
    )
    ref = SampleRef(
        tenant=TENANT,
        experiment_id=str(uuid.UUID(int=1)),
        assignment_id=str(uuid.UUID(int=2)),
        taskset="tasks",
        task_index=0,
    )
    return experience_to_proto(experience, ref)


def text_rows(step: int, num_rows: int) -> list[buffer_pb2.BatchRow]:
    """Rows of training data, drawn in order."""
    places = [(step - 1) * num_rows + place for place in range(num_rows)]
    return [
        buffer_pb2.BatchRow(
            position=position,
            row_json=json.dumps({"prompt": f"{place}+1=", "response": str(place + 1)}),
            weight=1.0,
            row_index=place,
        )
        for position, place in enumerate(places)
    ]
