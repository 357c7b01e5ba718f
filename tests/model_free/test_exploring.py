"""Exploring without a trainer, and training on what was stored, over real services."""

from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.model_free.experiment import experiment_plan, final_weights, run_to_end
from tests.model_free.stack import model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan import ExperimentPlan

pytestmark = pytest.mark.timeout(120)

ALGORITHM: dict[str, JsonValue] = {
    "algorithm_type": "grpo",
    "repeat_times": 2,
    "kl_loss_fn": "none",
}


def explored_then_trained(root: Path, **changes: JsonValue) -> ExperimentPlan:
    stages: list[JsonValue] = [
        {"stage_name": name, "mode": mode, "algorithm": ALGORITHM}
        for name, mode in (("look", "explore"), ("learn", "train"))
    ]
    return experiment_plan(root, stages=stages, **changes)


async def test_what_was_explored_once_is_trained_later(tmp_path: Path) -> None:
    plan = explored_then_trained(tmp_path)
    async with model_free_stack(plan.job_path) as stack:
        ended = await run_to_end(stack.addresses.synchronizer, plan)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    look, learn = ended.stages
    assert list(look.finished_roles) == [pb.ROLE_EXPLORER]
    assert (learn.final_version.version, final_weights(ended)) != (0, "")
