"""CHORD: expert rows with a weight that fades."""

from trinity.algorithm.algorithm_type import AlgorithmType

MIX_CHORD = AlgorithmType(
    name="mix_chord",
    summary=(
        "As mix, with a weight of the expert rows that decays and tokens weighed by how "
        "unsure the policy is."
    ),
    when_to_use="As mix, with experts whose style is not the model's.",
    paper="https://arxiv.org/abs/2508.11408",
    safe_lag="4 or more",
    repeat_times=8,
    sample_strategy="mix",
    advantage_fn="grpo",
    policy_loss_fn="mix_chord",
    kl_loss_fn="k2",
    entropy_loss_fn="mix",
)
