"""Losses of the policy by name; what is found imports torch, so only the trainer asks."""

from typing import TYPE_CHECKING

from trinity.plugins import Registry

if TYPE_CHECKING:
    from trinity.algorithm.policy_loss.inputs import PolicyLossFn

POLICY_LOSSES: "Registry[PolicyLossFn]" = Registry(
    "policy loss",
    {
        "ppo": "trinity.algorithm.policy_loss.ppo.ppo",
        "sft": "trinity.algorithm.policy_loss.sft.sft",
    },
)
