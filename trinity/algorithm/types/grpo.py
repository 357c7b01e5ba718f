"""Group relative policy optimization."""

from trinity.algorithm.algorithm_type import AlgorithmType

GRPO = AlgorithmType(
    name="grpo",
    summary="Compares each rollout with the mean of its task's rollouts, in standard deviations.",
    when_to_use="The usual start for rewards that can be checked.",
    paper="https://arxiv.org/abs/2402.03300",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="grpo",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)
