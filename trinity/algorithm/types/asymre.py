"""Asymmetric REINFORCE."""

from trinity.algorithm.algorithm_type import AlgorithmType

ASYMRE = AlgorithmType(
    name="asymre",
    summary=(
        "REINFORCE with a baseline a little below the group's mean, so that good answers "
        "weigh more than bad ones."
    ),
    when_to_use="Old rollouts, without importance ratios.",
    paper="https://arxiv.org/abs/2506.20520",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="asymre",
    policy_loss_fn="opmd",
)
