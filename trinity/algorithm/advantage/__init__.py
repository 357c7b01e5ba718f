"""Group advantages by name: plain numpy, since the buffer computes them."""

from typing import TYPE_CHECKING

from trinity.plugins import Registry

if TYPE_CHECKING:
    from trinity.algorithm.advantage.samples import AdvantageFn

_HERE = "trinity.algorithm.advantage"
ADVANTAGE_PATHS = {
    "asymre": f"{_HERE}.asymre.asymre",
    "dr_grpo": f"{_HERE}.dr_grpo.dr_grpo",
    "gigpo": f"{_HERE}.gigpo.gigpo",
    "grpo": f"{_HERE}.grpo.grpo",
    "grpo_passk": f"{_HERE}.grpo_passk.grpo_passk",
    "maxrl": f"{_HERE}.maxrl.maxrl",
    "none": f"{_HERE}.none.none",
    "opmd": f"{_HERE}.opmd.opmd",
    "rec": f"{_HERE}.rec.rec",
    "reinforce": f"{_HERE}.reinforce.reinforce",
    "reward_filter": f"{_HERE}.reward_filter.reward_filter",
    "step_wise_grpo": f"{_HERE}.step_wise_grpo.step_wise_grpo",
}
"""Functions of this package by name; any other name is a user's."""

ADVANTAGES: "Registry[AdvantageFn]" = Registry(
    "advantage function",
    ADVANTAGE_PATHS,
    adapter="trinity.rft.algorithm.advantage_fn.adapting.adapt_advantage",
)
