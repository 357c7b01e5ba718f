"""What our configurations ask for, and what the oracle should compute for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from tests.support.oracle import advantages, groups, losses
from tests.support.oracle.advantages import by_group
from tests.support.oracle.step import Objective

TERMS: Mapping[str, object] = {
    "kl_loss_fn_args": {"kl_coef": 0.3},
    "entropy_loss_fn_args": {"entropy_coef": 0.1},
}
OURS = partial(Objective, kl="k2", kl_coef=0.3, entropy_coef=0.1)
PLAIN = Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What our configuration asks for, and what it should be."""

    objective: Objective
    algorithm: Mapping[str, object] = field(default_factory=dict)
    group_advantage: groups.Formula | None = None
    kind: str = "rollouts"


def of_runs(formula: groups.Formula) -> groups.Formula:
    return lambda samples: groups.by_run(samples, formula)


GRPO = of_runs(groups.grpo)
WIDE = {"policy_loss_fn_args": {"clip_range_low": 0.05, "clip_range_high": 0.08}}
BY_ROW = "seq-mean-token-mean"
SUMS = "seq-mean-token-sum"
CASES: dict[str, Case] = {
    "ppo": Case(
        objective=OURS(
            advantage=advantages.ppo, returns=partial(advantages.returns, gamma=1, lam=1)
        ),
        algorithm=TERMS,
    ),
    "vapo": Case(
        objective=PLAIN(
            row_loss=partial(losses.ppo, high=0.28),
            advantage=partial(advantages.vapo, alpha=0.2, least=0.4),
            returns=partial(advantages.returns, gamma=1, lam=1),
        ),
        algorithm={"advantage_fn_args": {"alpha": 0.2, "least_lam": 0.4}},
    ),
    "pf_ppo": Case(
        objective=PLAIN(
            kl="k2",
            kl_coef=0.3,
            advantage=partial(advantages.pf_ppo, power=2.0),
            returns=partial(advantages.returns, gamma=1, lam=1),
        ),
        algorithm={"kl_loss_fn_args": {"kl_coef": 0.3}},
    ),
    "grpo": Case(objective=OURS(), algorithm=TERMS, group_advantage=GRPO),
    "grpo_verl": Case(objective=OURS(advantage=by_group(advantages.grpo)), algorithm=TERMS),
    "dr_grpo": Case(
        objective=PLAIN(mode="seq-mean-token-sum-norm"), group_advantage=of_runs(groups.dr_grpo)
    ),
    "dapo": Case(
        objective=PLAIN(entropy_coef=0.1, row_loss=partial(losses.ppo, high=0.28)),
        algorithm={"entropy_loss_fn_args": {"entropy_coef": 0.1}},
        group_advantage=groups.without_equal(GRPO),
    ),
    "maxrl": Case(objective=PLAIN(), group_advantage=of_runs(groups.maxrl)),
    "gfpo": Case(
        objective=PLAIN(
            advantage=by_group(partial(advantages.gfpo, num_kept=3)),
        ),
        algorithm={"advantage_fn_args": {"num_kept": 3}},
    ),
    "gvpo": Case(
        objective=PLAIN(batch_loss=partial(advantages.gvpo_loss, beta=0.3), mode=SUMS),
        algorithm={"advantage_fn_args": {"beta": 0.3}},
    ),
    "kto": Case(
        objective=PLAIN(
            batch_loss=partial(advantages.kto_loss, beta=0.3, good=1.5, bad=0.5), mode=SUMS
        ),
        algorithm={
            "advantage_fn_args": {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.5}
        },
    ),
    "online_dpo": Case(
        objective=PLAIN(batch_loss=partial(advantages.online_dpo_loss, beta=0.3), mode=SUMS),
        algorithm={"advantage_fn_args": {"beta": 0.3}},
    ),
    "reinforceplusplus": Case(
        objective=OURS(advantage=advantages.reinforce_plus_plus), algorithm=TERMS
    ),
    "rloo": Case(objective=OURS(advantage=by_group(advantages.rloo)), algorithm=TERMS),
    "opmd": Case(
        objective=OURS(row_loss=partial(losses.opmd, tau=1.0)),
        algorithm=TERMS,
        group_advantage=of_runs(groups.opmd),
    ),
    "asymre": Case(
        objective=PLAIN(row_loss=partial(losses.opmd, tau=1.0)),
        group_advantage=of_runs(groups.asymre),
    ),
    "topr": Case(
        objective=OURS(row_loss=partial(losses.topr, threshold=0.0)),
        algorithm=TERMS,
        group_advantage=lambda samples: samples.rewards,
    ),
    "cispo": Case(
        objective=OURS(row_loss=partial(losses.cispo, low=1.0, high=0.28)),
        algorithm=TERMS,
        group_advantage=GRPO,
    ),
    "gspo": Case(
        objective=OURS(row_loss=partial(losses.gspo, low=0.05, high=0.08), mode=BY_ROW),
        algorithm={**TERMS, **WIDE},
        group_advantage=GRPO,
    ),
    "gspo_token": Case(
        objective=OURS(row_loss=partial(losses.gspo_token, low=0.05, high=0.08), mode=BY_ROW),
        algorithm={**TERMS, **WIDE},
        group_advantage=GRPO,
    ),
    "sapo": Case(
        objective=OURS(row_loss=partial(losses.sapo, positive=1.0, negative=1.05, detached=False)),
        algorithm=TERMS,
        group_advantage=GRPO,
    ),
    "dcpo": Case(
        objective=PLAIN(
            entropy_coef=0.1, row_loss=partial(losses.dcpo, low=0.16, high=0.2, c=10.0), mode=BY_ROW
        ),
        algorithm={"entropy_loss_fn_args": {"entropy_coef": 0.1}},
        group_advantage=GRPO,
    ),
    "m2po": Case(
        objective=PLAIN(entropy_coef=0.1, threshold=0.04),
        algorithm={"entropy_loss_fn_args": {"entropy_coef": 0.1}},
        group_advantage=GRPO,
    ),
    "sppo": Case(
        objective=PLAIN(row_loss=partial(losses.sppo, epsilon=0.3)),
        group_advantage=of_runs(groups.opmd),
    ),
    "rec": Case(
        objective=OURS(
            row_loss=partial(
                losses.rec,
                clip_mode="one-side",
                weight="importance_sampling",
                regularizer="k2",
                coef=0.05,
                temp=1.0,
            )
        ),
        algorithm={
            **TERMS,
            "policy_loss_fn_args": {
                "clip_mode": "one-side",
                "weight": "importance_sampling",
                "regularizer": "k2",
                "regularizer_coef": 0.05,
            },
        },
        group_advantage=of_runs(groups.rec),
    ),
    "raft": Case(
        objective=PLAIN(row_loss=losses.sft), group_advantage=of_runs(groups.above_the_mean)
    ),
    "mix": Case(
        objective=OURS(expert_loss=losses.sft, expert_share=0.3),
        algorithm={**TERMS, "policy_loss_fn_args": {"mu": 0.3}},
        group_advantage=GRPO,
        kind="experts",
    ),
    "mix_chord": Case(
        objective=OURS(expert_loss=partial(losses.sft_phi, cutoff=1.0), expert_share=0.4),
        algorithm={
            **TERMS,
            "policy_loss_fn_args": {"mu_warmup_steps": 2, "mu_peak": 0.8, "mu_valley": 0.1},
        },
        group_advantage=GRPO,
        kind="experts",
    ),
    "multi_step_grpo": Case(
        objective=OURS(), algorithm=TERMS, group_advantage=groups.step_wise_grpo
    ),
    "gigpo": Case(objective=OURS(), algorithm=TERMS, group_advantage=groups.gigpo),
    "on_policy_distill": Case(
        objective=PLAIN(advantage=partial(advantages.teachers, pull=lambda t, s: t - s))
    ),
    "sdpo": Case(objective=PLAIN(advantage=partial(advantages.teachers, pull=lambda t, s: t - s))),
    "grpo_distill": Case(
        objective=PLAIN(advantage=partial(advantages.grpo_with_teacher, coef=0.5)),
        algorithm={"advantage_fn_args": {"kl_coef": 0.5}},
    ),
    "vocabulary_distill": Case(
        objective=PLAIN(row_loss=losses.gpg, distillation_coef=0.7),
        algorithm={"distillation": {"coef": 0.7, "divergence": "reverse"}},
        group_advantage=lambda samples: 0 * samples.rewards,
    ),
    "jsd": Case(objective=PLAIN(advantage=partial(advantages.teachers, pull=advantages.jsd))),
    "jensen_shannon": Case(
        objective=PLAIN(advantage=partial(advantages.teachers, pull=advantages.jensen_shannon))
    ),
    "sft": Case(objective=PLAIN(row_loss=losses.sft), kind="data"),
    "cpt": Case(objective=PLAIN(row_loss=losses.sft), kind="data"),
    "dpo": Case(
        objective=PLAIN(pair_loss=partial(losses.dpo, beta=0.1), entropy_coef=0.1),
        algorithm={"entropy_loss_fn_args": {"entropy_coef": 0.1}},
        kind="pairs",
    ),
    "ipo": Case(
        objective=PLAIN(pair_loss=partial(losses.ipo, beta=0.1, normalized=True)), kind="pairs"
    ),
    "simpo": Case(
        objective=PLAIN(pair_loss=partial(losses.simpo, beta=2.0, gamma=1.0)), kind="pairs"
    ),
    "orpo": Case(objective=PLAIN(pair_loss=partial(losses.orpo, beta=0.1)), kind="pairs"),
}
PATHS: dict[str, Mapping[str, object]] = {
    "padded": {"use_remove_padding": False},
    "cut": {"max_token_len_per_gpu": 64},
    "padded and cut": {"use_remove_padding": False, "max_token_len_per_gpu": 64},
    "chunked head": {"use_fused_kernels": True, "max_token_len_per_gpu": 80},
    "shared prompts": {"use_prefix_grouper": True},
    "shared prompts, cut, chunked and computed again": {
        "use_prefix_grouper": True,
        "max_token_len_per_gpu": 64,
        "entropy_from_logits_with_chunking": True,
        "enable_gradient_checkpointing": True,
    },
}
"""Ways of computing, beside packed rows in one call."""
OF_PATHS = ("grpo", "ppo", "dpo", "mix", "vocabulary_distill", "sft")
MODES = ("token-mean", "token-sum", SUMS, BY_ROW, "seq-mean-token-sum-norm")
KL_ESTIMATORS = ("k1", "k2", "k3", "low_var_kl", "abs", "corrected_k3", "k1+", "k3+")
PROXIMAL = {"bypass_old_logprobs": False}


