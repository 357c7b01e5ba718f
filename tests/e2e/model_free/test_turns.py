"""Engine and trainer on one device by turns: never both, and the same weights as with two."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.support.model_free.alone import weights_of
from tests.support.model_free.device import DeviceEvent, device_folder, events_of
from tests.support.model_free.engine import RUN_SECONDS_VARIABLE, SPREAD_VARIABLE
from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.shared_stack import ON_IT, SharedStack
from tests.support.model_free.slow_rank import DEAF_DISK_VARIABLE, SLOW_SECONDS_VARIABLE
from tests.support.model_free.stack import MODULES, model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.stage_plan import ExperimentPlan

pytestmark = pytest.mark.timeout(600)
STAGE_OF_TURNS: dict[str, JsonValue] = {
    "stage_name": "rft",
    "mode": "colocate",
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 2, "kl_loss_fn": "none"},
}
NUM_IMITATED = 12
SLOW_MODULES = {**MODULES, "trainer": "tests.support.model_free.slow_trainer"}
SILENCE_SECONDS, SLOW_SECONDS = 15, 45


def by_turns(root: Path, name: str) -> ExperimentPlan:
    return experiment_plan(root, name=name, stages=[STAGE_OF_TURNS])


def events(plan: ExperimentPlan) -> list[DeviceEvent]:
    return events_of(device_folder(plan.stages[0].model_path))


def turns_in(events: Sequence[DeviceEvent]) -> list[str]:
    """The processes that were awake, in order; fails if two were awake at once."""
    awake = ""
    turns = []
    for event in events:
        assert event.what != "clash", event
        if event.what == "kept":
            continue
        if event.what == "awake":
            assert not awake, f"{event.role} woke up beside {awake}"
            awake = event.role
            turns.append(event.role)
        else:
            assert awake in ("", event.role)
            awake = ""
    return turns


@ON_IT
async def test_engine_and_trainer_take_turns_and_end_with_the_same_weights(
    tmp_path: Path, shared_stack: SharedStack, calm_weights: str
) -> None:
    plan = by_turns(tmp_path, "turns")
    ended = await run_to_end(shared_stack.synchronizer, plan)
    assert weights_of(ended) == calm_weights
    turns = turns_in(events(plan))
    assert turns.count("rank") >= 8, "one for each train step, at least"
    assert turns.count("engine") >= 8
    assert ended.HasField("turn"), "the synchronizer was told"


FEW_SLOW_RUNS: JsonValue = {
    "runner_per_model": 4,
    "env_vars": {RUN_SECONDS_VARIABLE: "0.5", SPREAD_VARIABLE: "1"},
}
"""Runs of the next explore step follow one by one, while the last of this one end."""


@ON_IT
async def test_unfinished_runs_sleep_with_their_engine_and_go_on_after_the_turn(
    tmp_path: Path, shared_stack: SharedStack
) -> None:
    """Runs of the next explore step are under way when the trainer's turn comes.

    The engine fails if its weights change under a run, or if it sleeps without its runs.
    """
    plan = experiment_plan(
        tmp_path,
        name="kept",
        stages=[STAGE_OF_TURNS],
        synchronizer={"sync_offset": 1},
        explorer=FEW_SLOW_RUNS,
    )
    ended = await run_to_end(shared_stack.synchronizer, plan)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    assert turns_in(events(plan)).count("rank") >= 8
    num_kept = sum(event.what == "kept" for event in events(plan))
    assert num_kept >= 2, "no run was under way at a turn"
    logs = "".join(log.read_text() for log in (shared_stack.folder / "log").glob("explorer*.log"))
    assert "weights changed under a run" not in logs and "works while it sleeps" not in logs


def imitating_first(root: Path, name: str, mode: str) -> ExperimentPlan:
    """Steps of imitation, then a few with rollouts."""
    text: JsonValue = {
        "storage_type": "file",
        "path": str(root / f"{name}.jsonl"),
        "format": {"prompt_type": "plaintext"},
    }
    warm: JsonValue = {
        "stage_name": "warm",
        "mode": "train",
        "algorithm": {"algorithm_type": "sft"},
        "buffer": {"train_batch_size": 4, "trainer_input": {"experience_buffer": text}},
        "trainer": {"total_steps": NUM_IMITATED, "save_interval": 5},
    }
    rollouts: JsonValue = {**STAGE_OF_TURNS, "mode": mode, "buffer": {"total_steps": 4}}
    return experiment_plan(root, name=name, stages=[warm, rollouts])


@ON_IT
async def test_a_stage_without_rollouts_keeps_the_device_and_ends_in_the_same_weights(
    tmp_path: Path, shared_stack: SharedStack
) -> None:
    """The engine of the stage after it starts meanwhile, for which the rank leaves."""
    apart = imitating_first(tmp_path, "warm-apart", "both")
    expected = await run_to_end(shared_stack.synchronizer, apart)
    plan = imitating_first(tmp_path, "warm-turns", "colocate")
    ended = await run_to_end(shared_stack.synchronizer, plan)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    assert [stage.final_version.weights_blake3 for stage in ended.stages] == [
        stage.final_version.weights_blake3 for stage in expected.stages
    ]
    turns = turns_in(events(plan))
    assert 4 < turns.count("rank") <= NUM_IMITATED, "it left after each step"
    assert turns.count("engine") >= 4


@pytest.mark.thorough
async def test_without_the_lock_the_device_fails(tmp_path: Path) -> None:
    """The control: what the device is simulated for is seen where nothing excludes."""
    plan = by_turns(tmp_path, "unlocked")
    modules = {**MODULES, "trainer": "tests.support.model_free.unlocked_trainer"}
    async with model_free_stack(plan.job_path, modules=modules) as stack:
        ended = await run_to_end(stack.addresses.synchronizer, plan)
    assert ended.state == pb.EXPERIMENT_STATE_FAILED
    assert "DeviceInUse: rank woke up beside engine" in ended.reason
    assert "clash" in {event.what for event in events(plan)}


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["colocate", "both"])
@pytest.mark.parametrize("shows_life", [True, False])
async def test_a_rank_that_writes_for_longer_than_it_may_be_silent_is_left_alone(
    tmp_path: Path, mode: str, shows_life: bool
) -> None:
    """The control gives no sign of life meanwhile: it is killed, and trains again."""
    plan = experiment_plan(
        tmp_path,
        name="slow",
        stages=[{**STAGE_OF_TURNS, "mode": mode}],
        synchronizer={"sync_timeout": SILENCE_SECONDS},
    )
    environment = {SLOW_SECONDS_VARIABLE: str(SLOW_SECONDS)}
    if not shows_life:
        environment[DEAF_DISK_VARIABLE] = "1"
    services = {"trainer": environment}
    async with model_free_stack(plan.job_path, modules=SLOW_MODULES, environment=services) as stack:
        ended = await run_to_end(stack.addresses.synchronizer, plan)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    final = ended.stages[0].final_version
    assert (final.incarnation == 1) is shows_life
