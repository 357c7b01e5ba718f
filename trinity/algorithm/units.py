"""The unit that a group's baseline counts: the run, or each of its samples.

A run gives several samples where a conversation does not fit into one: templates that drop earlier
thoughts, agents, steps. With `run` each run has one value in its group, however many they are.
"""

from typing import Literal

from trinity.errors import UserError

Unit = Literal["run", "sample"]
UNITS: tuple[Unit, ...] = ("run", "sample")
SAMPLE_UNIT: Unit = "sample"
UNIT_ARGUMENT = "unit"
COUNTS_UNITS = frozenset(
    {
        "asymre",
        "asymre_verl",
        "clipb",
        "clipv",
        "dr_grpo",
        "gdpo",
        "gfpo",
        "gpg",
        "grpo",
        "grpo_distill",
        "grpo_passk",
        "grpo_verl",
        "gvpo",
        "kto",
        "maxrl",
        "online_dpo",
        "opmd",
        "opmd_verl",
        "opo",
        "rec",
        "reinforce_plus_plus_baseline",
        "reward_filter",
        "rloo",
    }
)
"""Built-in advantages with the argument `unit`."""
COMPARES_NO_RUNS = frozenset(
    {
        "jensen_shannon",
        "jsd",
        "none",
        "on_policy_distill",
        "pf_ppo",
        "ppo",
        "ppo_unmasked",
        "reinforce",
        "reinforceplusplus",
        "reinforceplusplus_unmasked",
        "remax",
        "vapo",
    }
)
"""Built-in advantages that do not compare the runs of a task with each other."""


def check_unit(unit: str) -> None:
    """Raises: UserError for any other unit."""
    if unit not in UNITS:
        raise UserError(
            f"`algorithm.advantage_fn_args.unit` is {unit!r}: give `run`, which counts each run "
            "once, or `sample`"
        )
