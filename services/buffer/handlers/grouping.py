"""Shapes one group of samples under a claim and commits what came of it."""

import functools
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.group import AdvantageFn, Outcome, Sample, shape_group
from services.buffer.domain.samples import storable
from services.buffer.domain.stage import Stage
from services.buffer.domain.states import ExperienceState, ScopeState
from services.buffer.store.database import SCOPES_TOPIC, notify, stage_topic
from services.buffer.store.experiences import Derived, filter_raw, insert_derived, set_states
from services.buffer.store.scopes import Claim, end_claims
from services.buffer.store.stages import lock_stage
from trinity.algorithm.advantage import ADVANTAGES
from trinity.config import StagePlan

DERIVED_NAMESPACE = uuid.UUID("5b1e0d0e-7a6c-5c3a-9a3c-3f6f4f0b9d21")
MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """What was computed for a claim: outcomes, or the error that came instead."""

    claim: Claim
    operator: str = ""
    outcomes: Sequence[Outcome] = ()
    error: str = ""


def shape(claim: Claim, plan: StagePlan, samples: Sequence[Sample]) -> Shaped:
    """Compute the advantages of a group; whatever goes wrong belongs to the group."""
    algorithm = plan.algorithm
    try:
        function = ADVANTAGES.get(algorithm.advantage_fn)
        bound: AdvantageFn = functools.partial(function, **algorithm.advantage_fn_args)
        outcomes = shape_group(samples, bound)
    except Exception as error:  # the function may be a user's
        return Shaped(claim=claim, error=storable(f"{type(error).__name__}: {error}"))
    return Shaped(claim=claim, operator=algorithm.advantage_fn, outcomes=outcomes)


def derived_id(parent_id: str, operator: str, ordinal: int) -> str:
    """The id that the same output of an operator always gets."""
    return str(uuid.uuid5(DERIVED_NAMESPACE, f"{parent_id}/{operator}/{ordinal}"))


async def commit_shaped(connection: AsyncConnection, shaped: Sequence[Shaped]) -> None:
    """Commit the groups of one stage whose claims still hold."""
    stage = await lock_stage(connection, shaped[0].claim.key)
    await _commit_outcomes(connection, stage, [one for one in shaped if not one.error])
    for one in shaped:
        if one.error:
            await _commit_error(connection, one)
    await notify(connection, stage_topic(stage.key))


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


async def _commit_error(connection: AsyncConnection, shaped: Shaped) -> None:
    """Let the scope be tried again, or leave it out when that was its last try."""
    is_dead = shaped.claim.attempts >= MAX_ATTEMPTS
    state = ScopeState.DEAD if is_dead else ScopeState.OPEN
    if not await end_claims(connection, [shaped.claim], state, shaped.error):
        return
    key, own_id = shaped.claim.key, shaped.claim.assignment_id
    if is_dead:
        await filter_raw(connection, key, own_id, f"the pipeline failed: {shaped.error}")
    else:
        await notify(connection, SCOPES_TOPIC)
