"""Changes of experiences that a person makes in Studio: rewards, exclusion, inclusion, deletion.

Each change is confirmed first: a dry run describes its effect. Studio refuses both unless it was
started with `--allow-changes`; the services check the visitor's rights.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.errors import UserError
from trinity.run.output import pluralize
from trinity.runtime.rpc.errors import answer_of
from trinity.studio.connection import OpenRun

CHANGE_SECONDS = 600.0
"""A change of many experiences takes the buffer a while."""
MAX_REASON_CHARS = 1_000
NOT_ALLOWED = (
    "This Studio changes nothing: start it with `trinity studio --allow-changes` to change "
    "experiences."
)


class Act(StrEnum):
    """Something that can be done to experiences."""

    REWARD = "Give the reward that it waits for"
    EXCLUDE = "Exclude from training"
    INCLUDE = "Include again"
    DELETE = "Delete the content"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A change that a person asks for."""

    act: Act
    filter: query_pb2.ExperienceFilter
    """Which experiences; a reward is for the one whose id stands here."""
    reason: str
    reward: float | None = None


def wish_of(
    act: Act, wanted: query_pb2.ExperienceFilter, reason: str, reward: float | None
) -> Wish:
    """Returns the wish of a filled-in form.

    Raises: UserError naming the missing input.
    """
    why = " ".join(reason.split())[:MAX_REASON_CHARS]
    if not why:
        raise UserError("Say why: the reason is kept with the experiences.")
    if act is not Act.REWARD:
        return Wish(act=act, filter=wanted, reason=why)
    if reward is None or not math.isfinite(reward):
        raise UserError("Give the reward as a number.")
    if len(wanted.experience_ids) != 1:
        raise UserError("A reward is given to one experience: choose one.")
    return Wish(act=act, filter=wanted, reason=why, reward=reward)


async def make_change(
    opened: OpenRun,
    key: buffer_pb2.StageKey,
    wish: Wish,
    *,
    is_dry_run: bool,
    allows_changes: bool,
) -> str:
    """Makes a change, or only finds out its effect; returns one sentence about it.

    Raises: UserError if Studio may not make changes; TrinityError.
    """
    if not allows_changes:
        raise UserError(NOT_ALLOWED)
    match wish.act:
        case Act.REWARD if is_dry_run:
            return f"1 experience gets the reward {wish.reward:g}, if it still waits for one."
        case Act.REWARD:
            return await _reward(opened, key, wish)
        case Act.EXCLUDE:
            return await _exclude(opened, key, wish, is_dry_run)
        case Act.INCLUDE:
            return await _include(opened, key, wish, is_dry_run)
        case Act.DELETE:
            return await _delete(opened, key, wish, is_dry_run)


async def _reward(opened: OpenRun, key: buffer_pb2.StageKey, wish: Wish) -> str:
    assert wish.reward is not None, "a wish for a reward has one"
    [experience_id] = wish.filter.experience_ids
    feedback = query_pb2.Feedback(experience_id=experience_id, reward=wish.reward)
    answer: query_pb2.GiveFeedbackResponse = await answer_of(
        opened.queries.GiveFeedback(
            query_pb2.GiveFeedbackRequest(key=key, feedback=[feedback], reason=wish.reason),
            timeout=CHANGE_SECONDS,
        )
    )
    if answer.refused:
        raise UserError(f"The reward is refused: {answer.refused[0].reason}.")
    if answer.num_known:
        return "It had this reward already."
    return f"1 experience has the reward {wish.reward:g} now."


async def _exclude(opened: OpenRun, key: buffer_pb2.StageKey, wish: Wish, is_dry_run: bool) -> str:
    request = query_pb2.ExcludeExperiencesRequest(
        key=key, filter=wish.filter, reason=wish.reason, dry_run=is_dry_run
    )
    done: query_pb2.ExcludeExperiencesResponse = await answer_of(
        opened.queries.ExcludeExperiences(request, timeout=CHANGE_SECONDS)
    )
    what = pluralize(done.num_excluded, "experience")
    said = f"{what} {_verb(is_dry_run, 'excluded from training')}."
    if done.num_batched:
        said += f" {done.num_batched:,} more in a batch stay there, and enter no further one."
    return said


async def _include(opened: OpenRun, key: buffer_pb2.StageKey, wish: Wish, is_dry_run: bool) -> str:
    request = query_pb2.IncludeExperiencesRequest(
        key=key, filter=wish.filter, reason=wish.reason, dry_run=is_dry_run
    )
    done: query_pb2.IncludeExperiencesResponse = await answer_of(
        opened.queries.IncludeExperiences(request, timeout=CHANGE_SECONDS)
    )
    said = f"{pluralize(done.num_included, 'experience')} {_verb(is_dry_run, 'included again')}."
    if done.num_too_late:
        said += (
            f" {done.num_too_late:,} more stay excluded: their groups were shaped without them, "
            "their contents are gone, or the stage has ended."
        )
    return said


async def _delete(opened: OpenRun, key: buffer_pb2.StageKey, wish: Wish, is_dry_run: bool) -> str:
    request = query_pb2.DeleteExperiencesRequest(
        key=key, filter=wish.filter, reason=wish.reason, dry_run=is_dry_run
    )
    done: query_pb2.DeleteExperiencesResponse = await answer_of(
        opened.queries.DeleteExperiences(request, timeout=CHANGE_SECONDS)
    )
    said = (
        f"The content of {pluralize(done.num_deleted, 'experience')} {_verb(is_dry_run, 'deleted')}"
    )
    return f"{said} for good." if is_dry_run else f"{said}, {done.num_bytes:,} bytes."


def _verb(is_dry_run: bool, participle: str) -> str:
    return f"would be {participle}" if is_dry_run else participle
