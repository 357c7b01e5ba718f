"""The declaration of an algorithm type: its parts by name, without computation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trinity.runtime.json_values import JsonValue

RowSchema = Literal["experience", "sft", "cpt", "dpo", "kto"]
"""The kind of rows that it trains on: rollouts, or data of one of four kinds."""
ModeName = Literal["both", "train", "explore", "bench", "serve"]
MODES_OF_ROLLOUTS: tuple[ModeName, ...] = ("both", "explore", "train", "bench", "serve")
MODES_OF_DATA: tuple[ModeName, ...] = ("train", "bench", "serve")
Part = Literal[
    "sample_strategy",
    "advantage_fn",
    "policy_loss_fn",
    "kl_penalty_fn",
    "kl_loss_fn",
    "entropy_loss_fn",
]
"""The key of a part in section `algorithm`; its arguments are under the same key with `_args`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmType:
    """An algorithm as a choice of parts, each by its registered name.

    RLOO = AlgorithmType(
        name="rloo",
        summary="Each rollout against the mean of the others of its task.",
        when_to_use="...",
        paper="https://arxiv.org/abs/2402.14740",
        advantage_fn="rloo",
    )
    """

    name: str
    summary: str
    """One sentence for the table of all algorithms."""
    when_to_use: str
    """One sentence."""
    paper: str
    """URL of the paper; may be empty."""
    safe_lag: str = ""
    """Measured: how many steps old the rollouts' weights may be; empty if not measured."""
    schema: RowSchema = "experience"
    repeat_times: int = 1
    """Rollouts that a task usually has; fewer than it compares are advised against."""
    min_repeat_times: int = 1
    needs_critic: bool = False
    can_balance_batch: bool = True
    """True if rows may go to ranks and micro-batches in any order; pairs always stay together."""
    sample_strategy: str = "default"
    advantage_fn: str = "none"
    policy_loss_fn: str = "ppo"
    kl_penalty_fn: str = "none"
    kl_loss_fn: str = "none"
    entropy_loss_fn: str = "none"
    loss_agg_mode: str = "token-mean"
    args: Mapping[Part, Mapping[str, JsonValue]] = field(default_factory=dict)
    """Arguments of parts that differ from the parts' own defaults."""

    @property
    def modes(self) -> tuple[ModeName, ...]:
        """The modes it can run in: data can only be trained on; rollouts can be made or stored
        ones.
        """
        return MODES_OF_ROLLOUTS if self.schema == "experience" else MODES_OF_DATA
