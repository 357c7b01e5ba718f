"""Which parts and arguments a stage's algorithm has."""

import pytest

from tests.unit.config.builders import CPT, DPO, GRPO, SFT, config, stage
from tests.unit.subtests import as_subtests
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.config.checks.advice import advise
from trinity.config.checks.algorithm import TAUGHT_BY_LOSS
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.planning import plan_experiment
from trinity.config.sizing.stage_sizes import training_settings_of
from trinity.errors import UserError

WORKFLOW: dict[str, object] = {
    "explorer_input": {"default_workflow_type": "my.workflow.WithTeacher"}
}
EXPERTS: dict[str, object] = {
    "trainer_input": {
        "auxiliary_buffers": {"sft_dataset": {"storage_type": "file", "path": "/data/e.jsonl"}}
    }
}


def only(name: str, **changes: object) -> StagePlan:
    """The plan of a stage that says nothing of its algorithm but the type."""
    mode = ALGORITHM_TYPES.get(name).modes[0]
    base = {**(GRPO if mode == "both" else SFT), "algorithm": {"algorithm_type": name}}
    return stage(base, **changes)


@as_subtests("name", ALGORITHM_TYPES.builtins)
def test_every_algorithm_runs_with_its_own_defaults(name: str) -> None:
    declared = ALGORITHM_TYPES.get(name)
    brought = EXPERTS if declared.sample_strategy == "mix" else {}
    least = {"repeat_times": declared.min_repeat_times} if declared.min_repeat_times > 1 else {}
    taught = {"distillation": {"model_path": "/models/large"}} if name == TAUGHT_BY_LOSS else {}
    planned = only(name, buffer={**WORKFLOW, **brought}, algorithm={**least, **taught})
    algorithm = planned.algorithm
    assert algorithm.algorithm_type == name
    assert algorithm.row_schema == declared.schema
    assert algorithm.repeat_times == max(1, declared.min_repeat_times)
    assert algorithm.advantage_fn == declared.advantage_fn
    assert algorithm.policy_loss_fn == declared.policy_loss_fn
    assert algorithm.loss_agg_mode == declared.loss_agg_mode
    assert planned.needs_critic == declared.needs_critic
    assert (planned.critic_model_path is not None) == declared.needs_critic
    for part, arguments in declared.args.items():
        assert arguments.items() <= getattr(algorithm, f"{part}_args").items()


def test_an_explore_step_has_the_rollouts_that_the_algorithm_takes() -> None:
    planned = stage(GRPO, algorithm={"algorithm_type": "dapo", "repeat_times": 16})
    assert planned.algorithm.repeat_times == 16
    assert planned.taskset is not None and planned.taskset.repeat_times == 16
    assert planned.rows_per_explore_step == planned.train_batch_size == 4 * 16
    assert stage(GRPO, algorithm={"repeat_times": 1}).algorithm.repeat_times == 1


def test_advantages_are_made_where_they_belong() -> None:
    assert not only("grpo").algorithm.advantage_in_trainer
    assert only("grpo_verl").algorithm.advantage_in_trainer
    assert stage(GRPO, algorithm={"advantage_fn": "rloo"}).algorithm.advantage_in_trainer
    assert not only("sft").algorithm.advantage_in_trainer


def test_a_critic_goes_with_the_advantage_that_asks_for_it() -> None:
    assert stage(GRPO, algorithm={"advantage_fn": "gae"}).needs_critic
    assert not stage(GRPO, algorithm={"algorithm_type": "ppo", "advantage_fn": "grpo"}).needs_critic


def test_a_critic_starts_from_the_policy_or_a_model_of_its_own() -> None:
    assert only("ppo").critic_model_path == "/models/tiny"
    own: object = {"critic_model_path": "/models/critic"}
    assert only("ppo", model=own).critic_model_path == "/models/critic"


def test_a_critic_has_a_learning_rate_of_its_own() -> None:
    planned = only("ppo", trainer={"critic": {"optimizer": {"lr_warmup_steps": 2}}})
    assert [planned.critic_learning_rate(step) for step in (1, 2, 3)] == [5e-6, 1e-5, 1e-5]
    assert planned.learning_rate(1) == 1e-6


