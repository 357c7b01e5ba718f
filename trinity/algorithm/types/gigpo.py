"""Group in group policy optimization."""

from trinity.algorithm.algorithm_type import AlgorithmType

GIGPO = AlgorithmType(
    name="gigpo",
    summary=(
        "Compares rollouts with each other, and steps with those of other rollouts in the "
        "same state."
    ),
    when_to_use="Agents in environments whose states repeat, with rewards for steps.",
    paper="https://arxiv.org/abs/2505.10978",
    safe_lag="4 or more",
    repeat_times=8,
    advantage_fn="gigpo",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)
