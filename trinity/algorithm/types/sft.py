"""Supervised fine-tuning."""

from trinity.algorithm.algorithm_type import AlgorithmType

SFT = AlgorithmType(
    name="sft",
    summary="Raises the likelihood of given answers.",
    when_to_use="A warm start before RL, or demonstrations alone.",
    paper="https://arxiv.org/abs/2203.02155",
    schema="sft",
    policy_loss_fn="sft",
)
