"""Token advantages by name: computed by the trainer, per token, over the whole batch."""

from typing import TYPE_CHECKING

from trinity.plugins import Registry

if TYPE_CHECKING:
    from trinity.algorithm.token_advantage.need import Need
    from trinity.algorithm.token_advantage.token_batch import TokenAdvantageFn

_HERE = "trinity.algorithm.token_advantage"

TOKEN_ADVANTAGES: "Registry[TokenAdvantageFn]" = Registry(
    "token advantage function",
    {
        "asymre_verl": f"{_HERE}.asymre_verl.asymre_verl",
        "clipb": f"{_HERE}.clipb.clipb",
        "clipv": f"{_HERE}.clipv.clipv",
        "gae": f"{_HERE}.ppo.ppo",
        "gdpo": f"{_HERE}.gdpo.gdpo",
        "gfpo": f"{_HERE}.gfpo.gfpo",
        "gpg": f"{_HERE}.gpg.gpg",
        "grpo_distill": f"{_HERE}.grpo_distill.grpo_distill",
        "grpo_verl": f"{_HERE}.grpo_verl.grpo_verl",
        "gvpo": f"{_HERE}.gvpo.gvpo",
        "jensen_shannon": f"{_HERE}.jensen_shannon.jensen_shannon",
        "jsd": f"{_HERE}.jsd.jsd",
        "kto": f"{_HERE}.kto.kto",
        "on_policy_distill": f"{_HERE}.on_policy_distill.on_policy_distill",
        "online_dpo": f"{_HERE}.online_dpo.online_dpo",
        "opmd_verl": f"{_HERE}.opmd_verl.opmd_verl",
        "opo": f"{_HERE}.opo.opo",
        "optimal_token_baseline": f"{_HERE}.optimal_token_baseline.optimal_token_baseline",
        "pf_ppo": f"{_HERE}.pf_ppo.pf_ppo",
        "ppo": f"{_HERE}.ppo.ppo",
        "ppo_unmasked": f"{_HERE}.ppo_unmasked.ppo_unmasked",
        "reinforce_plus_plus": f"{_HERE}.reinforceplusplus.reinforceplusplus",
        "reinforce_plus_plus_baseline": (
            f"{_HERE}.reinforce_plus_plus_baseline.reinforce_plus_plus_baseline"
        ),
        "reinforceplusplus": f"{_HERE}.reinforceplusplus.reinforceplusplus",
        "reinforceplusplus_unmasked": (
            f"{_HERE}.reinforceplusplus_unmasked.reinforceplusplus_unmasked"
        ),
        "remax": f"{_HERE}.remax.remax",
        "rloo": f"{_HERE}.rloo.rloo",
        "tir_optimal_token_baseline": (
            f"{_HERE}.tir_optimal_token_baseline.tir_optimal_token_baseline"
        ),
        "vapo": f"{_HERE}.vapo.vapo",
    },
    adapter="trinity.rft.algorithm.advantage_fn.adapting.adapt_advantage",
)

NEEDS: "dict[str, frozenset[Need]]" = {
    "clipb": frozenset({"entropies"}),
    "clipv": frozenset({"entropies", "discriminator"}),
    "gae": frozenset({"values"}),
    "gdpo": frozenset({"reward_parts"}),
    "grpo_distill": frozenset({"teacher"}),
    "jensen_shannon": frozenset({"teacher"}),
    "jsd": frozenset({"teacher"}),
    "kto": frozenset({"reference"}),
    "on_policy_distill": frozenset({"teacher"}),
    "online_dpo": frozenset({"reference"}),
    "optimal_token_baseline": frozenset({"collision"}),
    "pf_ppo": frozenset({"values"}),
    "ppo": frozenset({"values"}),
    "ppo_unmasked": frozenset({"values"}),
    "remax": frozenset({"baselines"}),
    "tir_optimal_token_baseline": frozenset({"collision"}),
    "vapo": frozenset({"values"}),
}
"""Additional inputs that a function needs, by the function's name. A plugin adds its own:

NEEDS["mine"] = frozenset({"values"})"""

NEEDS_OF_CLASSES: "dict[str, frozenset[Need]]" = {}
"""The same for classes of Trinity-RFT, by their name without a module, once they are loaded."""

COMPARES_POLICIES = {"gvpo", "kto", "online_dpo"}
"""Advantages that compare the policy with another model. For these the trainer computes its own
log-probabilities; in a step with several updates, each update recomputes the advantages with the
current policy. A plugin adds its own:

COMPARES_POLICIES.add("mine")"""


def needs_of(name: str) -> "frozenset[Need]":
    """Returns the data that the trainer must compute or find for the advantage with this name."""
    own = NEEDS_OF_CLASSES.get(name.rpartition(".")[2], frozenset())
    return NEEDS.get(name, frozenset()) | own
