"""Stored samples as the buffer tells them."""

import numpy as np

from trinity.api.v1 import experience_pb2, query_pb2
from trinity.data.codec import SampleRef, experience_to_proto
from trinity.types import (
    EID,
    Alignment,
    Array,
    Experience,
    Pair,
    SamplingParams,
    Sequence,
    VersionSpan,
)

BATCHED, FILTERED = query_pb2.EXPERIENCE_STATE_BATCHED, query_pb2.EXPERIENCE_STATE_FILTERED
ID = "0f4a1f6e-6a4b-5d0e-9a53-6d6e7e1d3a10"


def sequence(response: str = "[bold]4[/bold]") -> Sequence:
    """Two tokens of a prompt and three after it, of which a tool wrote the middle one."""
    return Sequence(
        tokens=np.array([5, 6, 7, 8, 9], dtype=np.int32),
        prompt_length=2,
        action_mask=np.array([True, False, True]),
        rollout_logprobs=np.array([-0.5, 0.0, -1.25], dtype=np.float32),
        prompt_text="2+2=",
        response_text=response,
    )


def content(
    body: Sequence | Pair | None = None, sampling: SamplingParams | None = None
) -> experience_pb2.Experience:
    """A sample with something in every field."""
    sample = Experience(
        body=body or sequence(),
        eid=EID(stage="rft", batch=3, task=1, run=2, suffix=""),
        reward=0.75,
        reward_parts={"accuracy": 0.5, "format": 0.25},
        version_spans=(
            VersionSpan(start=0, end=1, version=4, incarnation=1),
            VersionSpan(start=1, end=3, version=5, incarnation=2),
        ),
        sampling=sampling or SamplingParams(temperature=0.7, seed=11),
        info={"judge": "fine", "tries": [1, 2]},
        arrays={"token_rewards": Array(np.array([0.0, 0.5], dtype=np.float32), Alignment.SAMPLE)},
        trace_id="ab" * 16,
    )
    ref = SampleRef(tenant="t", experiment_id=ID, assignment_id=ID, taskset="sums", task_index=12)
    return experience_to_proto(sample, ref)


def record(
    *, body: Sequence | Pair | None = None, with_content: bool = True, trained: bool = True
) -> query_pb2.ExperienceRecord:
    """What is known about it."""
    use = query_pb2.BatchUse(
        line=1, step=7, position=3, advantage=0.5, weight=1.0, mean_ratio=1.1, trained_advantage=0.4
    )
    return query_pb2.ExperienceRecord(
        id=ID,
        eid=experience_pb2.Eid(stage="rft", explore_step=3, position=1, run=2),
        assignment_id=ID,
        taskset="sums",
        task_index=12,
        state=query_pb2.EXPERIENCE_STATE_BATCHED
        if trained
        else query_pb2.EXPERIENCE_STATE_FILTERED,
        reason="" if trained else "too old",
        reward=0.75,
        advantage=0.5,
        version_min=4,
        version_max=5,
        num_tokens=5,
        response_length=3,
        finish_reason=experience_pb2.FINISH_REASON_STOP,
        metrics={"accuracy": 0.5},
        unix_millis=1_700_000_000_123,
        uses=[use] if trained else [],
        content=content(body) if with_content else None,
    )
