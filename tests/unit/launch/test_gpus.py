"""Rollout and training never share a GPU by accident."""

from pathlib import Path

import pytest

from tests.unit.config.builders import IMITATION, REINFORCEMENT, config
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.launch import gpus as launched
from trinity.launch.gpus import check_gpus, share_gpus


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
