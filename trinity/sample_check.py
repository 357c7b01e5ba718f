"""Validation that the buffer applies to every sample; raises ValueError on contradictions."""

import math
from collections.abc import Iterable

import numpy as np

from trinity.api.v1 import experience_pb2
from trinity.types import Experience, Pair, Sequence, VersionSpan


def check_sequence(sequence: Sequence) -> None:
    """Checks one sequence.

    Raises: ValueError when lengths do not fit together or a log-probability is not a number.
    """
    length = len(sequence.tokens)
    if not 1 <= sequence.prompt_length <= length:
        raise ValueError(f"prompt_length {sequence.prompt_length} is outside 1..{length}")
    for name, array in (
        ("action_mask", sequence.action_mask),
        ("rollout_logprobs", sequence.rollout_logprobs),
    ):
        if array.shape != (sequence.response_length,):
            raise ValueError(
                f"{name} has shape {array.shape}, the response {sequence.response_length} tokens"
            )
    logprobs = sequence.rollout_logprobs
    if not np.isfinite(logprobs).all() and not np.isfinite(logprobs[sequence.action_mask]).all():
        raise ValueError("rollout_logprobs holds values that are not finite")


def check_experience(experience: Experience) -> None:
    """Applies the buffer's validation to a sample; producers may call it first.

    Raises: ValueError when the sample contradicts itself.
    """
    if isinstance(experience.body, Pair):
        check_sequence(experience.body.chosen)
        check_sequence(experience.body.rejected)
    else:
        check_sequence(experience.body)
    check_around_body(experience)


def check_around_body(experience: Experience) -> None:
    """Checks everything but the tokens; a pair's version spans are not checked.

    A pair is not rolled out in one piece.

    Raises: ValueError when the sample contradicts itself.
    """
    if experience.reward is not None and not math.isfinite(experience.reward):
        raise ValueError(f"the reward {experience.reward} is not a finite number")
    if experience.eid is not None and "\x00" in experience.eid.suffix:
        raise ValueError("the suffix of the EID holds a null character")
    if isinstance(experience.body, Sequence) and experience.version_spans:
        check_spans(experience.version_spans, experience.body.response_length)


def check_spans(
    spans: Iterable[VersionSpan | experience_pb2.VersionSpan], response_length: int
) -> None:
    """Checks that version spans cover the response without gaps.

    Raises: ValueError.
    """
    end = 0
    for span in spans:
        if span.start != end or span.end < span.start or span.version < 0:
            raise ValueError("version_spans have a gap or overlap")
        end = span.end
    if end != response_length:
        raise ValueError(f"version_spans end at {end}, the response has {response_length} tokens")
