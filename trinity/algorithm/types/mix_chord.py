"""CHORD: expert rows with a decaying weight."""

from trinity.algorithm.algorithm_type import AlgorithmType

MIX_CHORD = AlgorithmType(
    name="mix_chord",
    summary=(
        "Like mix, but the weight of the expert rows decays, and tokens are weighted by how "
        "unsure the policy is."
    ),
    when_to_use="Like mix, with experts whose style differs from the model's.",
    paper="https://arxiv.org/abs/2508.11408",
    safe_lag="4 or more",
    repeat_times=8,
    sample_strategy="mix",
    advantage_fn="grpo",
    policy_loss_fn="mix_chord",
    kl_loss_fn="k2",
    entropy_loss_fn="mix",
)
