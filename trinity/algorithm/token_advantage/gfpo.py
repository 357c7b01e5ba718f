"""GFPO: GRPO among the shortest answers of a group, or those with the most reward per token."""

from typing import Literal

import numpy as np

from trinity.algorithm.token_advantage.grpo_verl import normalize_in_groups
from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows
from trinity.algorithm.token_advantage.token_batch import (
    BoolMatrix,
    FloatVector,
    IntVector,
    TokenAdvantages,
    TokenBatch,
)
from trinity.algorithm.token_advantage.units import Units
from trinity.algorithm.units import Unit
from trinity.errors import UserError


def gfpo(
    batch: TokenBatch,
    *,
    num_kept: int = 8,
    metric: Literal["length", "token_efficiency"] = "length",
    epsilon: float = 1e-6,
    unit: Unit = "run",
) -> TokenAdvantages:
    """A = (s - mean) / (std + epsilon) over the kept units of the group; the others are left out.

    s [B] is the sum of a row's rewards. Kept are the num_kept units of a group with the fewest
    trained tokens l, or with the largest s / l (token_efficiency), and those that tie with the
    last. std is unbiased; a single unit: mean 0, std 1.

    unit "run": a run counts once, with the mean of its rows' s and the sum of their l, and is kept
        or left out with all its rows; "sample": every row counts.

    https://arxiv.org/abs/2508.09726
    """
    if num_kept < 1:
        raise UserError(f"algorithm.advantage_fn_args.num_kept is {num_kept}; give 1 or more")
    if metric not in ("length", "token_efficiency"):
        raise UserError(
            f"algorithm.advantage_fn_args.metric is {metric!r}; give length or token_efficiency"
        )
    units, lengths_B = Units.of_batch(batch, unit), batch.mask_BT.sum(-1).astype(np.float64)
    scores_U, lengths_U = units.means_U(batch.scores_B), units.sums_U(lengths_B)
    cost_U = lengths_U if metric == "length" else -scores_U / np.maximum(lengths_U, 1.0)
    groups_U = units.groups.index_B
    kept_U = _kept(np.where(lengths_U > 0, cost_U, np.inf), groups_U, num_kept)
    advantages_U = np.zeros(len(scores_U))
    advantages_U[kept_U] = normalize_in_groups(
        scores_U[kept_U],
        Groups.from_ids(groups_U[kept_U]),
        epsilon=epsilon,
        divide_by_std=True,
    )
    kept_B, advantages_B = kept_U[units.number_B], units.spread_B(advantages_U)
    mask_BT = batch.mask_BT & kept_B[:, None]
    return TokenAdvantages(
        advantages_BT=broadcast_rows(advantages_B, mask_BT),
        mask_BT=mask_BT,
        metrics={
            "gfpo/kept_ratio": float(kept_U.mean()) if len(kept_U) else 0.0,
            "gfpo/kept_length": float(lengths_U[kept_U].mean()) if kept_U.any() else 0.0,
            "gfpo/length": float(lengths_U.mean()) if len(kept_U) else 0.0,
        },
    )


def _kept(cost_U: FloatVector, groups_U: IntVector, num_kept: int) -> BoolMatrix:
    """Returns the units whose cost is at most the num_kept-th least of their group, [U]."""
    order = np.lexsort((cost_U, groups_U))
    _, index_U, counts_G = np.unique(groups_U, return_inverse=True, return_counts=True)
    starts_G = np.cumsum(counts_G) - counts_G
    last_G = starts_G + np.minimum(counts_G, num_kept) - 1
    kept_U: BoolMatrix = (cost_U <= cost_U[order][last_G][index_U]) & np.isfinite(cost_U)
    return kept_U
