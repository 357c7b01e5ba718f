"""Rollout and training never share a GPU by accident."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.config.builders import IMITATION, REINFORCEMENT, config
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.run.launch import machine as launched
from trinity.run.launch.machine import (
    check_gpus,
    claimed_gpus,
    share_gpus,
    share_processors,
    take_turns,
)


def plan_with(gpus: int, tensor_parallel: int = 1, **changes: object) -> ExperimentPlan:
    return plan_experiment(
        config(
            **{
                "cluster": {"gpu_per_node": gpus},
                "explorer": {"rollout_model": {"tensor_parallel_size": tensor_parallel}},
                **changes,
            }
        )
    )


def test_without_gpus_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert share_gpus(plan_with(0)) == {}


def test_rollout_takes_the_first_and_training_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    shares = share_gpus(plan_with(8, tensor_parallel=2))
    assert shares["explorer"] == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert shares["trainer"] == {"CUDA_VISIBLE_DEVICES": "2,3,4,5,6,7"}


def test_a_list_given_by_the_user_is_what_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    shares = share_gpus(plan_with(2))
    assert shares["explorer"] == {"CUDA_VISIBLE_DEVICES": "5"}
    assert shares["trainer"] == {"CUDA_VISIBLE_DEVICES": "7"}


def test_every_stage_has_a_gpu_for_each_of_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plan = plan_with(8, stages=[IMITATION, REINFORCEMENT])
    devices = share_gpus(plan)["trainer"]["CUDA_VISIBLE_DEVICES"].split(",")
    assert [stage.trainer_rank_num for stage in plan.stages] == [len(devices)] * 2


@pytest.mark.parametrize("given", ["0,1", "", "-1"])
def test_a_list_that_is_too_short_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setattr(launched, "DRIVER", Path("/"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    names = {"0,1": 2}.get(given, 0)
    message = f"CUDA_VISIBLE_DEVICES names {names} GPUs.*rollout takes 1 and training 7"
    with pytest.raises(UserError, match=message):
        check_gpus(plan_with(8))


def test_a_list_that_is_long_enough_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launched, "DRIVER", Path("/"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    check_gpus(plan_with(2))
    check_gpus(plan_with(8, trainer={"rank_num": 1}))


def test_what_takes_two_machines_is_not_run_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launched, "DRIVER", Path("/"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cluster = {"node_num": 2, "gpu_per_node": 8}
    plan = plan_with(8, cluster=cluster, explorer={"rollout_model": {"engine_num": 8}})
    with pytest.raises(UserError, match=r"8.*of this machine.*`cluster\.node_num: 1`"):
        check_gpus(plan)


def test_without_a_driver_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launched, "DRIVER", tmp_path / "nvidiactl")
    check_gpus(plan_with(0))
    with pytest.raises(UserError, match="has no NVIDIA driver"):
        check_gpus(plan_with(2))


@pytest.fixture
def _four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


def threads_of(plan: ExperimentPlan) -> list[int | None]:
    return [stage.num_threads for stage in plan.stages]


@pytest.mark.usefixtures("_four_processors")
def test_where_rollout_waits_for_training_each_has_the_machine() -> None:
    turns = take_turns(plan_with(0, synchronizer={"sync_offset": 0}))
    assert threads_of(turns) == [4]
    sleeping = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "20000"}
    engine = {**sleeping, "OMP_NUM_THREADS": "4"}
    assert share_processors(turns) == {"trainer": sleeping, "explorer": engine}
    shared: dict[str, Any] = {"synchronizer": {"sync_offset": 0}, "trainer": {"rank_num": 2}}
    two = take_turns(plan_with(0, explorer={"rollout_model": {"engine_num": 4}}, **shared))
    assert threads_of(two) == [2]
    assert share_processors(two)["explorer"]["OMP_NUM_THREADS"] == "1"


@pytest.mark.usefixtures("_four_processors")
def test_where_rollout_goes_on_beside_training_they_share_the_machine() -> None:
    beside = take_turns(plan_with(0, synchronizer={"sync_offset": 1}))
    assert threads_of(beside) == [None]
    assert share_processors(beside) == {}


@pytest.mark.usefixtures("_four_processors")
def test_an_imitation_before_has_the_machine_and_its_engines_do_not() -> None:
    stages: dict[str, Any] = {
        "stages": [IMITATION, {**REINFORCEMENT, "synchronizer": {"sync_offset": 1}}]
    }
    plan = take_turns(plan_with(0, **stages))
    assert threads_of(plan) == [4, None]
    assert "explorer" not in share_processors(plan)


@pytest.mark.usefixtures("_four_processors")
def test_gpus_and_a_number_of_the_users_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: dict[str, Any] = {"synchronizer": {"sync_offset": 0}}
    assert threads_of(take_turns(plan_with(8, **turns))) == [None]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_of(take_turns(plan_with(0, **turns))) == [None]


def test_engine_and_trainer_that_take_turns_have_the_same_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launched, "DRIVER", Path("/"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    plan = plan_with(1, mode="colocate")
    check_gpus(plan)
    assert share_gpus(plan) == {
        "explorer": {"CUDA_VISIBLE_DEVICES": "3"},
        "trainer": {"CUDA_VISIBLE_DEVICES": "3"},
    }


def test_a_run_by_turns_claims_its_gpu_and_one_without_gpus_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    folder = tmp_path / "claims"
    monkeypatch.setattr("trinity.run.local.gpu_claims.claims_folder", lambda: folder)
    by_turns = claimed_gpus(plan_with(1, mode="colocate", stages=[]))
    apart = claimed_gpus(plan_with(2))
    assert claimed_gpus(plan_with(0)) is None
    assert by_turns is not None and apart is not None
    by_turns.take()
    assert [path.name for path in folder.iterdir()] == ["5.lock"]
    with pytest.raises(UserError, match="GPU 5 is used by the run "):
        apart.take()
    by_turns.release()
    apart.take()
    assert sorted(path.name for path in folder.iterdir()) == ["5.lock", "7.lock"]
    apart.release()
