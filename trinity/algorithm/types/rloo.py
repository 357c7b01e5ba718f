"""REINFORCE leave-one-out."""

from trinity.algorithm.algorithm_type import AlgorithmType

RLOO = AlgorithmType(
    name="rloo",
    summary="Compares each rollout with the mean of the others of its task.",
    when_to_use="An unbiased baseline without a critic; groups may be small.",
    paper="https://arxiv.org/abs/2402.14740",
    safe_lag="4 or more",
    repeat_times=2,
    advantage_fn="rloo",
    policy_loss_fn="ppo",
    kl_loss_fn="k2",
    entropy_loss_fn="default",
)
