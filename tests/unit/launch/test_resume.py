"""A directory's run goes on with its file, and with a changed one as far as it may."""

from pathlib import Path

import pytest

from tests.unit.config.builders import config
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.run.launch.prepare import capped
from trinity.run.launch.resume import PLAN_FILE, check_resumable, has_run, keep_threads, store_plan


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


def keys_changed(plan: ExperimentPlan) -> set[str]:
    changed = check_resumable(plan)
    assert changed is not None
    return {change.key for change in changed.changes}


def test_ranks_that_share_sequences_later_round_differently(tmp_path: Path) -> None:
    store_plan(plan_in(tmp_path, trainer={"rank_num": 2}))
    sharing = {"ulysses_sequence_parallel_size": 2, "rank_num": 2}
    resumed = plan_in(tmp_path, trainer=sharing)
    assert resumed.stages[0].sequence_parallel_size == 2
    assert "trainer.ulysses_sequence_parallel_size" in keys_changed(resumed)


def test_a_run_keeps_the_threads_that_it_began_with(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    assert keep_threads(plan) == plan
    [stage] = plan.stages
    begun = plan.model_copy(update={"stages": (stage.model_copy(update={"num_threads": 3}),)})
    store_plan(begun)
    assert keep_threads(plan) == begun


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


def test_how_a_run_is_resumed_may_change(tmp_path: Path) -> None:
    store_plan(plan_in(tmp_path))
    check_resumable(plan_in(tmp_path, continue_from_checkpoint=True))
    check_resumable(plan_in(tmp_path, trainer={"resume_mode": "auto"}))


def test_a_run_keeps_the_checkpoint_that_it_began_with(tmp_path: Path) -> None:
    store_plan(plan_in(tmp_path))
    start = {"resume_mode": "resume_path", "resume_from_path": str(tmp_path / "step-3-1")}
    with pytest.raises(UserError, match=r"trainer\.resume_from_path"):
        check_resumable(plan_in(tmp_path, trainer=start))


def test_another_unit_is_refused(tmp_path: Path) -> None:
    store_plan(plan_in(tmp_path, algorithm={"advantage_fn_args": {"unit": "sample"}}))
    with pytest.raises(UserError, match=r"advantage_fn_args\.unit"):
        check_resumable(plan_in(tmp_path, algorithm={"advantage_fn_args": {"unit": "run"}}))


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


def test_what_only_explores_has_no_ranks_to_keep(tmp_path: Path) -> None:
    explores = {"cluster": {"gpu_per_node": 8}, "mode": "explore"}
    store_plan(plan_in(tmp_path, **explores))
    check_resumable(plan_in(tmp_path, **explores, explorer={"rollout_model": {"engine_num": 4}}))
