"""What follows from a configuration."""

from datetime import datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.unit.config.builders import GRPO, SFT, config, stage
from tests.unit.subtests import as_subtests
from trinity.config.checks.advice import advise
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError


def test_a_plan_survives_the_wire() -> None:
    stages: object = [{"stage_name": "a"}, {"stage_name": "b", "buffer": {"total_steps": 3}}]
    plan = plan_experiment(config(stages=stages))
    assert ExperimentPlan.model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize("directory", ["", "1", "runs/a", "./a", "../a"])
def test_a_plan_whose_files_would_lie_below_a_services_working_folder_is_refused(
    directory: str,
) -> None:
    plan = plan_experiment(config()).model_dump(mode="json") | {"job_dir": directory}
    with pytest.raises(ValidationError, match="job_dir"):
        ExperimentPlan.model_validate(plan)


def test_without_stages_there_is_one_called_main() -> None:
    assert [s.name for s in plan_experiment(config()).stages] == ["main"]


def test_job_directory_and_label_are_project_group_name(tmp_path: Path) -> None:
    plan = plan_experiment(config(group="g", checkpoint_root_dir=str(tmp_path)))
    assert plan.label == "demo/g/sums"
    assert plan.job_path == tmp_path / "demo" / "g" / "sums"


def test_a_run_that_must_not_continue_gets_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "demo/sums/old").mkdir(parents=True)
    fresh = config(checkpoint_root_dir=str(tmp_path), continue_from_checkpoint=False)
    plan = plan_experiment(fresh, now=datetime(2030, 1, 2, 3, 4, 5))
    assert plan.label == "demo/sums_20300102030405"
    assert plan.job_path.name == "sums_20300102030405"


def test_planning_leaves_the_configuration_as_it_was_written() -> None:
    planned = stage()
    assert planned.config.buffer.train_batch_size == 0
    assert planned.train_batch_size == 32
    assert planned.config.algorithm.advantage_fn is None
    assert planned.algorithm.advantage_fn == "grpo"


def test_stages_are_laid_deeply_over_the_global_configuration() -> None:
    plan = plan_experiment(
        config(
            algorithm={"optimizer": {"lr": 1e-3, "weight_decay": 0.5}},
            stages=[
                {"stage_name": "one", "algorithm": {"optimizer": {"lr": 1e-4}}},
                {"stage_name": "two", "buffer": {"explorer_input": {"taskset": {"split": "t"}}}},
            ],
        )
    )
    one, two = plan.stages
    assert one.config.algorithm.optimizer.lr == 1e-4
    assert one.config.algorithm.optimizer.weight_decay == 0.5
    assert one.algorithm.repeat_times == 8
    assert two.config.algorithm.optimizer.lr == 1e-3
    assert two.taskset is not None
    assert (two.taskset.split, two.taskset.path) == ("t", "/data/train.jsonl")
    assert (one.index, two.index) == (0, 1)
    assert one.config.stages == ()


def test_a_stage_replaces_lists_whole() -> None:
    base = {"explorer_input": {"eval_tasksets": [{"path": "/a"}, {"path": "/b"}]}}
    above = {"explorer_input": {"eval_tasksets": [{"path": "/c"}]}}
    plan = plan_experiment(config(buffer=base, stages=[{"stage_name": "s", "buffer": above}]))
    assert [t.path for t in plan.stages[0].eval_tasksets] == ["/c"]


def test_two_stages_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="two of `stages` are called `a`"):
        plan_experiment(config(stages=[{"stage_name": "a"}, {"stage_name": "a"}]))


def test_mode_both_needs_both_roles_and_mode_train_the_trainer_alone() -> None:
    assert stage().roles == ("trainer", "explorer")
    assert stage(SFT).roles == ("trainer",)
    assert stage(SFT).taskset is None
    assert not stage(SFT).needs_rollout


def test_grpo_and_sft_bring_their_parts() -> None:
    grpo, sft = stage().algorithm, stage(SFT).algorithm
    assert (grpo.policy_loss_fn, grpo.kl_loss_fn, grpo.entropy_loss_fn) == ("ppo", "k2", "default")
    assert (sft.policy_loss_fn, sft.kl_loss_fn, sft.entropy_loss_fn) == ("sft", "none", "none")
    assert stage().needs_reference
    assert not stage(algorithm={"kl_loss_fn": "none"}).needs_reference


