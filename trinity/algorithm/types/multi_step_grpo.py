"""GRPO over rollouts of several steps."""

from trinity.algorithm.algorithm_type import AlgorithmType

MULTI_STEP_GRPO = AlgorithmType(
    name="multi_step_grpo",
    summary="GRPO on each rollout's last reward, given to all of its steps.",
    when_to_use="Agents whose every step is an experience of its own and only the end is judged.",
    paper="https://arxiv.org/abs/2402.03300",
    safe_lag="4 or more",
    repeat_times=8,
    advantage_fn="step_wise_grpo",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)
