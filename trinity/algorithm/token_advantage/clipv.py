"""Clip_V: like Clip_B, but compares each token with the whole vocabulary at its position."""

import numpy as np

from trinity.algorithm.token_advantage.clipb import MIN_STD
from trinity.algorithm.token_advantage.grpo_verl import normalized_scores
from trinity.algorithm.token_advantage.masked import broadcast_rows, clipped_fractions
from trinity.algorithm.token_advantage.token_batch import (
    BoolMatrix,
    FloatVector,
    TokenAdvantages,
    TokenBatch,
)
from trinity.algorithm.units import Unit


def clipv(
    batch: TokenBatch,
    *,
    epsilon: float = 1e-6,
    mu: float = 8.5,
    max_frac: float = 1e-4,
    unit: Unit = "run",
) -> TokenAdvantages:
    """GRPO's A; tokens with A < 0 and N - S > mu std(N - S) are left out, the worst first.

    S = p (H + log p) for the policy's probability p of the token and its entropy H; N is the mean
    of the same over its vocabulary, sum p^2 (H + log p). At most max_frac of the batch's tokens are
    left out (at least one may be); tokens that tie at that border are kept. std is of the
    population, over the batch's tokens. All matrices [B, T]. `unit` is that of `grpo_verl`.
    https://arxiv.org/abs/2602.03392
    """
    mask_BT = batch.mask_BT
    advantages_BT = broadcast_rows(normalized_scores(batch, unit, epsilon=epsilon), mask_BT)
    logprobs_N = batch.logprobs_BT[mask_BT]
    own_N = np.exp(logprobs_N) * (batch.needed("entropies")[mask_BT] + logprobs_N)
    excess_N = batch.needed("discriminator")[mask_BT] - own_N
    std = float(excess_N.std()) if len(excess_N) else 0.0
    kept_BT = mask_BT.copy()
    if std >= MIN_STD:
        wanted_N = (advantages_BT[mask_BT] < 0) & (excess_N > mu * std)
        kept_BT[mask_BT] = ~_worst(excess_N, wanted_N, max(int(max_frac * len(excess_N)), 1))
    return TokenAdvantages(
        advantages_BT=np.where(kept_BT, advantages_BT, 0.0),
        mask_BT=kept_BT,
        metrics={**clipped_fractions(advantages_BT, mask_BT, kept_BT), "stdD": std},
    )


def _worst(excess_N: FloatVector, wanted_N: BoolMatrix, most: int) -> BoolMatrix:
    """Returns the candidates with the largest excess, `most` at most, in any order."""
    candidates = excess_N[wanted_N]
    if len(candidates) <= most:
        return wanted_N
    border = np.partition(candidates, -most - 1)[-most - 1]
    worst_N: BoolMatrix = wanted_N & (excess_N > border)
    return worst_N
