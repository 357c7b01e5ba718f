"""Values that the buffer's parts share."""

import uuid
from dataclasses import dataclass

from services.buffer.domain.group import GroupOutcome
from services.buffer.domain.stage import TasksetKind
from services.buffer.store.experiences import DerivedExperience
from services.buffer.store.pipeline import Claim
from trinity.config.training_rows import RowCheck
from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline
from trinity.runtime.uuids import name_uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededTaskset:
    """A taskset that a plan uses."""

    name: str
    kind: TasksetKind
    path: str | None
    """None for tasks that a client submits under this name."""
    split: str
    subset_name: str | None
    table: str | None = None
    """Table of a database."""
    is_queue: bool = False
    feature_keys: tuple[str, ...] = ()
    pipeline: ResolvedTaskPipeline | None = None
    """Processing of its rows before any of them is drawn."""
    row_check: RowCheck | None = None
    """The check of rows of training data, if there is one."""


DERIVED_NAMESPACE = uuid.UUID("5b1e0d0e-7a6c-5c3a-9a3c-3f6f4f0b9d21")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """The result computed for a claimed group."""

    claim: Claim
    operator: str = ""
    outcome: GroupOutcome

    @property
    def derived_experiences(self) -> list[DerivedExperience]:
        """The rows that can be batched."""
        return [
            DerivedExperience(
                experience_id=derived_id(row.parent_id, self.operator, row.ordinal),
                parent_id=row.parent_id,
                advantage=row.advantage,
                reward=row.reward,
                is_masked=row.is_masked,
            )
            for row in self.outcome.rows
        ]


def derived_id(parent_id: str, operator: str, ordinal: int) -> str:
    """Returns the deterministic id of an output of an operator."""
    return name_uuid(DERIVED_NAMESPACE, f"{parent_id}/{operator}/{ordinal}")
