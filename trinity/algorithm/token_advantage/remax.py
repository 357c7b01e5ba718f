"""ReMax: the reward to come, less the reward of a greedy rollout of the same task."""

from trinity.algorithm.token_advantage.masked import masked
from trinity.algorithm.token_advantage.recurrence import discounted_sums
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch


def remax(batch: TokenBatch) -> TokenAdvantages:
    """A_t = r_t + r_(t+1) + ... - b, over the tokens that are trained on; [B, T], b [B].

    https://arxiv.org/abs/2310.10505
    """
    returns_BT = discounted_sums(batch.rewards_BT, batch.mask_BT, 1.0)
    baselines_B = batch.needed("baselines")
    return TokenAdvantages(
        advantages_BT=masked(returns_BT - baselines_B[:, None], batch.mask_BT),
        returns_BT=returns_BT,
    )