def test_arguments_of_the_type_go_with_its_own_function_alone() -> None:
    dapo: dict[str, object] = {"algorithm_type": "dapo"}
    assert stage(GRPO, algorithm=dapo).algorithm.policy_loss_fn_args["clip_range_high"] == 0.28
    given = stage(GRPO, algorithm={**dapo, "policy_loss_fn_args": {"clip_range_high": 0.3}})
    assert given.algorithm.policy_loss_fn_args["clip_range_high"] == 0.3
    other = stage(GRPO, algorithm={**dapo, "policy_loss_fn": "cispo", "advantage_fn": "rloo"})
    assert other.algorithm.policy_loss_fn_args["mask_clip_range_high"] == 0.28
    assert other.algorithm.policy_loss_fn_args["clip_range_low"] == 1.0
    assert other.algorithm.advantage_fn_args == {"unit": "run"}


def test_clip_higher_and_dynamic_sampling_go_with_any_group_algorithm() -> None:
    parts: dict[str, object] = {
        "advantage_fn_args": {"std_threshold": 0.0},
        "policy_loss_fn_args": {"clip_range_high": 0.28},
    }
    for name in ("grpo", "gspo", "cispo"):
        algorithm = stage(GRPO, algorithm={"algorithm_type": name, **parts}).algorithm
        assert algorithm.advantage_fn_args["std_threshold"] == 0.0
        assert algorithm.policy_loss_fn_args["clip_range_high"] == 0.28


def test_every_key_of_the_section_acts() -> None:
    given: dict[str, object] = {
        "algorithm_type": "ppo",
        "repeat_times": 3,
        "sample_strategy": "warmup",
        "advantage_fn": "grpo_verl",
        "advantage_fn_args": {"epsilon": 0.5},
        "policy_loss_fn": "gspo",
        "policy_loss_fn_args": {"clip_range_low": 0.5},
        "kl_penalty_fn": "k1",
        "kl_penalty_fn_args": {"adaptive": True, "target_kl": 0.1, "horizon": 1000},
        "kl_loss_fn": "corrected_k3",
        "kl_loss_fn_args": {"kl_coef": 0.5},
        "entropy_loss_fn": "none",
        "loss_agg_mode": "seq-mean-token-sum",
        "bypass_old_logprobs": False,
        "rollout_correction": {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"},
    }
    algorithm = stage(GRPO, algorithm=given).algorithm
    assert algorithm.repeat_times == 3
    assert algorithm.sample_strategy == "warmup"
    assert (algorithm.advantage_fn, algorithm.advantage_fn_args["epsilon"]) == ("grpo_verl", 0.5)
    assert (algorithm.policy_loss_fn, algorithm.policy_loss_fn_args["clip_range_low"]) == (
        "gspo",
        0.5,
    )
    assert algorithm.kl_penalty_fn == "k1"
    assert algorithm.kl_penalty_fn_args == {
        "kl_coef": 0.001,
        "adaptive": True,
        "target_kl": 0.1,
        "horizon": 1000,
    }
    assert (algorithm.kl_loss_fn, algorithm.kl_loss_fn_args["kl_coef"]) == ("corrected_k3", 0.5)
    assert algorithm.entropy_loss_fn == "none"
    assert algorithm.loss_agg_mode == "seq-mean-token-sum"
    assert not algorithm.bypass_old_logprobs
    assert algorithm.rollout_correction.rollout_is_threshold == "0.5_5.0"
    assert algorithm.needs_proximal


def test_the_divisor_of_sums_is_the_longest_response_unless_given() -> None:
    usual = stage(GRPO)
    assert usual.loss_scale_factor == usual.max_response_tokens
    assert stage(GRPO, algorithm={"loss_scale_factor": 77}).loss_scale_factor == 77


def test_what_compares_two_policies_has_the_trainer_compute_its_own() -> None:
    assert stage(GRPO, algorithm={"algorithm_type": "gvpo"}).algorithm.needs_proximal
    assert stage(GRPO, algorithm={"algorithm_type": "m2po"}).algorithm.needs_proximal
    assert not stage(GRPO).algorithm.needs_proximal


def test_only_some_losses_of_pairs_load_a_reference() -> None:
    needs = {
        name: stage(DPO, algorithm={"algorithm_type": name}).needs_reference
        for name in ("dpo", "ipo", "simpo", "orpo")
    }
    assert needs == {"dpo": True, "ipo": True, "simpo": False, "orpo": False}


def test_a_loss_brings_its_way_to_one_number_unless_the_user_has_another() -> None:
    def mode(**given: object) -> str:
        return stage(GRPO, algorithm=given).algorithm.loss_agg_mode

    assert mode() == "token-mean"
    assert mode(policy_loss_fn="gspo") == mode(algorithm_type="gspo") == "seq-mean-token-mean"
    assert mode(policy_loss_fn="gspo", loss_agg_mode="token-mean") == "token-mean"
    assert mode(algorithm_type="dr_grpo", policy_loss_fn="cispo") == "seq-mean-token-sum-norm"


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ({"kl_loss_fn": "none"}, False),
        ({"kl_loss_fn": "k3"}, True),
        ({"kl_loss_fn": "none", "advantage_fn": "rloo", "kl_penalty_fn": "k1"}, True),
    ],
)
def test_a_reference_is_loaded_where_something_looks_at_it(
    given: dict[str, object], needed: bool
) -> None:
    assert stage(GRPO, algorithm=given).needs_reference == needed


