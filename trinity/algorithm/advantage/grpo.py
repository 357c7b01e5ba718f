"""GRPO: the reward less the mean of the samples of its task, in standard deviations."""

from dataclasses import replace
from functools import partial
from typing import Literal

from trinity.algorithm.advantage.groups import (
    check_choice,
    draw_copies,
    filter_low_std_groups,
    overall_std,
    ranks_within,
)
from trinity.algorithm.advantage.needs import Arguments, Needs, needs
from trinity.algorithm.advantage.samples import Advantages, FloatVector, Samples
from trinity.algorithm.advantage.units import compare_units
from trinity.algorithm.units import Unit


def _needs(arguments: Arguments) -> Needs:
    copies = arguments.get("duplicate_experiences") and arguments.get("std_threshold") is not None
    return Needs(
        whole_step=arguments.get("std_cal_level") == "batch" or bool(copies),
        mean_logprobs=arguments.get("rank_penalty") is not None,
    )


@needs(_needs)
def grpo(
    samples: Samples,
    *,
    epsilon: float = 1e-6,
    std_threshold: float | None = None,
    duplicate_experiences: bool = False,
    rank_penalty: float | None = None,
    std_cal_level: Literal["group", "batch"] = "group",
    unit: Unit = "run",
) -> Advantages:
    """A_i = (r_i - mean) / (std + epsilon), [N], with mean and std of i's group.

    The std is the unbiased one; a single unit has mean 0 and std 1, so it keeps its reward.

    std_cal_level "batch": the std of all rewards of the explore step
        (https://arxiv.org/abs/2508.08221).
    std_threshold: groups with a std of at most this, and groups of one, are left out
        (dynamic sampling, https://arxiv.org/abs/2503.14476).
    duplicate_experiences: copies of other groups, drawn at random, replace them
        (https://hkunlp.github.io/blog/2025/Polaris).
    rank_penalty p: mean and std are those of r (1 - p rank / n), where rank orders a group's n
        samples by mean log-probability from 0 up (https://arxiv.org/abs/2506.02355).
    unit "run": each run counts once in its group, with the mean of its samples' rewards, and all
        its samples get its advantage; "sample": every sample counts.

    https://arxiv.org/abs/2402.03300.
    """
    check_choice("grpo", "std_cal_level", std_cal_level, ("group", "batch"))
    normalize = partial(
        _normalized, epsilon=epsilon, rank_penalty=rank_penalty, std_cal_level=std_cal_level
    )
    return compare_units(
        samples,
        unit,
        lambda units: _filtered(units, *normalize(units), std_threshold, duplicate_experiences),
    )


def _normalized(
    samples: Samples, *, epsilon: float, rank_penalty: float | None, std_cal_level: str
) -> tuple[Advantages, FloatVector]:
    """Returns the advantages, and the deviations that they are compared with."""
    compared_N = samples.rewards if rank_penalty is None else _penalised(samples, rank_penalty)
    means_G = samples.group_baselines(compared_N)
    deviations_G = samples.group_deviations(compared_N)
    differences_N = samples.rewards - means_G[samples.groups]
    if std_cal_level == "batch":
        values_N = differences_N / (overall_std(samples.rewards) + epsilon)
    else:
        values_N = differences_N / (deviations_G[samples.groups] + epsilon)
    metrics = {
        "group_advantages/reward_mean": means_G,
        "group_advantages/reward_std": deviations_G,
    }
    return Advantages(values_N, metrics=metrics), deviations_G


def _filtered(
    samples: Samples,
    advantages: Advantages,
    deviations_G: FloatVector,
    std_threshold: float | None,
    duplicate_experiences: bool,
) -> Advantages:
    advantages = filter_low_std_groups(
        advantages, samples, std_threshold, deviations_G=deviations_G
    )
    if advantages.left_out is None or not duplicate_experiences:
        return advantages
    return replace(advantages, copies_of=draw_copies(samples, advantages.left_out))


def _penalised(samples: Samples, penalty: float) -> FloatVector:
    """Returns rewards, reduced for samples that were likely anyway."""
    ranks_N = ranks_within(samples.groups, samples.mean_logprobs)
    return samples.rewards * (1.0 - penalty * ranks_N / samples.group_sizes[samples.groups])
