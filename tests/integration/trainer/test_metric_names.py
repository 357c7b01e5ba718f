"""A step is reported by the names that Trinity-RFT's charts have."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.trainer.types import TrainBatch, batch_metrics
from tests.integration.trainer.learners import Build, stepped
from tests.integration.trainer.test_experts import mixed_batch, mixed_plan
from tests.unit.trainer.builders import make_plan, random_batch, random_pairs

GRPO: Mapping[str, object] = {
    "algorithm_type": "grpo",
    "repeat_times": 4,
    "kl_loss_fn": "k2",
    "entropy_loss_fn": "default",
    "entropy_loss_fn_args": {"entropy_coef": 0.01},
}
OF_THE_STEP = ("actor/final_loss", "actor/loss", "actor/grad_norm", "actor/lr")
OF_GRPO = (
    *OF_THE_STEP,
    "actor/entropy",
    "actor/entropy_loss",
    "actor/kl",
    "actor/kl_loss",
    "actor/kl_coef",
    "actor/pg_loss",
    "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower",
    "actor/ppo_kl",
    *(
        f"critic/{what}/{figure}"
        for what in ("score", "rewards", "advantages", "returns")
        for figure in ("mean", "max", "min")
    ),
)
LOSSES: dict[str, tuple[str, ...]] = {
    "ppo": OF_GRPO,
    "gspo": ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_loss", "actor/ppo_kl_seq"),
    "cispo": ("actor/cispo_loss", "actor/ppo_kl", "actor/unmasked_frac"),
    "sapo": (
        "actor/sapo_loss",
        "actor/ppo_kl",
        "actor/avg_soft_gate",
        "actor/avg_ratio",
        "actor/pos_adv_frac",
    ),
    "topr": ("actor/topr_loss", "actor/avg_alpha", "actor/avg_ratio"),
    "opmd": ("actor/opmd_loss",),
    "sppo": ("actor/pg_clipfrac", "actor/pg_loss"),
    "rec": ("actor/pg_clipfrac", "actor/pg_loss"),
    "importance_sampling": ("actor/pg_loss", "actor/ratio/mean", "actor/approx_kl"),
    "sft": ("actor/sft_loss",),
    "sft_is": ("actor/sft_is_loss",),
    "sft_phi": ("actor/sft_phi_loss",),
}
TAUGHT = ("advantages/mean",)
CLIPPED = ("frac_clipped", "frac_clipped_pos", "frac_clipped_neg")
ADVANTAGES: dict[str, tuple[str, ...]] = {
    "clipb": (*CLIPPED, "ES", "varS"),
    "clipv": (*CLIPPED, "stdD"),
    "on_policy_distill": ("kl/mean", "kl/std", *TAUGHT),
    "jsd": ("jsd/mean", "jsd/std", *TAUGHT),
    "jensen_shannon": ("jsd/mean", "jsd/std", *TAUGHT),
}
HEALTH = (
    *(f"ratio/p{at:02d}" for at in (1, 10, 50, 90, 99)),
    "ratio/mean",
    "ratio/min",
    "ratio/max",
    "effective_sample_size",
    "clip_fraction",
    "mask_fraction",
    "logprob_gap/mean",
    "logprob_gap/abs_mean",
    "logprob_gap/max",
    "entropy",
)


def taught(batch: TrainBatch) -> TrainBatch:
    rows = [
        replace(row, teacher_logprobs=np.full(row.response_length, -1.0, dtype=np.float32))
        for row in batch.rows
    ]
    return replace(batch, rows=rows)


BATCH = taught(random_batch(16, seed=5, step=9))


@pytest.mark.parametrize("loss", LOSSES)
def test_figures_of_a_policy_loss(learner_of: Build, model: Path, loss: str) -> None:
    learner = learner_of(make_plan(model, {**GRPO, "policy_loss_fn": loss}))
    assert set(LOSSES[loss]) <= stepped(learner, BATCH).keys()


def test_figures_of_sequence_masking(learner_of: Build, model: Path) -> None:
    masking = {"policy_loss_fn_args": {"enable_sequence_masking": True}}
    metrics = stepped(learner_of(make_plan(model, {**GRPO, **masking})), BATCH)
    assert {"actor/seq_mask/masked_tokens", "actor/seq_mask/mean_sequence_kl"} <= metrics.keys()


@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_figures_of_an_advantage(learner_of: Build, model: Path, advantage: str) -> None:
    plan = make_plan(model, {**GRPO, "advantage_fn": "clipb"})
    own = {"advantage_fn": advantage, "advantage_fn_args": {}}  # whatever the workflow brings
    plan = plan.model_copy(update={"algorithm": plan.algorithm.model_copy(update=own)})
    expected = {f"advantage/{name}" for name in ADVANTAGES[advantage]}
    assert expected <= stepped(learner_of(plan), BATCH).keys()


def test_figures_of_a_critic_and_of_a_penalty(learner_of: Build, model: Path) -> None:
    plan = make_plan(model, {"algorithm_type": "ppo", "kl_penalty_fn": "k1"})
    metrics = stepped(learner_of(plan), BATCH)
    assert {
        "critic/vf_loss",
        "critic/vf_clipfrac",
        "critic/vpred_mean",
        "critic/grad_norm",
        "critic/lr",
        "critic/returns/mean",
        "critic/values/mean",
        "advantage/kl",
        "advantage/kl_coef",
    } <= metrics.keys()


def test_figures_of_pairs(learner_of: Build, model: Path) -> None:
    metrics = stepped(learner_of(make_plan(model, {"algorithm_type": "dpo"})), random_pairs(4))
    assert {
        *OF_THE_STEP,
        "actor/dpo_loss",
        "actor/chosen_reward",
        "actor/rejected_reward",
        "actor/accuracy_mean",
    } <= metrics.keys()


@pytest.mark.parametrize("loss", ["mix", "mix_chord"])
def test_figures_of_rollouts_and_experts(learner_of: Build, model: Path, loss: str) -> None:
    plan = mixed_plan(model)
    chosen = {"policy_loss_fn": loss, "policy_loss_fn_args": {}}
    plan = plan.model_copy(update={"algorithm": plan.algorithm.model_copy(update=chosen)})
    expert = {"mix": "actor/expert/sft_loss", "mix_chord": "actor/expert/sft_phi_loss"}
    expected = {"actor/usual/pg_loss", "actor/usual/ppo_kl", expert[loss]}
    if loss == "mix_chord":
        expected.add("actor/mu")
    assert expected <= stepped(learner_of(plan), mixed_batch()).keys()


def test_the_health_of_learning_off_policy_is_told_for_all_and_by_age(
    learner_of: Build, model: Path
) -> None:
    metrics = stepped(learner_of(make_plan(model, GRPO)), BATCH)
    for scope in ("", "lag_0/", "lag_1/", "lag_2/"):
        assert {f"off_policy/{scope}{name}" for name in HEALTH} <= metrics.keys()
    assert {"actor/rollout_logprob_diff", "actor/rollout_logprob_diff_max"} <= metrics.keys()
    tokens = [metrics[f"off_policy/lag_{lag}/tokens"] for lag in range(3)]
    assert sum(tokens) == metrics["off_policy/tokens"] == BATCH.num_trained_tokens


def test_the_share_of_rows_as_long_as_can_be_is_told() -> None:
    lengths = [row.response_length for row in BATCH.rows]
    longest = max(lengths)
    figures = batch_metrics(BATCH, max_prompt_tokens=10**6, max_response_tokens=longest)
    assert figures["response_length/clip_ratio"] == lengths.count(longest) / len(lengths) > 0
    assert figures["prompt_length/clip_ratio"] == 0.0
    for what in ("prompt_length", "response_length"):
        assert {f"{what}/{figure}" for figure in ("mean", "max", "min")} <= figures.keys()
