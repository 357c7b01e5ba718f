"""Entropy losses by name, subtracted from the loss to keep the policy from narrowing."""

from typing import TYPE_CHECKING

from trinity.plugins import Registry

if TYPE_CHECKING:
    from trinity.algorithm.entropy.inputs import EntropyLossFn

ENTROPY_LOSSES: "Registry[EntropyLossFn]" = Registry(
    "entropy loss",
    {
        "default": "trinity.algorithm.entropy.default.default",
        "mix": "trinity.algorithm.entropy.mix.mix",
        "none": "trinity.algorithm.entropy.none.none",
    },
    adapter="trinity.rft.algorithm.entropy_loss_fn.adapt_entropy_loss",
)
