"""Rewards for samples that wait for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trinity.api.v1 import query_pb2
from trinity.run.places import RunLocation
from trinity.run.stored import open_stored_experiment

AT_ONCE = 1000
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class RewardsGiven:
    """The numbers of rewards that were set now, and that were known before."""

    num_set: int
    num_known: int
    refused: Mapping[str, str]
    """The reasons by the ids of the samples."""


async def give_feedback(
    place: RunLocation,
    rewards: Sequence[query_pb2.Feedback],
    *,
    stage: str | None = None,
    reason: str = "",
) -> RewardsGiven:
    """Gives samples the rewards that they wait for; a reward is not set twice."""
    num_set = num_known = 0
    refused: dict[str, str] = {}
    async with open_stored_experiment(place, to_change=True) as stored:
        for first in range(0, len(rewards), AT_ONCE):
            request = query_pb2.GiveFeedbackRequest(
                key=stored.key(stage), feedback=rewards[first : first + AT_ONCE], reason=reason
            )
            answer: query_pb2.GiveFeedbackResponse = await stored.queries.GiveFeedback(
                request, timeout=SECONDS
            )
            num_set += answer.num_set
            num_known += answer.num_known
            refused |= {feedback.experience_id: feedback.reason for feedback in answer.refused}
    return RewardsGiven(num_set, num_known, refused)
