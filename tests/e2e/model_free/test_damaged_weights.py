"""Published weights go bad on the disk, and the run ends as if nothing had happened."""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.model_free.alone import weights_of
from tests.support.model_free.damage import FAULTS
from tests.support.model_free.damaged_rank import DEAF_VARIABLE, FAULTS_VARIABLE
from tests.support.model_free.dying_explorer import EVALUATED, VERSION_VARIABLE
from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.model import read_digest
from tests.support.model_free.stack import MODULES, model_free_services, model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.launch.run import LocalRun
from trinity.run.local.stack import LocalStack
from trinity.run.progress.reporter import make_reporter
from trinity.weights.manifest import verify
from trinity.weights.stored import is_delta

pytestmark = pytest.mark.timeout(600)

MOST_SECONDS = 60
"""For the replacement of one version, from its announcement to its successor's."""


DEAF_TRAINER = {DEAF_VARIABLE: "1"}
"""It hears of no damage."""


def damaged_stack(
    plan: ExperimentPlan, faults: Mapping[int, str], trainer: Mapping[str, str] | None = None
) -> LocalStack:
    return model_free_stack(
        plan.job_path,
        modules=MODULES | {"trainer": "tests.support.model_free.damaged_trainer"},
        environment={"trainer": {FAULTS_VARIABLE: json.dumps(faults), **(trainer or {})}},
    )


async def run_with(plan: ExperimentPlan, faults: Mapping[int, str]) -> tuple[pb.Experiment, float]:
    """The experiment's end, and the seconds that it took."""
    async with damaged_stack(plan, faults) as stack:
        begun = time.monotonic()
        ended = await run_to_end(stack.addresses.synchronizer, plan)
        return ended, time.monotonic() - begun


def log_of(plan: ExperimentPlan, service: str) -> str:
    return "".join(path.read_text() for path in plan.job_path.rglob(f"{service}*.log"))


async def test_every_version_goes_bad_in_another_way_and_is_replaced_within_a_minute(
    tmp_path: Path, calm_weights: str
) -> None:
    """Each explore step needs exactly the version that is bad, so nothing else helps."""
    faults = dict(enumerate(list(FAULTS)[-8:]))
    plan = experiment_plan(tmp_path)
    ended, seconds = await run_with(plan, faults)
    assert weights_of(ended) == calm_weights
    assert seconds < MOST_SECONDS * len(faults)
    assert log_of(plan, "trainer").count("damaged weights were written again") == len(faults)


async def test_damaged_differences_and_their_base_are_replaced_by_whole_versions(
    tmp_path: Path,
) -> None:
    """The weights are the same as in single precision: each sample was drawn by the same ones."""
    faults = {0: "flip_a_bit", 2: "flip_a_bit", 3: "remove_file", 5: "give_a_wrong_hash"}
    half = experiment_plan(tmp_path, name="half", trainer={"dtype": "bfloat16"})
    single = experiment_plan(tmp_path, name="single")
    ends = [(await run_with(plan, which))[0] for plan, which in ((half, faults), (single, {}))]
    paths = [Path(ended.stages[-1].final_version.path) for ended in ends]
    assert read_digest(paths[0]) == read_digest(paths[1])
    assert not is_delta(paths[0]) and is_delta(paths[0].with_name("v7-1"))
    written = log_of(half, "trainer").count("damaged weights were written again")
    assert written == len(faults)


@pytest.mark.thorough
async def test_control_without_a_report_the_run_waits_until_it_fails(
    tmp_path: Path,
) -> None:
    plan = experiment_plan(tmp_path, synchronizer={"sync_timeout": 20})
    async with damaged_stack(plan, {1: "flip_a_bit"}, DEAF_TRAINER) as stack:
        ended = await run_to_end(stack.addresses.synchronizer, plan)
    assert ended.state == pb.EXPERIMENT_STATE_FAILED
    assert "of version 1" in ended.reason and "to match their manifest" in ended.reason


async def test_the_evaluation_of_lost_weights_ends_and_training_goes_on(tmp_path: Path) -> None:
    """The trainer has newer weights by then, and no copy of these."""
    plan = experiment_plan(
        tmp_path,
        buffer={
            "explorer_input": {
                "eval_tasksets": [{"name": "held_out", "path": str(tmp_path / "run.jsonl")}]
            }
        },
        synchronizer={"sync_offset": 2},
        explorer={"eval_on_startup": False, "eval_interval": EVALUATED},
        monitor={"monitor_type": "none"},
    )
    modules = MODULES | {"explorer": "tests.support.model_free.dying_explorer"}
    run = LocalRun(
        plan=plan,
        reporter=make_reporter(plan.label),
        services=model_free_services(modules),
    )
    async with asyncio.timeout(5 * MOST_SECONDS):
        summary = await run.run_to_end()
    [stage] = summary.stages
    failed = {done.version: done.num_failed for done in stage.evaluations}
    assert sorted(failed) == [2, 4, 6, 8]
    assert failed.pop(EVALUATED) > 0
    assert set(failed.values()) == {0}
    assert "published weights are lost" in log_of(plan, "trainer")
    assert f"the weights of version {EVALUATED} are lost" in log_of(plan, "explorer")


async def test_final_weights_that_go_bad_during_their_evaluation_come_from_the_checkpoint(
    tmp_path: Path, calm_weights: str
) -> None:
    """The trainer has finished by then, and its ranks hold no weights."""
    final = 8
    plan = experiment_plan(
        tmp_path,
        buffer={
            "explorer_input": {
                "eval_tasksets": [{"name": "held_out", "path": str(tmp_path / "run.jsonl")}]
            }
        },
        explorer={"eval_on_startup": False, "eval_interval": 100},
    )
    modules = MODULES | {"explorer": "tests.support.model_free.dying_explorer"}
    environment = {"explorer": {VERSION_VARIABLE: str(final)}}
    async with model_free_stack(plan.job_path, modules=modules, environment=environment) as stack:
        async with asyncio.timeout(2 * MOST_SECONDS):
            ended = await run_to_end(stack.addresses.synchronizer, plan)
    assert weights_of(ended) == calm_weights
    found = ended.stages[-1].final_version
    assert (found.version, found.incarnation) == (final, 2)
    verify(Path(found.path), found.manifest_sha256)
