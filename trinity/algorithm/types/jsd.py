"""Distillation with an interpolated divergence."""

from trinity.algorithm.algorithm_type import AlgorithmType

JSD = AlgorithmType(
    name="jsd",
    summary="On-policy distillation, between the forward and the reverse divergence.",
    when_to_use="Only to match Trinity-RFT's `jsd`: with its default `lambda_coef` "
    "the model unlearns, at 0 it is on_policy_distill. The true Jensen-Shannon divergence is "
    "jensen_shannon.",
    paper="https://arxiv.org/abs/2306.13649",
    safe_lag="none; 4 or more with `lambda_coef: 0`",
    repeat_times=8,
    advantage_fn="jsd",
    policy_loss_fn="ppo",
)
