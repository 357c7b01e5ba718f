"""Tapered off-policy REINFORCE."""

from trinity.algorithm.algorithm_type import AlgorithmType

TOPR = AlgorithmType(
    name="topr",
    summary="Good answers train in full, bad ones by their truncated importance ratio.",
    when_to_use="Old or foreign rollouts, of which many are wrong.",
    paper="https://arxiv.org/abs/2503.14286",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="reinforce",
    policy_loss_fn="topr",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)
