"""Dr. GRPO: GRPO without the division by std, which favours tasks whose rewards hardly differ."""

from trinity.algorithm.advantage.groups import filter_low_std_groups
from trinity.algorithm.advantage.samples import Advantages, Samples
from trinity.algorithm.advantage.units import compare_units
from trinity.algorithm.units import Unit


def dr_grpo(
    samples: Samples, *, std_threshold: float | None = None, unit: Unit = "run"
) -> Advantages:
    """A_i = r_i - mean(r of i's group), [N]; a single unit keeps its reward.

    std_threshold: groups with a std of at most this, and groups of one, are left out.
    unit "run": each run counts once in its group, with the mean of its samples' rewards, and all
        its samples get its advantage; "sample": every sample counts.

    https://arxiv.org/abs/2503.20783. Its loss is aggregated by `seq-mean-token-sum-norm`.
    """
    return compare_units(samples, unit, lambda units: _centered(units, std_threshold))


def _centered(samples: Samples, std_threshold: float | None) -> Advantages:
    means_G = samples.group_baselines(samples.rewards)
    deviations_G = samples.group_deviations(samples.rewards)
    advantages = Advantages(
        samples.rewards - means_G[samples.groups],
        metrics={
            "group_advantages/reward_mean": means_G,
            "group_advantages/reward_std": deviations_G,
        },
    )
    return filter_low_std_groups(advantages, samples, std_threshold, deviations_G=deviations_G)
