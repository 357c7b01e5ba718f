"""On-policy distillation."""

from trinity.algorithm.algorithm_type import AlgorithmType

ON_POLICY_DISTILL = AlgorithmType(
    name="on_policy_distill",
    summary="The student's own answers, each token rewarded by how likely a teacher finds it.",
    when_to_use="A stronger model with the same tokenizer is at hand.",
    paper="https://thinkingmachines.ai/blog/on-policy-distillation/",
    safe_lag="4 or more",
    repeat_times=8,
    advantage_fn="on_policy_distill",
    policy_loss_fn="ppo",
)
