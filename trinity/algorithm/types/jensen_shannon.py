"""Distillation with the Jensen-Shannon divergence."""

from trinity.algorithm.algorithm_type import AlgorithmType

JENSEN_SHANNON = AlgorithmType(
    name="jensen_shannon",
    summary="On-policy distillation that descends the true generalised Jensen-Shannon divergence.",
    when_to_use="A teacher whose modes the student cannot all cover.",
    paper="https://arxiv.org/abs/2306.13649",
    safe_lag="4 or more",
    repeat_times=8,
    advantage_fn="jensen_shannon",
    policy_loss_fn="ppo",
)
