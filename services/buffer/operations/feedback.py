"""Delayed rewards: samples wait for them, and so do their groups."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from services.buffer.domain.stage import ExperienceState
from services.buffer.store.curation import Change, ChangeReason, record_change
from services.buffer.store.database import notify, stage_topics
from services.buffer.store.experiences import leave_out_overdue, load_bodies, store_reward
from services.buffer.store.pipeline import release_scopes
from services.buffer.store.queries import StoredExperience, load_experiences
from services.buffer.store.reports import log_notice
from services.buffer.store.stages import lock_stage
from trinity.runtime.sql import Connection
from trinity.types import StageKey


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedReward:
    """The reward of one sample."""

    experience_id: str
    reward: float
    reward_parts: Mapping[str, float]


RewardWriter = Callable[[bytes, DelayedReward], bytes]
"""Returns the content of a sample with the reward added."""


@dataclass(slots=True, kw_only=True)
class FeedbackResult:
    """The result of giving feedback; `refused` holds experience ids and reasons."""

    num_set: int = 0
    num_known: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


async def give_feedback(
    connection: Connection,
    key: StageKey,
    feedback: Sequence[DelayedReward],
    write: RewardWriter,
    why: ChangeReason,
) -> FeedbackResult:
    """Sets rewards, the first one for each sample; complete groups go to the pipeline.

    Rewards with a reason are recorded as changes; programs give rewards without a reason.
    """
    await lock_stage(connection, key)
    found = await load_experiences(connection, key, [reward.experience_id for reward in feedback])
    result = FeedbackResult()
    released: set[str] = set()
    rewarded_ids: list[str] = []
    for reward in feedback:
        sample = found.get(reward.experience_id)
        if reason := _why_not(sample, reward):
            result.refused.append((reward.experience_id, reason))
        elif sample is not None and sample.state is ExperienceState.AWAITING:
            [body] = await load_bodies(connection, key, [reward.experience_id])
            await store_reward(
                connection,
                key,
                reward.experience_id,
                write(body, reward),
                reward=reward.reward,
                reward_parts=reward.reward_parts,
            )
            rewarded = replace(sample, state=ExperienceState.RAW, reward=reward.reward)
            found[reward.experience_id] = rewarded
            released.add(sample.assignment_id)
            rewarded_ids.append(reward.experience_id)
            result.num_set += 1
        else:
            result.num_known += 1
    if rewarded_ids and why.reason:
        await record_change(connection, key, rewarded_ids, Change.REWARDED, why)
    if released:
        await release_scopes(connection, key, released)
        await notify(connection, *stage_topics(key))
    return result


def _why_not(sample: StoredExperience | None, reward: DelayedReward) -> str:
    if sample is None:
        return "there is no such sample in the stage"
    if sample.state is ExperienceState.AWAITING or sample.reward == reward.reward:
        return ""
    if sample.reward is None:
        return f"it is {sample.state} and waits for no reward"
    return f"its reward is {sample.reward:g} already"


async def drop_overdue_samples(connection: Connection, key: StageKey) -> None:
    """Leaves out samples whose reward is overdue, if `buffer.feedback_timeout` is set."""
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
    await log_notice(connection, key, text)
    await notify(connection, *stage_topics(key))
