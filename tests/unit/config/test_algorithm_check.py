"""Parts that do not go together are refused with a sentence, before anything starts."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.config.builders import DPO, GRPO, SFT, stage, write_model
from tests.unit.config.test_algorithm_planning import EXPERTS, WORKFLOW
from tests.unit.subtests import as_subtests
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.token_advantage import COMPARES_POLICIES
from trinity.algorithm.token_advantage.token_batch import (
    FloatMatrix,
    TokenAdvantages,
    TokenBatch,
)
from trinity.config.checks import algorithm as check
from trinity.config.checks.algorithm import LOSSES_WITHOUT_RATIO
from trinity.errors import UserError

RECOMPUTED: dict[str, object] = {"bypass_old_logprobs": False}
CORRECTED: dict[str, object] = {**RECOMPUTED, "rollout_correction": {"rollout_is": "token"}}
MASKED: dict[str, object] = {
    **RECOMPUTED,
    "rollout_correction": {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"},
}


def said(base: dict[str, object] = GRPO, /, **changes: object) -> str:
    """The sentences of a refusal, empty where nothing is refused."""
    try:
        stage(base, **changes)
    except UserError as error:
        return str(error)
    return ""


@as_subtests("part", ["kl_loss_fn", "kl_penalty_fn"])
@as_subtests(
    ("args", "what"),
    [
        ({"adaptive": True}, "target_kl"),
        ({"adaptive": True, "target_kl": 0.1}, "horizon"),
        ({"adaptive": True, "target_kl": -1.0, "horizon": 10}, "target_kl above 0"),
        ({"kl_coef": -0.1}, "kl_coef is -0.1"),
    ],
)
def test_an_adaptive_coefficient_needs_a_target_and_a_horizon(
    part: str, args: dict[str, object], what: str
) -> None:
    given = {"algorithm_type": "rloo", part: "k1", f"{part}_args": args}
    answer = said(algorithm=given)
    assert answer.startswith(f"stage `main`: `algorithm.{part}_args`: ")
    assert what in answer
    assert said(algorithm={**given, part: "none"}) == ""


def test_a_penalty_on_rewards_needs_an_advantage_of_the_trainer() -> None:
    assert "`grpo`: give `kl_loss_fn` instead" in said(algorithm={"kl_penalty_fn": "k1"})
    assert said(algorithm={"kl_penalty_fn": "k1", "advantage_fn": "grpo_verl"}) == ""
    for blind in ("gdpo", "jensen_shannon"):
        penalised = {"kl_penalty_fn": "k1", "advantage_fn": blind}
        assert f"at which `{blind}` does not look" in said(algorithm=penalised, buffer=WORKFLOW)
        assert said(algorithm={"advantage_fn": blind}, buffer=WORKFLOW) == ""


def test_weights_of_reward_parts_are_looked_at_before_a_start() -> None:
    def weighed(weights: object) -> str:
        given = {"advantage_fn": "gdpo", "advantage_fn_args": {"reward_weights": weights}}
        return said(algorithm=given)

    assert weighed({"accuracy": 1.0, "format": 0.2}) == ""
    assert "`algorithm.advantage_fn: gdpo`: " in weighed({"accuracy": "much"})
    assert "reward_weights is ['accuracy']" in weighed(["accuracy"])


@pytest.mark.parametrize(
    ("cause", "changes"),
    [
        ("`synchronizer.sync_interval: 2`", {"synchronizer": {"sync_interval": 2}}),
        ("`synchronizer.sync_offset: 1`", {"synchronizer": {"sync_offset": 1}}),
        (
            "`buffer.train_batch_size: 16` of 32 rows an explore step",
            {"buffer": {"train_batch_size": 16}},
        ),
    ],
)
def test_recomputing_where_rollouts_may_be_old_needs_a_correction(
    cause: str, changes: dict[str, object]
) -> None:
    answer = said(algorithm=RECOMPUTED, **changes)
    assert cause in answer
    assert "give `rollout_correction.preset: tis`" in answer
    assert said(algorithm=CORRECTED, **changes) == ""
    assert said(algorithm=MASKED, **changes) == ""
    assert said(**changes) == ""


def test_recomputing_on_policy_needs_no_correction() -> None:
    assert said(algorithm=RECOMPUTED) == ""
    assert said(algorithm=RECOMPUTED, buffer={"train_batch_size": 64}) == ""


def test_a_weight_must_not_count_twice() -> None:
    weighed = {"rollout_correction": {"rollout_is": "sequence"}}
    assert "what the ratio of `ppo` weighs already" in said(algorithm=weighed)
    assert "`rec`" in said(
        algorithm={
            **weighed,
            "policy_loss_fn": "rec",
            "policy_loss_fn_args": {"weight": "importance_sampling"},
        }
    )
    for loss in ("opmd", "gpg", "rec"):
        assert said(algorithm={**weighed, "policy_loss_fn": loss}) == ""
    masked = {"rollout_correction": MASKED["rollout_correction"]}
    assert said(algorithm=masked) == ""


@pytest.mark.parametrize(
    ("correction", "what"),
    [
        ({"rollout_is": "token", "rollout_is_threshold": "wide"}, "rollout_is_threshold"),
        ({"rollout_is": "token", "rollout_is_threshold": "5_0.5"}, "rollout_is_threshold"),
        ({"rollout_rs": "token_k9", "rollout_rs_threshold": 1.0}, "token_k9"),
        ({"rollout_rs": "seq_mean_k3"}, "rollout_rs_threshold` is missing"),
    ],
)
def test_a_correction_that_cannot_be_is_named(correction: dict[str, object], what: str) -> None:
    assert what in said(algorithm={**RECOMPUTED, "rollout_correction": correction})


def test_what_an_advantage_does_not_take_is_said_before_it_runs() -> None:
    assert "`algorithm.advantage_fn: jsd`: " in said(
        buffer=WORKFLOW,
        algorithm={"algorithm_type": "jsd", "advantage_fn_args": {"lambda_coef": 2.0}},
    )
    assert "gamma" in said(algorithm={"advantage_fn": "gae", "advantage_fn_args": {"gamma": -1.0}})


def test_an_advantage_that_compares_with_the_reference_takes_arguments() -> None:
    for name in ("gvpo", "kto", "online_dpo"):
        given = {"algorithm_type": name, "advantage_fn_args": {"beta": 0.5}}
        assert said(algorithm=given) == ""
        given["advantage_fn_args"] = {"beta": -1.0}
        assert "beta is -1.0" in said(algorithm=given)


def against_the_rollouts(batch: TokenBatch) -> TokenAdvantages:
    return TokenAdvantages(advantages_BT=-_gap(batch))


def _gap(batch: TokenBatch) -> FloatMatrix:
    return batch.logprobs_BT - batch.rollout_logprobs_BT


def of_rewards(batch: TokenBatch) -> TokenAdvantages:
    return TokenAdvantages(advantages_BT=batch.rewards_BT)


def test_an_own_advantage_that_later_updates_would_take_from_before_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that a plugin lists is called by each update, and one of rewards needs no policy."""
    comparing = {"advantage_fn": f"{__name__}.against_the_rollouts"}
    twice = {"trainer": {"ppo_epochs": 2}}
    assert said(algorithm=comparing) == ""
    assert "with `trainer.ppo_epochs: 2` the policy moves within it: add" in said(
        algorithm=comparing, **twice
    )
    by_steps = {"buffer": {"train_step": "explore_step"}}
    assert "with `buffer.train_step: explore_step`" in said(algorithm=comparing, **by_steps)
    assert said(algorithm={"advantage_fn": f"{__name__}.of_rewards"}, **twice) == ""
    for built_in in ("gvpo", "kto", "online_dpo", "m2po"):
        assert said(algorithm={"algorithm_type": built_in}, **twice) == ""
    listed = COMPARES_POLICIES | {comparing["advantage_fn"]}
    monkeypatch.setattr(check, "COMPARES_POLICIES", listed)
    assert said(algorithm=comparing, **twice) == ""


