"""Distillation with an interpolated divergence."""

from trinity.algorithm.algorithm_type import AlgorithmType

JSD = AlgorithmType(
    name="jsd",
    summary="On-policy distillation, between the forward and the reverse divergence.",
    when_to_use="Runs that must match Trinity-RFT's `jsd`; it is no Jensen-Shannon divergence.",
    paper="https://arxiv.org/abs/2306.13649",
    repeat_times=8,
    advantage_fn="jsd",
    policy_loss_fn="ppo",
)
