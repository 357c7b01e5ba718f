"""GSPO's token variant."""

from trinity.algorithm.algorithm_type import AlgorithmType

GSPO_TOKEN = AlgorithmType(
    name="gspo_token",
    summary="GSPO's sequence ratio, with a gradient through each token by its own advantage.",
    when_to_use="Like gspo, where advantages differ within an answer.",
    paper="https://arxiv.org/abs/2507.18071",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="grpo",
    policy_loss_fn="gspo_token",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
    loss_agg_mode="seq-mean-token-mean",
)
