"""What a train step takes: rows of tokens with what the loss needs, as numpy arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trinity.types import BoolArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReward:
    """What a rollout was given, and with which others it is compared."""

    assignment_id: str
    """The runs of one assignment are a group."""
    run: int
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """One sequence; the last three arrays run over the R tokens after the prompt."""

    position: int
    """Place in the batch."""
    tokens: IntArray
    prompt_length: int
    mask: BoolArray
    """True where the token is trained on."""
    old_logprobs: npt.NDArray[np.float32]
    advantages: npt.NDArray[np.float32]
    weight: float = 1.0
    """Factor on the row's loss."""
    temperature: float = 1.0
    """The rollout's; log-probabilities are compared at the same one."""
    run_reward: RunReward | None = None
    """None where there is none, as with training data."""
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


def rank_slice(rows: Sequence[TrainRow], rank: int, num_ranks: int) -> Sequence[TrainRow]:
    """The rank's share: neighbouring rows, shares differing by one row at most."""
    return rows[len(rows) * rank // num_ranks : len(rows) * (rank + 1) // num_ranks]


def micro_batches(rows: Sequence[TrainRow], max_tokens: int) -> list[list[TrainRow]]:
    """Rows of similar length together, so that padded none has more than `max_tokens` tokens.

    A row that is longer than that is on its own.
    """
    batches: list[list[TrainRow]] = []
    for row in sorted(rows, key=lambda row: (row.length, row.position)):
        if batches and (len(batches[-1]) + 1) * row.length <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches
