"""DAPO: GRPO with clip-higher and dynamic sampling."""

from trinity.algorithm.algorithm_type import AlgorithmType

DAPO = AlgorithmType(
    name="dapo",
    summary=(
        "GRPO that clips increases later than decreases and replaces groups in which all "
        "rollouts are equal."
    ),
    when_to_use="Long reasoning without a reference model, where entropy collapses under GRPO.",
    paper="https://arxiv.org/abs/2503.14476",
    safe_lag="4 or more",
    repeat_times=16,
    advantage_fn="grpo",
    policy_loss_fn="ppo",
    entropy_loss_fn="default",
    args={
        "advantage_fn": {"std_threshold": 0.0},
        "policy_loss_fn": {"clip_range_high": 0.28},
    },
)
