"""How the losses of tokens become one number, whatever the number of calls and ranks they come in.

Every mode is a weighted sum over tokens whose weights depend only on the row and on totals of the
whole optimizer batch, so parts of a batch add up to exactly the batch.
"""

from dataclasses import dataclass
from typing import Literal

import torch

LossAggMode = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTotals:
    """Counts over the whole optimizer batch, all calls and ranks."""

    num_tokens: int
    """Tokens that are trained on."""
    num_sequences: int
    """Rows with at least one such token."""
    max_response_tokens: int
    """Longest response that could have been; what `seq-mean-token-sum-norm` divides by."""


def token_weights(
    mask_BT: torch.Tensor, mode: LossAggMode, totals: BatchTotals, dtype: torch.dtype
) -> torch.Tensor:
    """Weight of each token's loss, 0 where the mask is false; the loss is the weighted sum."""
    weights_BT = mask_BT.to(dtype)
    num_sequences = max(totals.num_sequences, 1)
    if mode == "token-mean":
        return weights_BT / max(totals.num_tokens, 1)
    if mode == "seq-mean-token-sum":
        return weights_BT / num_sequences
    if mode == "seq-mean-token-sum-norm":
        return weights_BT / (num_sequences * totals.max_response_tokens)
    if mode == "seq-mean-token-mean":
        return weights_BT / (num_sequences * weights_BT.sum(-1, keepdim=True).clamp(min=1))
    raise ValueError(f"unknown loss_agg_mode: {mode}")
