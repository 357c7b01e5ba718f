"""REINFORCE++."""

from trinity.algorithm.algorithm_type import AlgorithmType

REINFORCEPLUSPLUS = AlgorithmType(
    name="reinforceplusplus",
    summary="Discounted returns, whitened over the whole batch instead of the group.",
    when_to_use="Many tasks with few rollouts each.",
    paper="https://arxiv.org/abs/2501.03262",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="reinforceplusplus",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)
