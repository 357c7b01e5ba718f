"""GFPO: GRPO among the shortest answers of a group, or those with the most reward per token."""

from typing import Literal

import numpy as np

from trinity.algorithm.token_advantage.grpo_verl import normalize_in_groups
from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows
from trinity.algorithm.token_advantage.token_batch import (
    BoolMatrix,
    FloatVector,
    TokenAdvantages,
    TokenBatch,
)
from trinity.errors import UserError


def gfpo(
    batch: TokenBatch,
    *,
    num_kept: int = 8,
    metric: Literal["length", "token_efficiency"] = "length",
    epsilon: float = 1e-6,
) -> TokenAdvantages:
    """A = (s - mean) / (std + epsilon) over the kept rows of the group; the others are left out.

    s [B] is the sum of a row's rewards. Kept are the num_kept rows of a group with the fewest
    trained tokens l, or with the largest s / l (token_efficiency), and those that tie with the
    last. std is unbiased; a single row: mean 0, std 1. https://arxiv.org/abs/2508.09726
    """
    if num_kept < 1:
        raise UserError(f"algorithm.advantage_fn_args.num_kept is {num_kept}; give 1 or more")
    if metric not in ("length", "token_efficiency"):
        raise UserError(
            f"algorithm.advantage_fn_args.metric is {metric!r}; give length or token_efficiency"
        )
    scores_B, lengths_B = batch.scores_B, batch.mask_BT.sum(-1).astype(np.float64)
    cost_B = lengths_B if metric == "length" else -scores_B / np.maximum(lengths_B, 1.0)
    kept_B = _kept(np.where(lengths_B > 0, cost_B, np.inf), batch.groups_B, num_kept)
    advantages_B = np.zeros(len(scores_B))
    advantages_B[kept_B] = normalize_in_groups(
        scores_B[kept_B],
        Groups.from_ids(batch.groups_B[kept_B]),
        epsilon=epsilon,
        divide_by_std=True,
    )
    mask_BT = batch.mask_BT & kept_B[:, None]
    return TokenAdvantages(
        advantages_BT=broadcast_rows(advantages_B, mask_BT),
        mask_BT=mask_BT,
        metrics={
            "gfpo/kept_ratio": float(kept_B.mean()) if len(kept_B) else 0.0,
            "gfpo/kept_length": float(lengths_B[kept_B].mean()) if kept_B.any() else 0.0,
            "gfpo/length": float(lengths_B.mean()) if len(kept_B) else 0.0,
        },
    )


def _kept(cost_B: FloatVector, groups_B: np.ndarray, num_kept: int) -> BoolMatrix:
    """Returns the rows whose cost is at most the num_kept-th least of their group, [B]."""
    order = np.lexsort((cost_B, groups_B))
    _, index_B, counts_G = np.unique(groups_B, return_inverse=True, return_counts=True)
    starts_G = np.cumsum(counts_G) - counts_G
    last_G = starts_G + np.minimum(counts_G, num_kept) - 1
    kept_B: BoolMatrix = (cost_B <= cost_B[order][last_G][index_B]) & np.isfinite(cost_B)
    return kept_B