def test_a_critics_warm_up_needs_a_critic() -> None:
    warmup: object = {"critic_warmup": 5}
    assert "`trainer.critic_warmup: 5` keeps the policy still" in said(trainer=warmup)
    assert said(trainer=warmup, algorithm={"algorithm_type": "ppo"}) == ""


def test_a_critics_warm_up_leaves_the_policy_some_steps() -> None:
    ppo: object = {"algorithm_type": "ppo", "repeat_times": 8}
    assert said(algorithm=ppo, trainer={"critic_warmup": 9}) == ""
    none_left = said(algorithm=ppo, trainer={"critic_warmup": 10})
    assert "`trainer.critic_warmup: 10` leaves none of the 10 train steps" in none_left


@pytest.mark.parametrize(
    ("base", "loss", "what"),
    [
        (SFT, "ppo", "needs rewards, which rows of `sft` do not have: give `sft`, `sft_is`"),
        (SFT, "dpo", "does not train on rows of `sft`"),
        (DPO, "sft", "does not train on rows of `dpo`: give `dpo`"),
        (GRPO, "dpo", "does not train on rows of `grpo`: give `ppo`, or `algorithm_type: dpo`"),
        (SFT, "sft_phi", ""),
        (GRPO, "sft", ""),
    ],
)
def test_a_loss_suits_its_rows(base: dict[str, object], loss: str, what: str) -> None:
    answer = said(base, algorithm={"policy_loss_fn": loss})
    assert what in answer
    assert bool(answer) == bool(what)