def test_a_row_that_no_micro_batch_holds_is_one_of_its_own() -> None:
    told = "a longer one is a micro-batch of its own"
    for base, enough in ((DPO, 48), (SFT, 24)):
        for tokens, is_told in ((enough, False), (enough - 1, True)):
            written = config(base, trainer={"max_token_len_per_gpu": tokens})
            plan = plan_experiment(written)
            assert plan.stages[0].max_token_len_per_gpu == tokens
            assert any(told in text for text in advise(plan)) == is_told
            assert training_settings_of(plan.stages[0]).tokens == enough


def test_arguments_of_trinity_rfts_mixed_losses_have_no_effect() -> None:
    given: dict[str, object] = {"mu": 0.2, "ngpus_trainer": 4, "train_batch_size_expert": 64}
    given |= {"repeat_times": 8, "read_batch_size_expert": 64}
    changes = {"algorithm_type": "mix", "repeat_times": 8, "policy_loss_fn_args": given}
    plan = plan_experiment(config(GRPO, algorithm=changes, buffer=EXPERTS))
    assert plan.stages[0].algorithm.policy_loss_fn_args["mu"] == 0.2
    assert "ngpus_trainer" not in plan.stages[0].algorithm.policy_loss_fn_args
    with pytest.raises(UserError, match="`ppo` has no argument"):
        stage(GRPO, algorithm={"policy_loss_fn_args": {"ngpus_trainer": 4}})
    with pytest.raises(UserError, match="has no argument"):
        wrong = {**changes, "policy_loss_fn_args": {"ngpus_trainers": 4}}
        stage(GRPO, algorithm=wrong, buffer=EXPERTS)


def test_the_older_argument_of_mixed_losses_is_the_newer_one() -> None:
    for by_token, mode in ((True, "token-mean"), (False, "seq-mean-token-mean")):
        given: dict[str, object] = {"use_token_level_loss_in_sft": by_token}
        changes = {"algorithm_type": "mix", "repeat_times": 8, "policy_loss_fn_args": given}
        plan = plan_experiment(config(GRPO, algorithm=changes, buffer=EXPERTS))
        assert plan.stages[0].algorithm.policy_loss_fn_args["sft_loss_agg_mode"] == mode


