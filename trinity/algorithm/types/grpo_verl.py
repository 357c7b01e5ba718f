"""GRPO with its advantage computed by the trainer."""

from trinity.algorithm.algorithm_type import AlgorithmType

GRPO_VERL = AlgorithmType(
    name="grpo_verl",
    summary=(
        "GRPO as verl computes it: in the trainer, over the rewards with the KL penalty "
        "already subtracted."
    ),
    when_to_use="GRPO with `kl_penalty_fn`, whose penalty the buffer cannot see.",
    paper="https://arxiv.org/abs/2402.03300",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="grpo_verl",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)
