"""The algorithms, which turn rewards into gradients: one part per file."""

import importlib

_FROM_TRINITY_RFT = {
    "ADVANTAGE_FN": "advantage_fn",
    "AdvantageFn": "advantage_fn",
    "ALGORITHM_TYPE": "algorithm",
    "AlgorithmType": "algorithm",
    "ENTROPY_LOSS_FN": "entropy_loss_fn",
    "EntropyLossFn": "entropy_loss_fn",
    "KL_FN": "kl_fn",
    "KLFn": "kl_fn",
    "POLICY_LOSS_FN": "policy_loss_fn",
    "PolicyLossFn": "policy_loss_fn",
    "SAMPLE_STRATEGY": "sample_strategy",
    "SampleStrategy": "sample_strategy",
}
"""Names that files written for Trinity-RFT import from here, and the modules that have them."""


def __getattr__(name: str) -> object:
    """Returns a registry or base class by Trinity-RFT's name."""
    if (module := _FROM_TRINITY_RFT.get(name)) is None:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return vars(importlib.import_module(f"{__name__}.{module}"))[name]
