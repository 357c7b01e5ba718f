"""Group sequence policy optimization."""

from trinity.algorithm.algorithm_type import AlgorithmType

GSPO = AlgorithmType(
    name="gspo",
    summary="One importance ratio for the whole answer, clipped as a whole.",
    when_to_use="Mixtures of experts and long answers, whose token ratios are noise.",
    paper="https://arxiv.org/abs/2507.18071",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="grpo",
    policy_loss_fn="gspo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
    loss_agg_mode="seq-mean-token-mean",
)
