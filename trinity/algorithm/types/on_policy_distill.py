"""Distillation on-policy."""

from trinity.algorithm.algorithm_type import AlgorithmType

ON_POLICY_DISTILL = AlgorithmType(
    name="on_policy_distill",
    summary="Rewards each token of the student's own answers by how likely a teacher finds it.",
    when_to_use="A stronger model with the same tokenizer is available.",
    paper="https://thinkingmachines.ai/blog/on-policy-distillation/",
    safe_lag="4 or more",
    repeat_times=8,
    advantage_fn="on_policy_distill",
    policy_loss_fn="ppo",
)
