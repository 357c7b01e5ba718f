"""Soft adaptive policy optimization."""

from trinity.algorithm.algorithm_type import AlgorithmType

SAPO = AlgorithmType(
    name="sapo",
    summary="A smooth gate in place of the clipping, stricter for bad answers.",
    when_to_use="Where hard clipping makes training jump.",
    paper="https://arxiv.org/abs/2511.20347",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="grpo",
    policy_loss_fn="sapo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)
