"""Simplified PPO."""

from trinity.algorithm.algorithm_type import AlgorithmType

SPPO = AlgorithmType(
    name="sppo",
    summary="The log-ratio, trained only where the ratio is within its range.",
    when_to_use="Several updates on the same rollouts with a plain objective.",
    paper="https://arxiv.org/abs/2108.05828",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="opmd",
    policy_loss_fn="sppo",
)
