"""The resolved pipeline of a taskset, as it is sent to the process that runs it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

OrderMethod = Literal["sort", "folding", "shuffle", "keep"]


class _WireModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class TaskOperator(_WireModel):
    """One operator with complete arguments: the user's, else the function's defaults."""

    name: str
    """Name or dotted path."""
    args: dict[str, JsonValue]
    is_own: bool
    """True for a user's operator, which may take too much time or memory."""


class Ordering(_WireModel):
    """Order of the tasks, and how many of them stay."""

    method: OrderMethod = "sort"
    priority_weights: dict[str, float] = Field(default_factory=dict)
    """Weights by score; empty for those of Trinity-RFT."""
    top_k: int = -1
    """Number of tasks that stay, the first in order; -1 for all."""
    folding_layers: int = Field(default=3, ge=1)
    seed: int = 0


class ResolvedTaskPipeline(_WireModel):
    """Operators in order, then the ordering of the remaining rows."""

    operators: tuple[TaskOperator, ...] = ()
    target_fields: tuple[str, ...] = ()
    """Columns to keep; empty for all."""
    added_scores: tuple[str, ...] = ()
    """Scores that become columns, for use by selectors."""
    ordering: Ordering = Field(default_factory=Ordering)
    further_paths: tuple[str, ...] = ()
    """Paths read after the taskset's own path."""

    @property
    def may_add_columns(self) -> bool:
        """True if it has functions of users or of Data-Juicer, whose columns are not known."""
        return any(op.is_own or op.name == "data_juicer" for op in self.operators)

    @property
    def is_deterministic(self) -> bool:
        """True if the same rows always give the same result, without code that may change."""
        return not self.may_add_columns
