"""What shall be done to the rows of a taskset, as the process that does it is told."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trinity.config.section import Args

OrderMethod = Literal["sort", "folding", "shuffle", "keep"]


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class TaskOperator(_Told):
    """One operator; arguments are complete, the user's over the function's own."""

    name: str
    """Name or dotted path."""
    args: Args
    is_own: bool
    """Whether it is a user's, which may take too long or too much."""


class Ordering(_Told):
    """Which tasks stay, and in which order they come."""

    method: OrderMethod = "sort"
    priority_weights: dict[str, float] = Field(default_factory=dict)
    """Empty has those of Trinity-RFT."""
    top_k: int = -1
    """Tasks that stay, the first in order; -1 has all."""
    folding_layers: int = Field(default=3, ge=1)
    seed: int = 0


class ResolvedTaskPipeline(_Told):
    """Operators in order, then the order of what is left."""

    operators: tuple[TaskOperator, ...] = ()
    target_fields: tuple[str, ...] = ()
    """Columns that are kept; none has all."""
    added_scores: tuple[str, ...] = ()
    """Scores that become columns, as selectors go by them."""
    ordering: Ordering = Field(default_factory=Ordering)
    further_paths: tuple[str, ...] = ()
    """Read after the taskset's own path."""

    @property
    def is_ours(self) -> bool:
        """Whether the same rows always give the same, whatever others change."""
        return not any(one.is_own or one.name == "data_juicer" for one in self.operators)
