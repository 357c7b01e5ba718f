"""Policy losses by name; loading one imports torch, so only the trainer does it."""

from typing import TYPE_CHECKING

from trinity.plugins import Registry

if TYPE_CHECKING:
    from trinity.algorithm.policy_loss.inputs import PolicyLossFn

NAMES = (
    "cispo",
    "clip_cov",
    "dpo",
    "dppo_kl",
    "dppo_tv",
    "dro",
    "geo_mean",
    "gpg",
    "gspo",
    "gspo_token",
    "importance_sampling",
    "kl_cov",
    "mix",
    "mix_chord",
    "opmd",
    "ppo",
    "rec",
    "sapo",
    "sft",
    "sft_is",
    "sft_phi",
    "sppo",
    "topr",
)

POLICY_LOSSES: "Registry[PolicyLossFn]" = Registry(
    "policy loss",
    {name: f"trinity.algorithm.policy_loss.{name}.{name}" for name in NAMES},
    adapter="trinity.algorithm.policy_loss_fn.adapt_policy_loss",
)
