"""Direct preference optimization."""

from trinity.algorithm.algorithm_type import AlgorithmType

DPO = AlgorithmType(
    name="dpo",
    summary="Prefers the better of two given answers, measured against the reference model.",
    when_to_use="Pairs of a better and a worse answer, without rollouts.",
    paper="https://arxiv.org/abs/2305.18290",
    schema="dpo",
    can_balance_batch=False,
    policy_loss_fn="dpo",
    entropy_loss_fn="default",
)
