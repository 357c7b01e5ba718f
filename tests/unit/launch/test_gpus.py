"""Rollout and training never share a GPU by accident."""

import pytest

from tests.unit.config.builders import config
from trinity.config.plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.launch.gpus import share_gpus


def plan_with(gpus: int, tensor_parallel: int = 1) -> ExperimentPlan:
    return plan_experiment(
        config(
            cluster={"gpu_per_node": gpus},
            explorer={"rollout_model": {"tensor_parallel_size": tensor_parallel}},
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
