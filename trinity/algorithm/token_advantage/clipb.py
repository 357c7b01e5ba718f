"""Clip_B: GRPO without the tokens whose discouragement would reduce entropy the most."""

import numpy as np

from trinity.algorithm.token_advantage.grpo_verl import normalized_scores
from trinity.algorithm.token_advantage.masked import broadcast_rows, clipped_fractions
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.algorithm.units import Unit

MIN_STD = 1e-12


def clipb(
    batch: TokenBatch, *, epsilon: float = 1e-6, mu: float = 2.5, unit: Unit = "run"
) -> TokenAdvantages:
    """GRPO's A; of tokens with A < 0 only those with S - E[S] >= -mu std(S) are trained on.

    S = p (H + log p), p the rollout's probability of the token, H the policy's entropy there; E
    and std (of the population) are over the batch's tokens. All matrices [B, T].
    `unit` is that of `grpo_verl`. https://arxiv.org/abs/2602.03392
    """
    mask_BT = batch.mask_BT
    advantages_BT = broadcast_rows(normalized_scores(batch, unit, epsilon=epsilon), mask_BT)
    logprobs_N = batch.rollout_logprobs_BT[mask_BT]
    discriminator_N = np.exp(logprobs_N) * (batch.needed("entropies")[mask_BT] + logprobs_N)
    mean = float(discriminator_N.mean()) if len(discriminator_N) else 0.0
    variance = float(np.square(discriminator_N - mean).mean()) if len(discriminator_N) else 0.0
    std = variance**0.5
    kept_BT = mask_BT.copy()
    if std >= MIN_STD:
        low_N = discriminator_N - mean < -mu * std
        kept_BT[mask_BT] = ~(low_N & (advantages_BT[mask_BT] < 0))
    fractions = clipped_fractions(advantages_BT, mask_BT, kept_BT)
    return TokenAdvantages(
        advantages_BT=np.where(kept_BT, advantages_BT, 0.0),
        mask_BT=kept_BT,
        metrics={**fractions, "ES": mean, "varS": variance},
    )
