"""A directory's run goes on with its file, or a changed one, from the weights it began with."""

from pathlib import Path

import pytest

from tests.unit.config.builders import IMITATION, REINFORCEMENT, SAFETENSORS, config
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.parts import EvaluatedRun
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.plan.stored_rollouts import UNKNOWN
from trinity.config.planning import plan_experiment
from trinity.errors import RunFailed, UserError
from trinity.run.launch.modes import BenchSource
from trinity.run.launch.prepare import capped
from trinity.run.launch.resume import PLAN_FILE, check_resumable, has_run, keep_threads, store_plan
from trinity.run.launch.retrain import RetrainSource, RetrainSteps, retraining_plan
from trinity.run.launch.stored_runs import StoredRun


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


def adapted(tmp_path: Path) -> ExperimentPlan:
    """Imitation, then reinforcement, both beginning with an adapter of the user's."""
    adapter = tmp_path / "adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 16, "lora_alpha": 16}')
    (adapter / "adapter_model.safetensors").write_bytes(SAFETENSORS)
    plan = plan_experiment(
        config(
            checkpoint_root_dir=str(tmp_path),
            model={"lora_configs": [{"name": "mine", "path": str(adapter), "lora_rank": 16}]},
            stages=[IMITATION, REINFORCEMENT],
        )
    )
    assert [stage.adapter_path for stage in plan.stages] == [str(adapter)] * 2
    plan.job_path.mkdir(parents=True, exist_ok=True)
    store_plan(plan)
    return plan


class Synchronizer:
    """Answers with one experiment, whose first stage has ended."""

    def __init__(self, plan: ExperimentPlan, merged: Path) -> None:
        ended = pb.Stage(name="sft", final_version=pb.Version(path=str(merged)))
        stages = [ended, pb.Stage(name="rft")]
        self._one = pb.Experiment(id="one", tenant=plan.tenant, label=plan.label, stages=stages)

    async def GetStatus(self, request: pb.GetStatusRequest, **_: object) -> pb.GetStatusResponse:
        assert request.label == self._one.label
        return pb.GetStatusResponse(experiments=[self._one])


async def retrained(tmp_path: Path, stage: str) -> StagePlan:
    plan = adapted(tmp_path)
    steps = RetrainSteps(first=1, last=8)
    made = retraining_plan(plan, stage=stage, steps=steps, name=None)
    known = Synchronizer(plan, tmp_path / "merged")
    completed = await RetrainSource(plan=plan).complete_plan(known, made)  # type: ignore[arg-type]
    return completed.stages[0]


async def test_what_is_retrained_after_another_stage_begins_with_an_adapter_at_zero(
    tmp_path: Path,
) -> None:
    (tmp_path / "merged").mkdir()
    stage = await retrained(tmp_path, "rft")
    assert (stage.model_path, stage.adapter_path) == (str(tmp_path / "merged"), None)
    first = await retrained(tmp_path, "sft")
    assert (first.model_path, first.adapter_path) == ("/models/tiny", str(tmp_path / "adapter"))


async def test_so_does_what_is_benched(tmp_path: Path) -> None:
    (tmp_path / "merged").mkdir()
    plan = adapted(tmp_path)
    benched = [
        one.model_copy(update={"benched": EvaluatedRun(experiment_id=UNKNOWN, stage=one.name)})
        for one in plan.stages
    ]
    made = plan.model_copy(update={"stages": tuple(benched)})
    known = Synchronizer(plan, tmp_path / "merged")
    completed = await BenchSource(run=StoredRun(plan=plan)).complete_plan(known, made)  # type: ignore[arg-type]
    assert [one.adapter_path for one in completed.stages] == [str(tmp_path / "adapter"), None]
    assert {one.benched.experiment_id for one in completed.stages if one.benched} == {"one"}


async def test_weights_that_are_gone_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="stage rft started from the last weights of stage sft"):
        await retrained(tmp_path, "rft")
