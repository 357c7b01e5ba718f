"""Rows are looked up by their ids, also in a stage of which Postgres has no statistics yet.

Of such a stage it believes that it has next to no rows. Whatever index begins with the stage then
looks best to it: each lookup would read all rows of the stage, more of them with every step.
"""

import re
from collections.abc import Iterator

import psycopg
import pytest

from services.buffer.store import assignments, batches, experiences, pipeline, ready_rows, runs
from tests.integration.buffer.process import BufferProcess
from trinity.runtime.sql import Statement, text_of

ROWS = 5_000
BY_EXPERIENCE = {
    "derive": experiences._INSERT_DERIVED,
    "move on": experiences._SET_STATES,
    "find contents": experiences._PLACES,
    "measure": ready_rows._THESE,
}
BY_ASSIGNMENT = {
    "hold": runs._HOLD,
    "judge": runs._VIEWS,
    "count open runs": runs._UPDATE_OPEN_COUNTS,
    "end": assignments._END,
    "open scopes": pipeline._OPEN,
    "shape": experiences._RAW_SAMPLES,
}


@pytest.fixture
def young(process: BufferProcess) -> Iterator[psycopg.Connection]:
    """Tables with a stage of many rows, which nobody analyzes: temporary ones."""
    with psycopg.connect(process.dsn) as connection:
        connection.execute("SET search_path = pg_temp, buffer")
        for table in ("assignment", "experience", "run"):
            connection.execute(
                f"CREATE TEMP TABLE {table} (LIKE buffer.{table} INCLUDING DEFAULTS"
                " INCLUDING IDENTITY INCLUDING GENERATED INCLUDING INDEXES)"
            )
        connection.execute(
            "INSERT INTO experience (tenant, experiment_id, stage, experience_id, assignment_id,"
            " segment_id, payload_id, state, finish_reason, metrics, content_hash)"
            " SELECT 'default', '7b0e5c8e-0000-4000-8000-000000000000', 'rft', gen_random_uuid(),"
            " gen_random_uuid(), 1, gen_random_uuid(), 'raw', 'stop', '{}', ''"
            f" FROM generate_series(1, {ROWS})"
        )
        connection.execute(
            "INSERT INTO assignment (tenant, experiment_id, stage, assignment_id, kind, taskset,"
            " position, state)"
            " SELECT tenant, experiment_id, stage, assignment_id, 'train', 'train',"
            " row_number() OVER (), 'leased' FROM experience"
        )
        yield connection
        connection.rollback()


def plan_of(connection: psycopg.Connection, statement: Statement) -> str:
    """How Postgres would run it whatever the values are."""
    numbers: dict[str, str] = {}
    text = re.sub(
        r"%\((\w+)\)s",
        lambda found: numbers.setdefault(found[1], f"${len(numbers) + 1}"),
        text_of(statement).decode(),
    )
    explained = connection.execute(f"EXPLAIN (GENERIC_PLAN) {text}".encode())
    return "\n".join(row[0] for row in explained)


@pytest.mark.parametrize("name", BY_EXPERIENCE)
def test_experiences_are_found_by_their_ids(young: psycopg.Connection, name: str) -> None:
    plan = plan_of(young, BY_EXPERIENCE[name])
    assert re.search(r"Index Cond: \(+(experience\w*\.)?experience_id = ", plan), plan


@pytest.mark.parametrize("name", BY_ASSIGNMENT)
def test_assignments_are_found_by_their_ids(young: psycopg.Connection, name: str) -> None:
    plan = plan_of(young, BY_ASSIGNMENT[name])
    assert re.search(r"Index Cond: \(+(\w+\.)?assignment_id = ANY", plan), plan


def test_parents_are_not_compared_with_every_new_row(young: psycopg.Connection) -> None:
    young.execute("ANALYZE experience")
    plan = plan_of(young, experiences._INSERT_DERIVED)
    assert re.search(r"Index Cond: \(+(\w+\.)?experience_id = \w+.parent_id", plan), plan


def test_samples_of_a_batch_are_looked_up_one_by_one(young: psycopg.Connection) -> None:
    young.execute("ANALYZE experience")
    plan = plan_of(young, batches._ITEMS)
    assert re.search(r"Index Cond: \(experience_id = batch_item.experience_id", plan), plan


def test_the_next_rows_are_read_in_their_order(young: psycopg.Connection) -> None:
    young.execute("UPDATE experience SET state = 'ready'")
    plan = plan_of(young, ready_rows._next(is_ordered=True))
    assert "state = 'ready'" in plan and "Sort Key: experience" not in plan, plan
    assert "Seq Scan" not in plan, plan


def test_runs_that_have_ended_are_not_searched_for_in_a_list(young: psycopg.Connection) -> None:
    plan = plan_of(young, runs._UPDATE_RUNS)
    assert "hashed SubPlan" in plan and "Index Cond" in plan, plan
