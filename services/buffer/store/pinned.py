"""The statement that finds the weight versions that open work needs, besides the newest."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.states import AssignmentKind, EvaluationState
from services.buffer.store.database import given, in_given_stage
from services.buffer.store.prepared import fetch_column
from services.buffer.store.tables import assignment, evaluation
from trinity.types import StageKey

_OF_EVALUATIONS = sa.select(evaluation.c.version).where(
    in_given_stage(evaluation), evaluation.c.state == EvaluationState.OPEN
)
_OLDEST_OF_TRAINING = sa.select(sa.func.min(assignment.c.required_version)).where(
    in_given_stage(assignment),
    assignment.c.kind == AssignmentKind.TRAIN,
    assignment.c.is_open,
)
_PINNED = sa.union(_OF_EVALUATIONS, _OLDEST_OF_TRAINING)


async def pinned_versions(connection: AsyncConnection, key: StageKey) -> list[int]:
    """Returns the versions needed by open evaluations and by the oldest open training work."""
    found = await fetch_column(connection, _PINNED, given(key))
    return sorted(version for version in found if version is not None)
