"""Dr. GRPO: GRPO without the division that favours tasks with hardly any spread."""

from trinity.algorithm.advantage.samples import Advantages, Samples


def dr_grpo(samples: Samples) -> Advantages:
    """A_i = r_i - mean(r of i's group), [N]; a sample alone keeps its reward.

    https://arxiv.org/abs/2503.20783. Its loss is summed up with `seq-mean-token-sum-norm`.
    """
    means_G = samples.group_baselines(samples.rewards)
    return Advantages(
        samples.rewards - means_G[samples.groups],
        metrics={
            "group_advantages/reward_mean": means_G,
            "group_advantages/reward_std": samples.group_deviations(samples.rewards),
        },
    )
