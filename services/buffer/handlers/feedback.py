"""Rewards that come later: samples wait for them, and their groups with them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.events import Notice
from services.buffer.domain.results import ExperienceRecord, Result
from services.buffer.domain.stage import Stage
from services.buffer.domain.states import ExperienceState
from services.buffer.store.contents import load_bodies
from services.buffer.store.database import notify, stage_topics
from services.buffer.store.feedback import (
    Rewarded,
    leave_out_overdue,
    release_scopes,
    store_reward,
)
from services.buffer.store.progress import log_event
from services.buffer.store.queries import StoredExperience, load_experiences
from services.buffer.store.stages import lock_stage
from trinity.types import FinishReason, StageKey

UNREWARDED = (FinishReason.ABORT, FinishReason.PROMPT_TRUNCATED)
"""Never trained on, so that nobody waits for their rewards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """The reward of one sample."""

    experience_id: str
    reward: float
    reward_parts: Mapping[str, float]


RewardWriter = Callable[[bytes, Feedback], bytes]
"""The content of a sample with its reward."""


@dataclass(slots=True, kw_only=True)
class Given:
    """What became of some feedback; `refused` holds the reasons."""

    num_set: int = 0
    num_known: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


def by_awaited(
    stage: Stage, result: Result, state: ExperienceState
) -> Iterator[tuple[Result, ExperienceState]]:
    """A result's samples with their state: those that wait for a reward apart from the others."""
    if state is not ExperienceState.RAW or not stage.plan.config.buffer.await_feedback:
        yield result, state
        return
    awaiting = tuple(one for one in result.experiences if _is_awaited(one))
    others = tuple(one for one in result.experiences if not _is_awaited(one))
    for some, own in ((others, state), (awaiting, ExperienceState.AWAITING)):
        if some:
            yield replace(result, experiences=some), own


def _is_awaited(one: ExperienceRecord) -> bool:
    return one.reward is None and one.finish_reason not in UNREWARDED


async def give_feedback(
    connection: AsyncConnection, key: StageKey, feedback: Sequence[Feedback], write: RewardWriter
) -> Given:
    """Set rewards, of several for one sample the first; complete groups go to the pipeline."""
    await lock_stage(connection, key)
    found = await load_experiences(connection, key, [one.experience_id for one in feedback])
    given = Given()
    released: set[str] = set()
    for one in feedback:
        sample = found.get(one.experience_id)
        if reason := _why_not(sample, one):
            given.refused.append((one.experience_id, reason))
        elif sample is not None and sample.state is ExperienceState.AWAITING:
            [body] = await load_bodies(connection, key, [one.experience_id])
            await store_reward(connection, key, _rewarded(one, write(body, one)))
            rewarded = replace(sample, state=ExperienceState.RAW, reward=one.reward)
            found[one.experience_id] = rewarded
            released.add(sample.assignment_id)
            given.num_set += 1
        else:
            given.num_known += 1
    if released:
        await release_scopes(connection, key, released)
        await notify(connection, *stage_topics(key))
    return given


def _why_not(sample: StoredExperience | None, one: Feedback) -> str:
    if sample is None:
        return "there is no such sample in the stage"
    if sample.state is ExperienceState.AWAITING or sample.reward == one.reward:
        return ""
    if sample.reward is None:
        return f"it is {sample.state} and waits for no reward"
    return f"its reward is {sample.reward:g} already"


def _rewarded(one: Feedback, body: bytes) -> Rewarded:
    return Rewarded(
        experience_id=one.experience_id,
        body=body,
        reward=one.reward,
        reward_parts=one.reward_parts,
    )


async def end_overdue(connection: AsyncConnection, key: StageKey) -> None:
    """Leave out samples whose reward has not come in time, if that was asked for."""
    stage = await lock_stage(connection, key)
    seconds = stage.plan.config.buffer.feedback_timeout
    if not stage.is_open or not seconds:
        return
    reason = f"no reward came in {seconds:g} s (`buffer.feedback_timeout`)"
    groups = await leave_out_overdue(connection, key, seconds=seconds, reason=reason)
    if not groups:
        return
    await release_scopes(connection, key, set(groups))
    text = f"{len(groups)} samples of {len(set(groups))} tasks are left out: {reason}"
    await log_event(connection, key, Notice(text=text))
    await notify(connection, *stage_topics(key))
