"""Aggregates token losses into one number, independent of the number of calls and ranks.

Every mode is a weighted sum over tokens whose weights depend only on the row and on totals of the
whole optimizer batch, so parts of a batch add up to exactly the batch.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

LossAggMode = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
]


class TrainedRows(Protocol):
    """Rows of an optimizer batch, or of a part of it, with a mask of the tokens to train on."""

    @property
    def mask_BT(self) -> torch.Tensor:
        """Bool: true where the token is trained on."""

    @property
    def is_expert_B(self) -> torch.Tensor | None:
        """Bool: true for expert rows among the rollouts; None without expert rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTotals:
    """Counts over the whole optimizer batch, all calls and ranks.

    totals = BatchTotals.from_counts(
        mask_BT.sum(-1), max_response_tokens=1024, is_expert_B=is_expert_B
    )
    """

    num_tokens: int
    """Tokens that are trained on."""
    num_sequences: int
    """Rows with at least one such token."""
    max_response_tokens: int
    """The longest possible response, or `algorithm.loss_scale_factor` in its place; the divisor of
    `seq-mean-token-sum-norm`."""
    num_expert_tokens: int = 0
    """The part of `num_tokens` that belongs to expert rows."""
    num_expert_sequences: int = 0

    @classmethod
    def from_counts(
        cls,
        num_tokens_B: npt.NDArray[np.int64],
        *,
        max_response_tokens: int,
        is_expert_B: npt.NDArray[np.bool_] | None = None,
    ) -> "BatchTotals":
        """Counts all rows of the batch, each given by the number of its tokens to train on."""
        expert_B = np.zeros(len(num_tokens_B), bool) if is_expert_B is None else is_expert_B
        return cls(
            num_tokens=int(num_tokens_B.sum()),
            num_sequences=int((num_tokens_B > 0).sum()),
            max_response_tokens=max_response_tokens,
            num_expert_tokens=int(num_tokens_B[expert_B].sum()),
            num_expert_sequences=int((num_tokens_B[expert_B] > 0).sum()),
        )

    @property
    def expert(self) -> "BatchTotals":
        """The counts of the expert rows alone."""
        return BatchTotals(
            num_tokens=self.num_expert_tokens,
            num_sequences=self.num_expert_sequences,
            max_response_tokens=self.max_response_tokens,
        )

    @property
    def non_expert(self) -> "BatchTotals":
        """The counts of the other rows alone."""
        return BatchTotals(
            num_tokens=self.num_tokens - self.num_expert_tokens,
            num_sequences=self.num_sequences - self.num_expert_sequences,
            max_response_tokens=self.max_response_tokens,
        )


def token_weights(
    mask_BT: torch.Tensor, mode: LossAggMode, totals: BatchTotals, dtype: torch.dtype
) -> torch.Tensor:
    """Returns each token's weight in the loss, a weighted sum; 0 where the mask is false."""
    weights_BT = mask_BT.to(dtype)
    num_sequences = max(totals.num_sequences, 1)
    if mode == "token-mean":
        return weights_BT / max(totals.num_tokens, 1)
    if mode == "token-sum":
        return weights_BT
    if mode == "seq-mean-token-sum":
        return weights_BT / num_sequences
    if mode == "seq-mean-token-sum-norm":
        return weights_BT / (num_sequences * totals.max_response_tokens)
    if mode == "seq-mean-token-mean":
        return weights_BT / (num_sequences * weights_BT.sum(-1, keepdim=True).clamp(min=1))
    raise ValueError(f"unknown loss_agg_mode: {mode}")


def token_weights_by_row_kind(
    rows: TrainedRows,
    mode: LossAggMode,
    expert_mode: LossAggMode,
    totals: BatchTotals,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Returns the same with expert rows and other rows normalised separately."""
    usual_BT = token_weights(rows.mask_BT, mode, totals.non_expert, dtype)
    if rows.is_expert_B is None:
        return usual_BT
    expert_BT = token_weights(rows.mask_BT, expert_mode, totals.expert, dtype)
    return torch.where(rows.is_expert_B[:, None], expert_BT, usual_BT)


def row_weights(rows: TrainedRows, totals: BatchTotals, dtype: torch.dtype) -> torch.Tensor:
    """Returns each row's weight, [B], for the mean over rows that have tokens to train on."""
    return rows.mask_BT.any(-1).to(dtype) / max(totals.num_sequences, 1)