def test_mixing_needs_rows_to_mix_in() -> None:
    mix: dict[str, object] = {"algorithm_type": "mix"}
    missing = "`buffer.trainer_input.auxiliary_buffers.sft_dataset`, which is missing"
    assert missing in said(algorithm=mix)
    named = {**mix, "sample_strategy_args": {"sft_dataset_name": "sft_datase"}}
    assert "name one of `sft_dataset` with" in said(algorithm=named, buffer=EXPERTS)
    assert missing not in said(algorithm=mix, buffer=EXPERTS)


def test_expert_rows_and_the_losses_that_know_them_come_together() -> None:
    alone = said(algorithm={"algorithm_type": "mix", "sample_strategy": "default"})
    assert "`sample_strategy: default` brings no expert rows" in alone
    unused = said(algorithm={"sample_strategy": "mix"}, buffer=EXPERTS)
    assert "on which `ppo` does not train: give `policy_loss_fn: mix`" in unused
    share = {"algorithm_type": "mix", "sample_strategy_args": {"expert_data_ratio": 1.5}}
    assert "`expert_data_ratio: 1.5` must lie between 0 and 1" in said(algorithm=share)


def test_auxiliary_buffers_are_files() -> None:
    queue: object = {"trainer_input": {"auxiliary_buffers": {"more": {"storage_type": "queue"}}}}
    assert "auxiliary_buffers.more.storage_type: queue` is never filled" in said(buffer=queue)
    bare: object = {"trainer_input": {"auxiliary_buffers": {"more": {"storage_type": "file"}}}}
    assert "auxiliary_buffers.more.path` is missing" in said(buffer=bare)


def test_expert_rows_leave_some_to_rollouts() -> None:
    share = {"algorithm_type": "mix", "sample_strategy_args": {"expert_data_ratio": 0.97}}
    batch = {**EXPERTS, "train_batch_size": 32}
    assert "`expert_data_ratio: 0.97` of a batch of 32 rows leaves none to rollouts" in said(
        algorithm=share, buffer=batch
    )


def test_expert_rows_have_a_name_of_their_own() -> None:
    named = {"algorithm_type": "mix", "sample_strategy_args": {"sft_dataset_name": "train"}}
    rows = {"train": {"storage_type": "file", "path": "/data/sft.jsonl"}}
    twice = said(algorithm=named, buffer={"trainer_input": {"auxiliary_buffers": rows}})
    assert "are called `train`: give each its own name" in twice


@pytest.mark.parametrize(
    "strategy", [{"sample_strategy": "staleness_control"}, {"algorithm_type": "mix"}]
)
def test_rows_may_be_as_old_as_the_newest_weights(strategy: dict[str, object]) -> None:
    strict: object = {**strategy, "sample_strategy_args": {"max_staleness": 2}}
    assert said(algorithm=strict, buffer=EXPERTS, synchronizer={"sync_interval": 3}) == ""
    assert "`synchronizer.sync_interval: 4` lets even the newest weights grow 3 steps old" in said(
        algorithm=strict, buffer=EXPERTS, synchronizer={"sync_interval": 4}
    )


def test_a_bound_on_staleness_is_a_whole_number_from_0_on() -> None:
    mixed = {"algorithm_type": "mix", "sample_strategy_args": {"max_staleness": -1}}
    assert "`max_staleness: -1` must be 0 or more" in said(algorithm=mixed, buffer=EXPERTS)
    half = {**mixed, "sample_strategy_args": {"max_staleness": 0.5}}
    assert "`algorithm.sample_strategy_args.max_staleness" in said(algorithm=half, buffer=EXPERTS)


def test_the_policy_with_a_hint_needs_no_teacher_beside_it() -> None:
    workflow = {"explorer_input": {"default_workflow_type": "self_distill_workflow"}}
    assert said(algorithm={"algorithm_type": "sdpo"}, buffer=workflow) == ""
    assert said(algorithm={"algorithm_type": "grpo_distill"}, buffer=workflow) == ""
    assert "`teacher_logprobs`" in said(algorithm={"algorithm_type": "sdpo"})


def test_a_penalty_on_rewards_is_for_advantages_that_look_at_them() -> None:
    workflow = {"explorer_input": {"default_workflow_type": "self_distill_workflow"}}
    refused = said(algorithm={"algorithm_type": "sdpo", "kl_penalty_fn": "k1"}, buffer=workflow)
    assert "does not look: give `kl_loss_fn`" in refused
    taken = {"algorithm_type": "grpo_distill", "kl_penalty_fn": "k1"}
    assert said(algorithm=taken, buffer=workflow) == ""


