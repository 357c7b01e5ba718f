"""Reads what the visitor of an experiment was told, beside what is stored of it."""

from typing import Any

import psycopg

from tests.faults import snapshot as s
from tests.faults.folder import FaultsFolder
from tests.faults.uploads import TASKSET_DELETED, UPLOADED, row
from tests.faults.visitor import DELETED, EXCLUDED, INCLUDED, REWARDED

ROWS = """
    SELECT body FROM task WHERE taskset_id = %s ORDER BY index
"""


def read_visit(
    connection: psycopg.Connection[dict[str, Any]], folder: FaultsFolder, experiment_id: str
) -> s.Visit:
    """Of an experiment without a visitor it is empty."""
    own = {"experiment_id": experiment_id}
    return s.Visit(
        rewarded=tuple(
            s.Rewarded(rewards=line["rewards"], are_new=line["are_new"])
            for line in folder.read(REWARDED, **own)
        ),
        excluded=tuple(one for line in folder.read(EXCLUDED, **own) for one in line["ids"]),
        included=tuple(one for line in folder.read(INCLUDED, **own) for one in line["ids"]),
        deleted=tuple(one for line in folder.read(DELETED, **own) for one in line["ids"]),
        tasksets=_tasksets(connection, folder, experiment_id),
    )


def _tasksets(
    connection: psycopg.Connection[dict[str, Any]], folder: FaultsFolder, experiment_id: str
) -> tuple[s.Taskset, ...]:
    own = {"experiment_id": experiment_id}
    uploaded = {line["name"]: line for line in folder.read(UPLOADED, **own)}
    told = {name: line["num_rows"] for name, line in uploaded.items()}
    told |= {line["name"]: -1 for line in folder.read(TASKSET_DELETED, **own)}
    return tuple(
        _taskset(connection, name, uploaded[name]["taskset_id"], number)
        for name, number in told.items()
    )


def _taskset(
    connection: psycopg.Connection[dict[str, Any]], name: str, taskset_id: str, told_rows: int
) -> s.Taskset:
    bodies = [one["body"] for one in connection.execute(ROWS, [taskset_id]).fetchall()]
    right = [body == row(name, place) for place, body in enumerate(bodies)]
    return s.Taskset(
        name=name,
        told_rows=told_rows,
        right_rows=right.index(False) if False in right else len(right),
        stored_rows=len(bodies),
    )
