"""Group-relative REINFORCE with selectable clipping and weights."""

from trinity.algorithm.algorithm_type import AlgorithmType

REC = AlgorithmType(
    name="rec",
    summary=(
        "Group-relative REINFORCE; `clip_mode`, `weight`, `regularizer` and `drop` select "
        "its variants."
    ),
    when_to_use="To find out which of clipping, weighting and dropping an off-policy run needs.",
    paper="https://arxiv.org/abs/2509.24203",
    safe_lag="2",
    repeat_times=2,
    advantage_fn="rec",
    policy_loss_fn="rec",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)