def grpo_with(objective: Objective, **algorithm: object) -> Case:
    """GRPO whose gradient has all terms."""
    return Case(objective=objective, algorithm={**TERMS, **algorithm}, group_advantage=GRPO)


TERM_CASES: dict[str, tuple[str, Case]] = {
    **{f"mode {m}": ("grpo", grpo_with(OURS(mode=m), loss_agg_mode=m)) for m in MODES[1:]},
    **{f"kl {kl}": ("grpo", grpo_with(OURS(kl=kl), kl_loss_fn=kl)) for kl in KL_ESTIMATORS},
    **{
        f"penalty {kl}": (
            "reinforceplusplus",
            Case(
                objective=PLAIN(
                    advantage=partial(advantages.reinforce_plus_plus, gamma=0.9),
                    penalty=kl,
                    penalty_coef=0.2,
                ),
                algorithm={
                    "kl_loss_fn": "none",
                    "kl_penalty_fn": kl,
                    "kl_penalty_fn_args": {"kl_coef": 0.2},
                    "advantage_fn_args": {"gamma": 0.9},
                },
            ),
        )
        for kl in ("k1", "k2", "low_var_kl")
    },
    "ratios to the policy before": ("grpo", grpo_with(OURS(old_is_policy=True), **PROXIMAL)),
    "correction": (
        "grpo",
        grpo_with(
            OURS(old_is_policy=True, largest_correction=1.1),
            **PROXIMAL,
            rollout_correction={"rollout_is": "token", "rollout_is_threshold": 1.1},
        ),
    ),
    "discounts": (
        "ppo",
        Case(
            objective=PLAIN(
                advantage=partial(advantages.ppo, gamma=0.9, lam=0.8),
                returns=partial(advantages.returns, gamma=0.9, lam=0.8),
                kl="k2",
                kl_coef=0.001,
            ),
            algorithm={"advantage_fn_args": {"gamma": 0.9, "lam": 0.8}},
        ),
    ),
    "forward distillation": (
        "vocabulary_distill",
        replace(
            CASES["vocabulary_distill"],
            objective=PLAIN(row_loss=losses.gpg, distillation_coef=0.7, distillation="forward"),
            algorithm={"distillation": {"coef": 0.7, "divergence": "forward"}},
        ),
    ),
}