def test_arguments_lie_over_the_functions_own() -> None:
    given: object = {"policy_loss_fn_args": {"clip_range": 0.3, "clip_range_high": 0.4}}
    arguments = stage(algorithm=given).algorithm.policy_loss_fn_args
    assert (arguments["clip_range"], arguments["clip_range_high"]) == (0.3, 0.4)
    assert (arguments["clip_range_low"], arguments["clip_ratio_c"]) == (None, 3.0)


@as_subtests(
    ("base", "changes", "said"),
    [
        (GRPO, {"algorithm": {"algorithm_type": "pairs"}}, "is not supported"),
        (GRPO, {"algorithm": {"algorithm_type": "grop"}}, "did you mean `grpo`?"),
        (GRPO, {"mode": "train"}, "an earlier stage of `mode: explore`"),
        (SFT, {"mode": "both"}, "runs in `mode: train`"),
        (
            GRPO,
            {"algorithm": {"policy_loss_fn_args": {"clip_rang": 1}}},
            "did you mean `clip_range`?",
        ),
        (GRPO, {"algorithm": {"advantage_fn": "gpro"}}, "did you mean `grpo`? (a dotted"),
        (GRPO, {"model": {"model_path": ""}}, "`model.model_path` is missing"),
        (GRPO, {"model": {"max_model_len": None}}, "`model.max_model_len` is missing"),
        (GRPO, {"buffer": {"explorer_input": {"taskset": None}}}, "taskset` is missing"),
        (GRPO, {"buffer": {"explorer_input": {"taskset": {"path": None}}}}, "path` is missing"),
        (SFT, {"buffer": {"train_batch_size": 0}}, "`buffer.train_batch_size` is missing"),
        (
            SFT,
            {
                "buffer": {
                    "trainer_input": {"experience_buffer": {"storage_type": "queue", "path": None}}
                }
            },
            "give `storage_type: file`",
        ),
        (GRPO, {"cluster": {"gpu_per_node": 1}}, "leaves none to train on"),
        (GRPO, {"trainer": {"rank_num": 33}}, "cannot feed 33 ranks"),
        (
            GRPO,
            {"model": {"custom_chat_template": "x", "chat_template_path": "/y"}},
            "are both given",
        ),
        (GRPO, {"model": {"chat_template_path": "/no/where"}}, "cannot be read"),
    ],
)
def test_what_cannot_be_planned_gets_a_sentence_that_names_the_stage(
    base: dict[str, object], changes: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        stage(base, **changes)
    assert str(caught.value).startswith("stage `main`: ")
    assert said in str(caught.value)


def test_evaluations_fall_on_weight_versions() -> None:
    evals: object = {"explorer_input": {"eval_tasksets": [{"path": "/e"}]}}
    every_three = config(buffer=evals, synchronizer={"sync_interval": 3})
    plan = plan_experiment(every_three)
    assert plan.stages[0].eval_interval == 99
    rare = stage(buffer=evals, explorer={"eval_interval": 2}, synchronizer={"sync_interval": 3})
    assert rare.eval_interval == 3


@pytest.mark.parametrize(("reward", "workflow"), [(None, "math"), ("exact_match_reward", "simple")])
def test_a_workflow_that_nobody_names_is_the_usual_one(reward: str | None, workflow: str) -> None:
    given: object = {"default_workflow_type": None, "default_reward_fn_type": reward}
    plan = plan_experiment(config(buffer={"explorer_input": given}))
    assert plan.stages[0].taskset
    assert plan.stages[0].taskset.workflow == f"{workflow}_workflow"
    assert "no workflow is named" in advise(plan)[0]
    assert f"(`{workflow}_workflow`)" in advise(plan)[0]


def test_gpus_that_rollout_leaves_go_to_the_trainer() -> None:
    rollout: object = {"rollout_model": {"tensor_parallel_size": 4}}
    assert stage(cluster={"gpu_per_node": 8}, explorer=rollout).trainer_rank_num == 4
    assert stage(SFT, cluster={"gpu_per_node": 8}).trainer_rank_num == 8
    assert stage().trainer_rank_num == 1
    assert stage(trainer={"rank_num": 2}).trainer_rank_num == 2


def test_micro_batches_hold_two_of_the_longest_sequences_and_without_gpus_many_small_ones() -> None:
    long: object = {"max_model_len": 10_000}
    assert stage(cluster={"gpu_per_node": 2}).max_token_len_per_gpu == 2 * 24
    assert stage().max_token_len_per_gpu == 16_384
    assert stage(model=long).max_token_len_per_gpu == 20_000
    assert stage(trainer={"max_token_len_per_gpu": 24}).max_token_len_per_gpu == 24
