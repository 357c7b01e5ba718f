"""What a train step takes: rows of tokens with what was known of them before, as numpy arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from trinity.types import BoolArray, FloatArray, IntArray

PairSide = Literal["chosen", "rejected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReward:
    """What a rollout was given, and with which others it is compared."""

    assignment_id: str
    """The runs of one assignment are a group."""
    run: int
    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """What the reward was added up from, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """One sequence; arrays but the tokens run over the R tokens after the prompt."""

    position: int
    """Place in the batch; the two rows of a pair have the same."""
    tokens: IntArray
    prompt_length: int
    mask: BoolArray
    """True where the token is trained on."""
    rollout_logprobs: npt.NDArray[np.float32]
    """Of the policy that made the tokens, as its engine gave them; 0 for training data."""
    advantages: npt.NDArray[np.float32]
    weight: float = 1.0
    """Factor on the row's loss."""
    temperature: float = 1.0
    """The rollout's; log-probabilities are compared at the same one."""
    run_reward: RunReward | None = None
    """None where there is none, as with training data."""
    token_rewards: FloatArray | None = None
    """Where the workflow rewards tokens; else the run's reward is the last token's."""
    teacher_logprobs: FloatArray | None = None
    """A teacher's, for distillation."""
    reward_baseline: float | None = None
    """Reward of a greedy rollout of the same task."""
    oldest_version: int | None = None
    """The oldest weights that made one of its tokens."""
    side: PairSide | None = None
    """Which half of a pair it is; the chosen one comes first, its other right after."""
    is_expert: bool = False
    """Whether it is training data in a batch of rollouts."""
    is_truncated: bool = False
    """Whether the formatter had to cut it."""

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.tokens)

    @property
    def response_length(self) -> int:
        """Tokens after the prompt."""
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """The rows of one train step in order of position, and what the buffer says about them."""

    step: int
    rows: Sequence[TrainRow]
    metrics: dict[str, float]
    """Means over the batch, measured by the buffer."""
    replayed: bool
    """True when it was composed for an earlier incarnation."""

    @property
    def num_trained_tokens(self) -> int:
        """Tokens that the loss looks at."""
        return int(sum(int(row.mask.sum()) for row in self.rows))

    @property
    def num_trained_rows(self) -> int:
        """Rows with at least one such token."""
        return sum(bool(row.mask.any()) for row in self.rows)
