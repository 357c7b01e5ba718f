"""Published weights go bad on the disk, and the run ends as if nothing had happened."""

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.model_free.alone import weights_of
from tests.support.model_free.damage import FAULTS
from tests.support.model_free.damaged_rank import FAULTS_VARIABLE
from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.stack import MODULES, model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.local.stack import LocalStack

pytestmark = pytest.mark.timeout(600)

MOST_SECONDS = 60
"""For the replacement of one version, from its announcement to its successor's."""


def damaged_stack(plan: ExperimentPlan, faults: Mapping[int, str]) -> LocalStack:
    return model_free_stack(
        plan.job_path,
        modules=MODULES | {"trainer": "tests.support.model_free.damaged_trainer"},
        environment={"trainer": {FAULTS_VARIABLE: json.dumps(faults)}},
    )


async def run_with(plan: ExperimentPlan, faults: Mapping[int, str]) -> tuple[pb.Experiment, float]:
    """The experiment's end, and the seconds that it took."""
    async with damaged_stack(plan, faults) as stack:
        begun = time.monotonic()
        ended = await run_to_end(stack.addresses.synchronizer, plan)
        return ended, time.monotonic() - begun


def log_of(plan: ExperimentPlan, service: str) -> str:
    return "".join(path.read_text() for path in plan.job_path.rglob(f"{service}*.log"))


async def test_every_kind_of_damage_is_replaced_within_a_minute(
    tmp_path: Path, calm_weights: str
) -> None:
    """Each explore step needs exactly the version that is bad, so nothing else helps."""
    first, second = list(FAULTS)[:8], list(FAULTS)[8:]
    for number, names in enumerate((first, second)):
        root = tmp_path / str(number)
        plan = experiment_plan(root)
        ended, seconds = await run_with(plan, dict(enumerate(names)))
        assert weights_of(ended) == calm_weights
        assert seconds < MOST_SECONDS
        log = log_of(plan, "trainer")
        assert log.count("damaged weights were written again") == len(names)
        assert "lost" not in log
