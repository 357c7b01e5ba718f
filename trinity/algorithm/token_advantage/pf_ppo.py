"""PF-PPO: PPO's advantages, weighed by how much a row's score tells about its quality."""

from typing import Literal

import numpy as np

from trinity.algorithm.token_advantage.ppo import ppo
from trinity.algorithm.token_advantage.token_batch import (
    FloatVector,
    TokenAdvantages,
    TokenBatch,
)
from trinity.errors import UserError

METHODS = ("pow", "max_min", "max_random")
SMALLEST = 1e-8
"""Added to every weight, as in verl, so that no row is impossible."""


def pf_ppo(
    batch: TokenBatch,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    reweight_method: Literal["pow", "max_min", "max_random"] = "pow",
    weight_pow: float = 2.0,
) -> TokenAdvantages:
    """A = B w / sum(w) times GAE's advantage, whitened as `ppo` does, at every token.

    w [B] is |s|^weight_pow (pow); 1 for the batch's highest and lowest scores s, else 0 (max_min);
    0.4 for the highest and 0.1 for all others (max_random). s is a row's reward before the KL
    penalty. verl draws B rows again with these probabilities; here each row counts as often as it
    is drawn on average, so that chance adds no noise. The critic, entropy and the KL term see every
    row once. https://arxiv.org/abs/2409.06957
    """
    if reweight_method not in METHODS:
        raise UserError(
            f"algorithm.advantage_fn_args.reweight_method is {reweight_method!r}; give one of "
            f"{', '.join(METHODS)}"
        )
    if weight_pow < 0:
        raise UserError(f"algorithm.advantage_fn_args.weight_pow is {weight_pow}; give 0 or more")
    found = ppo(batch, gamma=gamma, lam=lam)
    weights_B = _weights(batch.raw_scores_B, reweight_method, weight_pow) + SMALLEST
    shares_B = len(weights_B) * weights_B / max(float(weights_B.sum()), SMALLEST)
    return TokenAdvantages(
        advantages_BT=found.advantages_BT * shares_B[:, None],
        returns_BT=found.returns_BT,
        metrics={"pf_ppo/effective_rows": float(shares_B.sum() ** 2 / _squares(shares_B))},
    )


def _weights(scores_B: FloatVector, method: str, power: float) -> FloatVector:
    if not len(scores_B):
        return scores_B
    largest, smallest = scores_B.max(), scores_B.min()
    if method == "max_min":
        return np.where((scores_B == largest) | (scores_B == smallest), 1.0, 0.0)
    if method == "max_random":
        return np.where(scores_B == largest, 0.4, 0.1)
    weights_B: FloatVector = np.abs(scores_B) ** power
    return weights_B


def _squares(shares_B: FloatVector) -> float:
    return max(float(np.square(shares_B).sum()), SMALLEST)