@pytest.mark.parametrize("name", ["on_policy_distill", "jsd", "jensen_shannon"])
def test_distillation_needs_a_workflow_that_brings_the_teacher(name: str) -> None:
    given = {"algorithm_type": name}
    assert "`teacher_logprobs`" in said(algorithm=given)
    assert said(algorithm=given, buffer=WORKFLOW) == ""


@pytest.mark.parametrize("name", ["on_policy_distill", "on_policy_distill_math"])
def test_a_workflow_that_asks_a_teacher_needs_one(name: str, tmp_path: Path) -> None:
    distilled = {"algorithm_type": "on_policy_distill"}
    workflow = {"explorer_input": {"default_workflow_type": f"{name}_workflow"}}

    def with_teacher(*teachers: Mapping[str, object]) -> str:
        return said(algorithm=distilled, buffer=workflow, explorer={"auxiliary_models": teachers})

    assert f"`{name}_workflow` asks a teacher with the policy's tokenizer: give one in" in (
        with_teacher()
    )
    assert with_teacher({"name": "t", "model_path": write_model(tmp_path / "t")}) == ""
    others = {"engine_type": "external", "external_model_config": {"model_name": "far"}}
    assert "does not tell: give a model with an engine of its own first" in with_teacher(others)
    assert f"`{name}_workflow` or" in said(algorithm=distilled)


def test_every_mistake_gets_a_sentence() -> None:
    answer = said(
        algorithm={**RECOMPUTED, "kl_penalty_fn": "k1"},
        synchronizer={"sync_offset": 1},
        trainer={"critic_warmup": 1},
    )
    lines = answer.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("stage `main`: ") for line in lines)


LOSSES_WITH_RATIO = {
    *("cispo", "clip_cov", "dcpo", "dpo", "dppo_kl", "dppo_tv", "geo_mean", "gspo", "gspo_token"),
    *("importance_sampling", "ipo", "kl_cov", "m2po", "mix", "mix_chord", "ppo", "rec", "sapo"),
    "topr",
}


def test_each_loss_is_known_to_have_a_ratio_or_not() -> None:
    """A new loss fails here until somebody decides: with one, `rollout_is` may weigh twice."""
    assert LOSSES_WITH_RATIO.isdisjoint(LOSSES_WITHOUT_RATIO)
    assert set(POLICY_LOSSES.builtins) == LOSSES_WITH_RATIO | LOSSES_WITHOUT_RATIO


def test_a_loss_whose_ratio_only_bounds_it_may_be_weighed() -> None:
    weighed: dict[str, object] = {
        "bypass_old_logprobs": True,
        "rollout_correction": {"rollout_is": "token"},
    }
    assert "weighs already" in said(algorithm={"policy_loss_fn": "ppo", **weighed})
    assert said(algorithm={"policy_loss_fn": "sppo", **weighed}) == ""


def test_a_moving_reference_is_one_that_something_is_compared_with() -> None:
    moves: dict[str, object] = {"reference_interval": 10, "reference_decay": 0.9}
    assert said(algorithm={"kl_loss_fn": "k2", **moves}) == ""
    assert said(DPO, algorithm=moves) == ""
    unread = said(algorithm={"kl_loss_fn": "none", **moves})
    assert "moves a reference with which nothing is compared" in unread
    still = said(algorithm={"kl_loss_fn": "k2", "reference_decay": 0.9})
    assert "`algorithm.reference_decay: 0.9` is for a reference that moves" in still
    adapter: object = {"lora_configs": [{"lora_rank": 4}]}
    own = said(algorithm={"kl_loss_fn": "k2", **moves}, model=adapter)
    assert "moves a reference that is the policy's own model with its adapter off" in own


def test_a_teacher_in_the_trainer_is_named_and_teaches_whole_sequences() -> None:
    taught: dict[str, object] = {"algorithm_type": "vocabulary_distill"}
    assert "`vocabulary_distill` needs a teacher: name its model in" in said(algorithm=taught)
    given: dict[str, object] = {"distillation": {"model_path": "/models/large", "top_k": 64}}
    assert said(algorithm={**taught, **given}) == ""
    assert said(SFT, algorithm=given) == ""
    nameless = said(algorithm={"distillation": {"top_k": 64}})
    assert "`algorithm.distillation.top_k` is for a teacher" in nameless
    assert "compares whole answers" in said(DPO, algorithm=given)
    shared: object = {"ulysses_sequence_parallel_size": 2, "rank_num": 2}
    assert "needs whole sequences" in said(algorithm={**taught, **given}, trainer=shared)


def test_a_plan_says_where_its_teacher_is() -> None:
    named: object = {"distillation": {"model_path": "/models/large"}}
    assert stage(GRPO, algorithm=named).teacher_model_path == "/models/large"
    plain = stage(GRPO)
    assert plain.teacher_model_path is None
