"""RL on rollouts mixed with SFT on expert rows."""

from trinity.algorithm.algorithm_type import AlgorithmType

MIX = AlgorithmType(
    name="mix",
    summary="A weighted sum of PPO's loss on rollouts and SFT's on expert rows of the same batch.",
    when_to_use="Good demonstrations exist and RL alone finds too few right answers.",
    paper="https://arxiv.org/abs/2505.17826",
    safe_lag="4 or more",
    repeat_times=8,
    sample_strategy="mix",
    advantage_fn="grpo",
    policy_loss_fn="mix",
    kl_loss_fn="k2",
    entropy_loss_fn="mix",
)
