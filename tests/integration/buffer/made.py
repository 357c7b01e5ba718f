"""Made-up results of runs."""

from dataclasses import dataclass, field

import numpy as np

from trinity.api.v1 import buffer_pb2 as pb
from trinity.types import (
    EID,
    BlobRef,
    Experience,
    FinishReason,
    JsonObject,
    SamplingParams,
    VersionSpan,
)
from trinity.types import Sequence as TokenSequence


@dataclass(slots=True)
class Made:
    """What a made-up run gives."""

    reward: float | None = 1.0
    finish_reason: FinishReason = FinishReason.STOP
    num_tokens: int = 3
    metrics: dict[str, float] = field(default_factory=dict)
    info: JsonObject = field(default_factory=dict)
    logprob: float = -0.5
    blobs: tuple[BlobRef, ...] = ()
    version: int | None = None
    """Of the weights that made it; else those that were asked for."""
    then: int | None = None
    """Of other weights that made its last token."""


def make_experience(made: Made, assignment: pb.Assignment, eid: EID) -> Experience:
    """A sample whose prompt and response say where it comes from."""
    length = made.num_tokens
    version = assignment.required_version if made.version is None else made.version
    first = length if made.then is None else length - 1
    incarnation = assignment.required_incarnation
    spans = [VersionSpan(start=0, end=first, version=version, incarnation=incarnation)]
    if made.then is not None:
        last = VersionSpan(start=first, end=length, version=made.then, incarnation=incarnation)
        spans.append(last)
    return Experience(
        body=TokenSequence(
            tokens=np.arange(2 + length, dtype=np.int32),
            prompt_length=2,
            action_mask=np.ones(length, dtype=np.bool_),
            rollout_logprobs=np.full(length, made.logprob, dtype=np.float32),
            prompt_text=assignment.task_json,
            response_text=f"{eid.batch}/{eid.task}/{eid.run}",
        ),
        eid=eid,
        reward=made.reward,
        reward_parts={} if made.reward is None else {"accuracy": made.reward},
        finish_reason=made.finish_reason,
        version_spans=tuple(spans),
        sampling=SamplingParams(),
        metrics=made.metrics,
        info=made.info,
        blobs=made.blobs,
    )
