"""Online policy mirror descent."""

from trinity.algorithm.algorithm_type import AlgorithmType

OPMD = AlgorithmType(
    name="opmd",
    summary="Rewards less their group's mean weight the log-probabilities; no importance ratio.",
    when_to_use="Slightly old rollouts, without importance ratios.",
    paper="https://arxiv.org/abs/2501.12599",
    safe_lag="2",
    repeat_times=2,
    advantage_fn="opmd",
    policy_loss_fn="opmd",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)
