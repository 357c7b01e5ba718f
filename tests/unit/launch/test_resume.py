"""A directory's run goes on with its file, and with a changed one as far as it may."""

import json
from pathlib import Path

import pytest

from tests.unit.config.builders import config
from trinity.config.plan.arithmetic import NEWEST, Arithmetic
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.run.launch.begun import continue_as_begun, kept_defaults
from trinity.run.launch.prepare import capped
from trinity.run.launch.resume import PLAN_FILE, check_resumable, has_run, store_plan


def plan_in(directory: Path, **changes: object) -> ExperimentPlan:
    plan = plan_experiment(config(checkpoint_root_dir=str(directory), **changes))
    plan.job_path.mkdir(parents=True, exist_ok=True)
    return plan


def test_the_same_settings_go_on(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    assert not has_run(plan.job_path)
    check_resumable(plan)
    store_plan(plan)
    assert has_run(plan.job_path)
    check_resumable(plan_in(tmp_path))


def test_a_changed_algorithm_is_refused_by_its_key(tmp_path: Path) -> None:
    store_plan(plan_in(tmp_path))
    changed = plan_in(tmp_path, algorithm={"optimizer": {"lr": 0.5}})
    with pytest.raises(UserError, match=r"algorithm\.optimizer\.lr"):
        check_resumable(changed)


def test_how_often_to_save_may_change(tmp_path: Path) -> None:
    store_plan(plan_in(tmp_path))
    check_resumable(plan_in(tmp_path, trainer={"save_interval": 7}, log={"level": "DEBUG"}))


def test_a_run_of_before_a_key_was_known_goes_on(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    store_plan(plan)
    file = plan.job_path / PLAN_FILE
    values = json.loads(file.read_text())
    for stage in values["stages"]:
        del stage["config"]["explorer"]["over_rollout"]
    file.write_text(json.dumps(values))
    check_resumable(plan)
    with pytest.raises(UserError, match=r"explorer\.over_rollout\.ratio"):
        check_resumable(plan_in(tmp_path, explorer={"over_rollout": {"ratio": 0.5}}))


def begun_before_packing(plan: ExperimentPlan, **trainer: object) -> None:
    """Stores the plan as a release did that padded all rows."""
    store_plan(plan)
    file = plan.job_path / PLAN_FILE
    values = json.loads(file.read_text())
    for stage in values["stages"]:
        del stage["arithmetic"]
        stage["config"]["trainer"] |= {**BEGUN, **trainer}
    file.write_text(json.dumps(values))


BEGUN: dict[str, object] = {"use_remove_padding": False}


def keys_changed(plan: ExperimentPlan) -> set[str]:
    changed = check_resumable(plan)
    assert changed is not None
    return {change.key for change in changed.changes}


def test_a_run_that_began_with_padded_rows_goes_on_with_them(tmp_path: Path) -> None:
    begun_before_packing(plan_in(tmp_path))
    plan = plan_in(tmp_path)
    assert "trainer.use_remove_padding" in keys_changed(plan)  # the control
    resumed = continue_as_begun(plan)
    assert not keys_changed(resumed)
    (stage,) = resumed.stages
    assert stage.arithmetic == Arithmetic()
    assert not stage.config.trainer.use_remove_padding


def test_what_the_user_wrote_for_a_run_of_before_is_compared_as_ever(tmp_path: Path) -> None:
    begun_before_packing(plan_in(tmp_path), use_remove_padding=True)
    resumed = continue_as_begun(plan_in(tmp_path))
    assert not keys_changed(resumed)
    assert resumed.stages[0].arithmetic == Arithmetic()
    changed = plan_in(tmp_path, trainer={"use_remove_padding": False})
    assert keys_changed(continue_as_begun(changed)) == {"trainer.use_remove_padding"}


def test_a_run_of_before_whose_ranks_shared_nothing_goes_on_so(tmp_path: Path) -> None:
    sharing = {"ulysses_sequence_parallel_size": 2, "rank_num": 2}
    begun_before_packing(plan_in(tmp_path, trainer=sharing))
    plan = plan_in(tmp_path, trainer=sharing)
    assert plan.stages[0].sequence_parallel_size == 2
    (stage,) = continue_as_begun(plan).stages
    assert stage.sequence_parallel_size == 1
    sharing["ulysses_sequence_parallel_size"] = 1
    (stage,) = continue_as_begun(plan_in(tmp_path, trainer=sharing)).stages
    assert stage.sequence_parallel_size == 1


def test_ranks_that_share_sequences_later_do(tmp_path: Path) -> None:
    store_plan(plan_in(tmp_path, trainer={"rank_num": 2}))
    sharing = {"ulysses_sequence_parallel_size": 2, "rank_num": 2}
    resumed = continue_as_begun(plan_in(tmp_path, trainer=sharing))
    assert resumed.stages[0].sequence_parallel_size == 2
    assert "trainer.ulysses_sequence_parallel_size" in keys_changed(resumed)


def test_a_new_run_packs_and_goes_on_packing(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    assert continue_as_begun(plan) == plan
    store_plan(plan)
    assert continue_as_begun(plan_in(tmp_path)) == plan
    assert plan.stages[0].arithmetic.version == NEWEST


def of_before(plan: ExperimentPlan) -> None:
    """Stores a run of the release in which two keys had other defaults."""
    store_plan(plan)
    file = plan.job_path / PLAN_FILE
    values = json.loads(file.read_text())
    for stage in values["stages"]:
        stage["config"]["model"]["min_response_tokens"] = stage["min_response_tokens"] = 0
        stage["algorithm"]["repeat_times"] = 2
        rows = 2 * stage["config"]["buffer"]["batch_size"]
        stage["train_batch_size"] = stage["rows_per_explore_step"] = rows
    file.write_text(json.dumps(values))


def test_a_run_goes_on_with_defaults_of_its_own_time(tmp_path: Path) -> None:
    left_out: dict[str, object] = {"algorithm": {"repeat_times": None}}
    plan = plan_in(tmp_path, **left_out)
    assert kept_defaults(plan) == {}
    of_before(plan)
    kept = {"model.min_response_tokens": 0, "algorithm.repeat_times": 2}
    assert kept_defaults(plan) == kept
    as_it_was: dict[str, object] = {
        "algorithm": {"repeat_times": 2},
        "model": {"min_response_tokens": 0},
    }
    again = plan_in(tmp_path, **as_it_was)
    assert kept_defaults(again) == {}
    check_resumable(again)
    store_plan(again)
    assert kept_defaults(plan) == kept, "they are kept at each start"
    written = plan_in(tmp_path, model={"min_response_tokens": 1}, algorithm={"repeat_times": 4})
    with pytest.raises(
        UserError, match=r"repeat_times: 4` \(2 before\)(.|\n)*min_response_tokens: 1"
    ):
        check_resumable(written)


def test_a_stage_keeps_its_own_defaults(tmp_path: Path) -> None:
    stages: dict[str, object] = {"stages": [{"stage_name": "a", "algorithm": {"repeat_times": 8}}]}
    plan = plan_in(tmp_path, **stages)
    of_before(plan)
    assert kept_defaults(plan) == {"stages[0].model.min_response_tokens": 0}


def test_another_seed_is_refused(tmp_path: Path) -> None:
    store_plan(plan_in(tmp_path))
    with pytest.raises(UserError, match="seed"):
        check_resumable(plan_in(tmp_path, seed=1))


def test_a_trial_is_never_longer_than_asked_for(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    assert [stage.total_train_steps for stage in capped(plan, 3).stages] == [3]
    assert [stage.total_train_steps for stage in capped(plan, 99).stages] == [10]


def test_a_key_is_not_kept_and_may_be_replaced(tmp_path: Path) -> None:
    def with_key(key: str, scale: int = 1) -> ExperimentPlan:
        arguments = {"api_key": key, "scale": scale}
        taskset = {"taskset": {"reward_fn_args": arguments}}
        return plan_in(tmp_path, buffer={"explorer_input": taskset})

    store_plan(with_key("hunter2"))
    assert "hunter2" not in (with_key("").job_path / PLAN_FILE).read_text()
    check_resumable(with_key("hunter3"))
    with pytest.raises(UserError, match=r"reward_fn_args\.scale"):
        check_resumable(with_key("hunter2", scale=2))


def test_a_run_that_kept_its_keys_goes_on(tmp_path: Path) -> None:
    taskset = {"taskset": {"reward_fn_args": {"api_key": "hunter2"}}}
    plan = plan_in(tmp_path, buffer={"explorer_input": taskset})
    store_plan(plan)
    (plan.job_path / PLAN_FILE).write_text(plan.model_dump_json())
    check_resumable(plan)


def test_keys_that_the_release_before_did_not_have_are_no_change(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    store_plan(plan)
    file = plan.job_path / "config.json"
    written = json.loads(file.read_text())
    for stage in written["stages"]:
        del stage["config"]["trainer"]["ppo_epochs"]
    file.write_text(json.dumps(written))
    check_resumable(plan_in(tmp_path))
    with pytest.raises(UserError, match=r"trainer\.ppo_epochs"):
        check_resumable(plan_in(tmp_path, trainer={"ppo_epochs": 2}))


def test_how_a_run_is_resumed_may_change(tmp_path: Path) -> None:
    store_plan(plan_in(tmp_path))
    check_resumable(plan_in(tmp_path, continue_from_checkpoint=True))
    check_resumable(plan_in(tmp_path, trainer={"resume_mode": "auto"}))


def test_a_run_keeps_the_checkpoint_that_it_began_with(tmp_path: Path) -> None:
    store_plan(plan_in(tmp_path))
    start = {"resume_mode": "resume_path", "resume_from_path": str(tmp_path / "step-3-1")}
    with pytest.raises(UserError, match=r"trainer\.resume_from_path"):
        check_resumable(plan_in(tmp_path, trainer=start))


def unit_of(plan: ExperimentPlan) -> object:
    return plan.stages[0].algorithm.advantage_fn_args["unit"]


@pytest.mark.parametrize("stored", ["run", "sample", None])
def test_a_run_keeps_the_unit_that_it_began_with(tmp_path: Path, stored: str | None) -> None:
    plan = plan_in(tmp_path)
    assert unit_of(continue_as_begun(plan)) == "run"
    store_plan(plan)
    file = plan.job_path / PLAN_FILE
    values = json.loads(file.read_text())
    for stage in values["stages"]:
        arguments = stage["algorithm"]["advantage_fn_args"]
        arguments.pop("unit")
        arguments.update({} if stored is None else {"unit": stored})
    file.write_text(json.dumps(values))
    going_on = continue_as_begun(plan_in(tmp_path))
    assert unit_of(going_on) == (stored or "sample")
    check_resumable(going_on)
    store_plan(going_on)
    assert unit_of(continue_as_begun(plan_in(tmp_path))) == (stored or "sample")


def test_a_run_of_the_version_before_keeps_its_schedule_and_its_dropout(tmp_path: Path) -> None:
    changes: dict[str, object] = {
        "algorithm": {"algorithm_type": "ppo"},
        "trainer": {"critic_warmup": 3},
    }
    plan = plan_in(tmp_path, **changes)
    assert (plan.stages[0].lr_schedule.begins_after, plan.stages[0].keeps_dropout) == (3, False)
    store_plan(plan)
    assert continue_as_begun(plan_in(tmp_path, **changes)) == plan
    file = plan.job_path / PLAN_FILE
    values = json.loads(file.read_text())
    for stage in values["stages"]:
        del stage["lr_schedule"]["begins_after"], stage["keeps_dropout"]
    file.write_text(json.dumps(values))
    for _ in range(2):
        going_on = continue_as_begun(plan_in(tmp_path, **changes))
        check_resumable(going_on)
        [stage] = going_on.stages
        assert (stage.lr_schedule.begins_after, stage.keeps_dropout) == (0, True)
        store_plan(going_on)


def test_a_unit_that_the_file_gives_is_not_replaced(tmp_path: Path) -> None:
    given = plan_in(tmp_path, algorithm={"advantage_fn_args": {"unit": "run"}})
    store_plan(plan_in(tmp_path, algorithm={"advantage_fn_args": {"unit": "sample"}}))
    assert unit_of(continue_as_begun(given)) == "run"
    with pytest.raises(UserError, match=r"advantage_fn_args\.unit"):
        check_resumable(given)


def test_a_plan_of_the_version_before_counts_samples(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    values = json.loads(plan.model_dump_json())
    for stage in values["stages"]:
        del stage["algorithm"]["advantage_fn_args"]["unit"]
    assert unit_of(ExperimentPlan.model_validate(values)) == "sample"
    assert unit_of(ExperimentPlan.model_validate(json.loads(plan.model_dump_json()))) == "run"


def on_gpus(directory: Path, engines: int, **changes: object) -> ExperimentPlan:
    return plan_in(
        directory,
        cluster={"gpu_per_node": 8},
        explorer={"rollout_model": {"engine_num": engines}},
        **changes,
    )


def test_other_engines_that_leave_other_ranks_round_differently(tmp_path: Path) -> None:
    store_plan(on_gpus(tmp_path, 2))
    changed = check_resumable(on_gpus(tmp_path, 3))
    assert changed is not None
    (note,) = (note for note in changed.notes() if "trainer.rank_num" in note)
    assert "`trainer.rank_num: 5` (6 before): results may round differently" in note


def test_another_number_of_ranks_goes_on(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    store_plan(plan)
    checkpoint = plan.job_path / "stages" / "main" / "checkpoints" / "step-10-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").touch()
    assert check_resumable(plan_in(tmp_path, trainer={"rank_num": 2}))


def test_a_checkpoint_of_an_earlier_release_keeps_its_ranks(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    store_plan(plan)
    checkpoints = plan.job_path / "stages" / "main" / "checkpoints"
    for name, file in (("step-9-1", "state.json"), ("step-10-2", "model_world_size_1_rank_0.pt")):
        (checkpoints / name).mkdir(parents=True)
        (checkpoints / name / file).touch()
    with pytest.raises(UserError, match=r"`trainer\.rank_num: 2`.*step-10-2 was written by an ear"):
        check_resumable(plan_in(tmp_path, trainer={"rank_num": 2}))
    check_resumable(plan)


def test_what_only_explores_has_no_ranks_to_keep(tmp_path: Path) -> None:
    explores = {"cluster": {"gpu_per_node": 8}, "mode": "explore"}
    store_plan(plan_in(tmp_path, **explores))
    check_resumable(plan_in(tmp_path, **explores, explorer={"rollout_model": {"engine_num": 4}}))
