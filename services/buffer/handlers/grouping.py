"""Shapes one group of samples under a claim and commits what came of it."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.events import Notice
from services.buffer.domain.group import Outcome
from services.buffer.domain.stage import Stage
from services.buffer.domain.states import ExperienceState, ScopeState
from services.buffer.store.assignments import first_explore_step
from services.buffer.store.database import SCOPES_TOPIC, batch_topic, notify, work_topic
from services.buffer.store.experiences import Derived, filter_raw, insert_derived, set_states
from services.buffer.store.progress import log_event
from services.buffer.store.scopes import Claim, end_claims
from services.buffer.store.stages import lock_stage

DERIVED_NAMESPACE = uuid.UUID("5b1e0d0e-7a6c-5c3a-9a3c-3f6f4f0b9d21")
MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """What was computed for a claim: outcomes, or the error that came instead."""

    claim: Claim
    operator: str = ""
    outcomes: Sequence[Outcome] = ()
    error: str = ""

    @property
    def num_rows(self) -> int:
        """Rows that can be batched."""
        return sum(outcome.advantage is not None for outcome in self.outcomes)


def derived_id(parent_id: str, operator: str, ordinal: int) -> str:
    """The id that the same output of an operator always gets."""
    return str(uuid.uuid5(DERIVED_NAMESPACE, f"{parent_id}/{operator}/{ordinal}"))


async def commit_shaped(connection: AsyncConnection, shaped: Sequence[Shaped]) -> None:
    """Commit the groups of one stage whose claims still hold."""
    stage = await lock_stage(connection, shaped[0].claim.key)
    await _commit_outcomes(connection, stage, [one for one in shaped if not one.error])
    await _commit_errors(connection, stage, [one for one in shaped if one.error])
    await notify(connection, batch_topic(stage.key))
    if any(one.num_rows < stage.repeat_times for one in shaped):
        # Rows that do not come leave room for the next explore step.
        await notify(connection, work_topic(stage.key))


async def _commit_outcomes(
    connection: AsyncConnection, stage: Stage, shaped: Sequence[Shaped]
) -> None:
    held = await end_claims(connection, [one.claim for one in shaped], ScopeState.DONE)
    derived: list[Derived] = []
    left_out: dict[str, list[str]] = defaultdict(list)
    for one in shaped:
        if one.claim.assignment_id not in held:
            continue
        for outcome in one.outcomes:
            parent_id = outcome.experience_id
            if outcome.advantage is None:
                left_out[outcome.reason].append(parent_id)
                continue
            derived.append(
                Derived(
                    experience_id=derived_id(parent_id, one.operator, 0),
                    parent_id=parent_id,
                    advantage=outcome.advantage,
                )
            )
    await insert_derived(connection, stage.key, derived)
    for reason, ids in left_out.items():
        await set_states(connection, stage.key, ids, ExperienceState.FILTERED, reason)


async def _commit_errors(
    connection: AsyncConnection, stage: Stage, shaped: Sequence[Shaped]
) -> None:
    """Let the scopes be tried again, or leave those out that had their last try."""
    dead: dict[str, list[str]] = defaultdict(list)
    for one in shaped:
        state = ScopeState.DEAD if one.claim.attempts >= MAX_ATTEMPTS else ScopeState.OPEN
        held = await end_claims(connection, [one.claim], state, one.error)
        if held and state is ScopeState.DEAD:
            dead[one.error].append(one.claim.assignment_id)
        elif held:
            await notify(connection, SCOPES_TOPIC)
    function = stage.plan.algorithm.advantage_fn
    for error, ids in dead.items():
        await filter_raw(connection, stage.key, ids, f"the pipeline failed: {error}")
        step = await first_explore_step(connection, stage.key, ids)
        text = (
            f"explore step {step}: the samples of {len(ids)} tasks are left out, advantage "
            f"function {function} cannot be used on them: {error}"
        )
        await log_event(connection, stage.key, Notice(text=text))


async def hand_back(connection: AsyncConnection, claims: Sequence[Claim]) -> None:
    """Let others have groups that were not tried; it is not counted."""
    await end_claims(connection, claims, ScopeState.OPEN, is_counted=False)
    await notify(connection, SCOPES_TOPIC)
