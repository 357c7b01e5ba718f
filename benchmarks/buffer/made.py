"""Experiences as an engine makes them: two numbers a token, its id and its log-probability."""

from collections.abc import Iterator

import numpy as np

from services.explorer.types import Assignment, Attempt, AttemptResult
from trinity.types import EID, Experience, SamplingParams, Sequence, StageKey, VersionSpan

BYTES_A_TOKEN = 8
"""A token id of four bytes and its log-probability."""


def num_tokens_of(num_bytes: int) -> int:
    """Response tokens of an experience of this size."""
    return num_bytes // BYTES_A_TOKEN


def outcomes_of(key: StageKey, assignment: Assignment, num_tokens: int) -> Iterator[AttemptResult]:
    """A complete run for each that the assignment asks for, with other numbers in each."""
    for run in assignment.runs:
        attempt = Attempt(key=key, assignment=assignment, run=run, number=assignment.first_attempt)
        eid = EID(
            stage=key.stage,
            explore_step=assignment.explore_step,
            position=assignment.position,
            run=run,
            attempt=attempt.number,
        )
        yield AttemptResult(
            attempt=attempt,
            experiences=[_experience(eid, num_tokens, reward=float(run % 2))],
            duration_seconds=0.5,
        )


def _experience(eid: EID, num_tokens: int, reward: float) -> Experience:
    chance = np.random.default_rng([eid.explore_step, eid.position, eid.run])
    return Experience(
        body=Sequence(
            tokens=chance.integers(0, 150_000, 1 + num_tokens, dtype=np.int32),
            prompt_length=1,
            action_mask=np.ones(num_tokens, dtype=np.bool_),
            rollout_logprobs=-chance.random(num_tokens, dtype=np.float32),
        ),
        eid=eid,
        reward=reward,
        reward_parts={"accuracy": reward},
        version_spans=(VersionSpan(start=0, end=num_tokens, version=0, incarnation=1),),
        sampling=SamplingParams(seed=eid.position),
    )
