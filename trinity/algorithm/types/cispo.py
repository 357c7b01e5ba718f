"""CISPO."""

from trinity.algorithm.algorithm_type import AlgorithmType

CISPO = AlgorithmType(
    name="cispo",
    summary=(
        "Clips the importance weight instead of the update, so that every token keeps its gradient."
    ),
    when_to_use="Long reasoning, where PPO's clipping silences rare but decisive tokens.",
    paper="https://arxiv.org/abs/2506.13585",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="grpo",
    policy_loss_fn="cispo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)
