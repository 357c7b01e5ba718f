"""Dr. GRPO: GRPO without its two biases."""

from trinity.algorithm.algorithm_type import AlgorithmType

DR_GRPO = AlgorithmType(
    name="dr_grpo",
    summary="GRPO without the division by the standard deviation and by the answer's length.",
    when_to_use="Where GRPO makes wrong answers ever longer.",
    paper="https://arxiv.org/abs/2503.20783",
    safe_lag="4 or more",
    repeat_times=8,
    advantage_fn="dr_grpo",
    policy_loss_fn="ppo",
    loss_agg_mode="seq-mean-token-sum-norm",
)
