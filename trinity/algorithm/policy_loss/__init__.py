"""Policy losses by name; loading one imports torch, so only the trainer does it."""

from typing import TYPE_CHECKING

from trinity.plugins import Registry

if TYPE_CHECKING:
    from trinity.algorithm.policy_loss.inputs import PolicyLossFn

NAMES = (
    "cispo",
    "clip_cov",
    "dcpo",
    "dpo",
    "dppo_kl",
    "dppo_tv",
    "dro",
    "geo_mean",
    "gpg",
    "gspo",
    "gspo_token",
    "importance_sampling",
    "ipo",
    "kl_cov",
    "kto",
    "m2po",
    "mix",
    "mix_chord",
    "opmd",
    "orpo",
    "ppo",
    "rec",
    "sapo",
    "sft",
    "sft_is",
    "sft_phi",
    "simpo",
    "sppo",
    "topr",
)
PAIR_LOSSES = ("dpo", "ipo", "orpo", "simpo")
"""Losses of pairs: a better and a worse answer to the same prompt."""
LOSSES_WITH_REFERENCE = ("dpo", "ipo", "kto")
"""Losses of data that compare the policy with the reference model."""
LOSSES_OF_SCHEMA: "dict[str, tuple[str, ...]]" = {"dpo": PAIR_LOSSES, "kto": ("kto",)}
"""Losses that train on rows of one kind alone, by that kind."""

POLICY_LOSSES: "Registry[PolicyLossFn]" = Registry(
    "policy loss",
    {name: f"trinity.algorithm.policy_loss.{name}.{name}" for name in NAMES},
    adapter="trinity.rft.algorithm.policy_loss_fn.adapt_policy_loss",
)
