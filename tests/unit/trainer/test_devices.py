"""A gang that was to have GPUs does not train on the processor without a word."""

from pathlib import Path

import pytest
import torch

from services.trainer.collectives import check_gpus, check_gpus_of
from tests.unit.config.builders import stage
from tests.unit.trainer.builders import grpo_plan
from trinity.errors import UserError


def seeing(monkeypatch: pytest.MonkeyPatch, num_gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)


@pytest.mark.parametrize("found", [0, 2])
def test_ranks_without_a_gpu_each_are_refused(monkeypatch: pytest.MonkeyPatch, found: int) -> None:
    seeing(monkeypatch, found)
    with pytest.raises(UserError, match=f"3 ranks .* sees {found}: .*CUDA_VISIBLE_DEVICES"):
        check_gpus_of(stage(cluster={"gpu_per_node": 4}))
    with pytest.raises(UserError, match=f"sees {found}"):
        check_gpus(3)


def test_ranks_with_a_gpu_each_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seeing(monkeypatch, 3)
    check_gpus_of(stage(cluster={"gpu_per_node": 4}))


def test_a_plan_without_gpus_asks_for_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeing(monkeypatch, 0)
    check_gpus_of(grpo_plan(tmp_path))
