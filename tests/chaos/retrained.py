"""Trains the stored batches of an experiment again, on the stack where it ran, and compares."""

from typing import Any

import psycopg
from psycopg.rows import dict_row

from tests.chaos.arena import Arena
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.parts import StoredBatches

ITEMS = """
    SELECT step, position, experience_id, advantage, weight FROM batch_item
    WHERE experiment_id = %s ORDER BY step, position
"""
END_SECONDS = 120.0


async def retrain(
    arena: Arena,
    source: pb.Experiment,
    name: str,
    *,
    num_steps: int,
    end_seconds: float = END_SECONDS,
) -> pb.Experiment:
    """All steps of the only stage, by a trainer alone."""
    plan = arena.plans[source.label]
    [stage] = plan.stages
    stored = StoredBatches(
        experiment_id=source.id, stage=stage.name, first_step=1, last_step=num_steps
    )
    changes = {"roles": ("trainer",), "eval_tasksets": (), "stored_batches": stored}
    made = plan.model_copy(
        update={
            "label": f"{plan.label}-{name}",
            "job_dir": str(arena.root / name),
            "stages": (stage.model_copy(update=changes),),
        }
    )
    return await arena.run_plan(made, end_seconds=end_seconds)


def differences(arena: Arena, source: pb.Experiment, again: pb.Experiment) -> list[str]:
    """Rows of batches that are not what they were."""
    with psycopg.connect(arena.secret("buffer-postgres-dsn"), row_factory=dict_row) as connection:
        before, after = (_items(connection, one.id) for one in (source, again))
    places = sorted(before.keys() | after.keys())
    return [
        f"row {place} was {before.get(place)} and is {after.get(place)}"
        for place in places
        if before.get(place) != after.get(place)
    ]


def _items(
    connection: psycopg.Connection[dict[str, Any]], experiment_id: str
) -> dict[tuple[int, int], tuple[str, float, float]]:
    return {
        (row["step"], row["position"]): (
            str(row["experience_id"]),
            row["advantage"],
            row["weight"],
        )
        for row in connection.execute(ITEMS, [experiment_id]).fetchall()
    }