def test_mix_takes_the_only_auxiliary_buffer_and_the_others_are_told() -> None:
    rows = EXPERTS["trainer_input"]["auxiliary_buffers"]["sft_dataset"]  # type: ignore[index]
    mix: dict[str, object] = {"algorithm_type": "mix", "repeat_times": 8}

    def planned(*names: str, **algorithm: object) -> ExperimentPlan:
        buffers = {"trainer_input": {"auxiliary_buffers": dict.fromkeys(names, rows)}}
        return plan_experiment(config(GRPO, algorithm=algorithm, buffer=buffers))

    def unread(plan: ExperimentPlan) -> list[str]:
        return [text for text in advise(plan) if "is not read" in text]

    only_one = planned("mine", **mix)
    assert only_one.stages[0].expert_buffer is not None
    assert only_one.stages[0].expert_buffer.name == "mine"
    assert not unread(only_one)
    (told,) = unread(planned("sft_dataset", "other", **mix))
    assert "auxiliary_buffers.other` is not read" in told
    (told,) = unread(planned("other"))
    assert "`sample_strategy: default` takes no rows of data" in told
    with pytest.raises(UserError, match="name one of `one`, `two`"):
        planned("one", "two", **mix)


def test_pairs_need_a_reference() -> None:
    assert stage(DPO).needs_reference and stage(DPO).algorithm.kl_loss_fn == "none"


def test_parts_that_a_stage_on_data_inherits_from_rollouts_do_nothing() -> None:
    inherited: dict[str, object] = {
        "algorithm_type": "sft",
        "advantage_fn": "rloo",
        "advantage_fn_args": {"anything": 1},
        "kl_penalty_fn": "k1",
        "sample_strategy": "mix",
        "bypass_old_logprobs": False,
        "rollout_correction": {"rollout_is": "token"},
    }
    algorithm = stage(SFT, algorithm=inherited).algorithm
    assert algorithm == stage(SFT).algorithm
    assert stage(CPT).algorithm.row_schema == "cpt"


def test_the_entropys_coefficient_may_stay_where_its_loss_is_taken_out() -> None:
    given: dict[str, object] = {
        "entropy_loss_fn": "none",
        "entropy_loss_fn_args": {"entropy_coef": 0.01},
        "kl_loss_fn": "none",
        "kl_loss_fn_args": {"kl_coef": 0.01},
    }
    assert stage(GRPO, algorithm=given).algorithm.entropy_loss_fn == "none"


@as_subtests(
    ("given", "said"),
    [
        ({"algorithm_type": "gspoo"}, "`algorithm.algorithm_type: gspoo` is not supported"),
        ({"algorithm_type": "dr_grp"}, "did you mean `dr_grpo`?"),
        ({"algorithm_type": "dpo"}, "runs in `mode: train`, not in `mode: both`"),
        ({"advantage_fn": "rlooo"}, "did you mean `rloo`? (a dotted path names"),
        ({"policy_loss_fn": "cipso"}, "did you mean `cispo`? (a dotted path names"),
        ({"sample_strategy": "defualt"}, "did you mean `default`?"),
        (
            {"advantage_fn_args": {"epsilom": 1.0}},
            "`grpo` has no argument `algorithm.advantage_fn_args.epsilom`: did you mean `epsilon`?",
        ),
        (
            {"advantage_fn": "dr_grpo", "advantage_fn_args": {"scale_all": 1.0}},
            "`dr_grpo` has no argument `algorithm.advantage_fn_args.scale_all`",
        ),
        (
            {"policy_loss_fn_args": {"clip_range": "wide"}},
            "`algorithm.policy_loss_fn_args.clip_range` must be a number, not 'wide'",
        ),
        (
            {"policy_loss_fn": "rec", "policy_loss_fn_args": {"clip_mode": "both-sides"}},
            "`algorithm.policy_loss_fn_args.clip_mode` must be `none` or `one-side` or",
        ),
        (
            {"policy_loss_fn_args": {"enable_sequence_masking": 1}},
            "`algorithm.policy_loss_fn_args.enable_sequence_masking` must be true or false, not 1",
        ),
        ({"kl_loss_fn_args": {"coef": 1}}, "did you mean `kl_coef`?"),
        ({"entropy_loss_fn_args": {"entropy_coef": "x"}}, "must be a number, not 'x'"),
    ],
)
def test_what_is_misspelt_or_of_the_wrong_kind_is_named(
    given: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        stage(GRPO, algorithm=given)
    assert str(caught.value).startswith("stage `main`: ")
    assert said in str(caught.value)
