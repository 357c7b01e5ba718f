"""The algorithm types by name: one declaration per file, each a choice of parts."""

from trinity.algorithm.algorithm_type import AlgorithmType
from trinity.plugins import Registry

_NAMES = (
    "ppo",
    "grpo",
    "grpo_verl",
    "dr_grpo",
    "dapo",
    "reinforceplusplus",
    "rloo",
    "opmd",
    "asymre",
    "topr",
    "cispo",
    "gspo",
    "gspo_token",
    "sapo",
    "sppo",
    "rec",
    "raft",
    "mix",
    "mix_chord",
    "multi_step_grpo",
    "gigpo",
    "on_policy_distill",
    "jsd",
    "jensen_shannon",
    "sft",
    "cpt",
    "dpo",
)

ALGORITHM_TYPES: Registry[AlgorithmType] = Registry(
    "algorithm type", {name: f"{__name__}.{name}.{name.upper()}" for name in _NAMES}
)
"""In the order of the documentation; a plugin may register more."""
