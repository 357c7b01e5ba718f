"""Reward-ranked fine-tuning."""

from trinity.algorithm.algorithm_type import AlgorithmType

RAFT = AlgorithmType(
    name="raft",
    summary="Supervised fine-tuning on the rollouts that were good enough; drops the others.",
    when_to_use="A robust first baseline, also for old rollouts.",
    paper="https://arxiv.org/abs/2304.06767",
    safe_lag="4 or more",
    repeat_times=4,
    advantage_fn="reward_filter",
    policy_loss_fn="sft",
)
