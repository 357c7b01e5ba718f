"""Exploring without a trainer, and training on what was stored, over real services."""

from pathlib import Path

import psycopg
import pytest
from pydantic import JsonValue

from tests.chaos.arena import Arena
from tests.chaos.crash import DEATHS
from tests.chaos.journals import LOADS
from tests.chaos.shared_arena import ON_IT
from tests.support.model_free.experiment import experiment_plan, final_weights
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.stage_plan import ExperimentPlan

pytestmark = [ON_IT, pytest.mark.timeout(600)]

END_SECONDS = 240.0
NUM_ROWS = 8 * 4 * 2
"""Explore steps, tasks and runs."""
POINTS = ("explorer.results-published", "buffer.groups-shaped", "rank.step-trained")


def explored_then_trained(root: Path, name: str) -> ExperimentPlan:
    grpo: JsonValue = {"algorithm_type": "grpo", "repeat_times": 2, "kl_loss_fn": "none"}
    stages: list[JsonValue] = [
        {"stage_name": stage, "mode": mode, "algorithm": grpo}
        for stage, mode in (("look", "explore"), ("learn", "train"))
    ]
    stages[-1]["buffer"] = {"total_steps": None}  # type: ignore[call-overload,index]
    return experiment_plan(root / name, name=name, stages=stages)


def trained_rows(arena: Arena, experiment_id: str) -> list[str]:
    statement = "select experience_id::text from buffer.batch_item where experiment_id = %s"
    with psycopg.connect(arena.secret("buffer-postgres-dsn")) as connection:
        return [row[0] for row in connection.execute(statement, [experiment_id])]


async def run(arena: Arena, name: str) -> pb.Experiment:
    plan = explored_then_trained(arena.root, name)
    ended = await arena.run_plan(plan, end_seconds=END_SECONDS)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    return ended


async def test_exploring_begins_with_what_was_trained_before(arena: Arena, tmp_path: Path) -> None:
    data = str(tmp_path / "warm.jsonl")
    rows: JsonValue = {
        "train_batch_size": 8,
        "trainer_input": {
            "experience_buffer": {
                "storage_type": "file",
                "path": data,
                "format": {"prompt_type": "plaintext"},
            }
        },
    }
    plan = experiment_plan(
        tmp_path,
        name="warm",
        stages=[
            {
                "stage_name": "warm",
                "mode": "train",
                "algorithm": {"algorithm_type": "sft"},
                "buffer": rows,
                "trainer": {"total_steps": 2},
            },
            {"stage_name": "look", "mode": "explore", "algorithm": {"repeat_times": 2}},
        ],
        buffer={"total_steps": 2},
    )
    known = len(list(arena.folder.read(LOADS)))
    ended = await arena.run_plan(plan, end_seconds=END_SECONDS)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    warm = ended.stages[0].final_version
    loads = list(arena.folder.read(LOADS))[known:]
    assert [(line["path"], line["is_intact"]) for line in loads] == [(warm.path, True)]


async def test_what_was_explored_once_is_trained_later_each_row_once(arena: Arena) -> None:
    calm = await run(arena, "exploring-calm")
    look, learn = calm.stages
    assert list(look.finished_roles) == [pb.ROLE_EXPLORER]
    assert not look.final_version.path
    assert learn.final_version.version == 8
    rows = trained_rows(arena, calm.id)
    assert len(rows) == len(set(rows)) == NUM_ROWS
    known = len(list(arena.folder.read(DEATHS)))
    for point in POINTS:
        arena.folder.arm(point)
    disturbed = await run(arena, "exploring-disturbed")
    assert len(list(arena.folder.read(DEATHS))) - known == len(POINTS)
    assert final_weights(disturbed) == final_weights(calm)
