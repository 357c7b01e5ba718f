"""Values that the buffer's parts share."""

from dataclasses import dataclass

from services.buffer.domain.states import TasksetKind
from trinity.task_operators.task_pipeline import ResolvedTaskPipeline


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
