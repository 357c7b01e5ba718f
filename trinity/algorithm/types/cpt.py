"""Continued pre-training."""

from trinity.algorithm.algorithm_type import AlgorithmType

CPT = AlgorithmType(
    name="cpt",
    summary="Raises the likelihood of whole texts.",
    when_to_use="New knowledge from raw text.",
    paper="https://arxiv.org/abs/2004.10964",
    schema="cpt",
    policy_loss_fn="sft",
)
