"""Estimators of the divergence from a reference policy, per token, by name."""

from typing import TYPE_CHECKING

from trinity.plugins import Registry

if TYPE_CHECKING:
    from trinity.algorithm.kl.estimators import KlEstimator

_HERE = "trinity.algorithm.kl.estimators"

DIVERGENCES: "Registry[KlEstimator]" = Registry(
    "divergence estimator",
    {
        "none": f"{_HERE}.none",
        "k1": f"{_HERE}.k1",
        "k2": f"{_HERE}.k2",
        "k3": f"{_HERE}.k3",
        "low_var_kl": f"{_HERE}.low_var_kl",
        "abs": f"{_HERE}.absolute",
        "corrected_k3": f"{_HERE}.corrected_k3",
        "k1+": f"{_HERE}.k1_plus",
        "k3+": f"{_HERE}.k3_plus",
    },
    adapter="trinity.rft.algorithm.kl_fn.adapt_kl",
)
