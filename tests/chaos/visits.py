"""Reads what the visitor of an experiment was told, beside what is stored of it."""

import re
from typing import Any

import psycopg

from tests.chaos import snapshot as s
from tests.chaos.folder import FaultsFolder
from tests.chaos.uploads import ABANDONED, DELETION_ASKED, GONE, TASKSET_DELETED, UPLOADED, row
from tests.chaos.visitor import DELETED, EXCLUDED, INCLUDED, OVERDUE, REWARDED

ROWS = """
    SELECT body FROM task WHERE taskset_id = %s ORDER BY index
"""
NOTICES = """
    SELECT body ->> 'text' AS text FROM progress WHERE experiment_id = %s AND kind = 'notice'
"""
LEFT_OUT = re.compile(r"(\d+) samples of \d+ tasks are left out: no reward came")


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
        overdue=tuple(one for line in folder.read(OVERDUE, **own) for one in line["ids"]),
        num_told_overdue=_num_told_overdue(connection, experiment_id),
        tasksets=_tasksets(connection, folder, experiment_id),
    )


def _num_told_overdue(connection: psycopg.Connection[dict[str, Any]], experiment_id: str) -> int:
    texts = [one["text"] for one in connection.execute(NOTICES, [experiment_id]).fetchall()]
    return sum(int(found[1]) for text in texts if (found := LEFT_OUT.match(text)))


def _tasksets(
    connection: psycopg.Connection[dict[str, Any]], folder: FaultsFolder, experiment_id: str
) -> tuple[s.Taskset, ...]:
    own = {"experiment_id": experiment_id}
    told: dict[str, int] = {}
    ids: dict[str, str] = {}
    for journal in (UPLOADED, TASKSET_DELETED, ABANDONED):
        for line in folder.read(journal, **own):
            told[line["name"]] = line["num_rows"]
            ids[line["name"]] = line.get("taskset_id") or ids[line["name"]]
    asked = {line["name"] for line in folder.read(DELETION_ASKED, **own)}
    return tuple(
        _taskset(connection, name, ids[name], num_rows, may_be_gone=name in asked)
        for name, num_rows in told.items()
    )


def _taskset(
    connection: psycopg.Connection[dict[str, Any]],
    name: str,
    taskset_id: str,
    told_rows: int,
    *,
    may_be_gone: bool,
) -> s.Taskset:
    """One that is gone whole, as was asked, counts as if its client had still been told so."""
    bodies = [one["body"] for one in connection.execute(ROWS, [taskset_id]).fetchall()]
    if may_be_gone and not bodies:
        told_rows = GONE
    right = [body == row(name, place) for place, body in enumerate(bodies)]
    return s.Taskset(
        name=name,
        told_rows=told_rows,
        right_rows=right.index(False) if False in right else len(right),
        stored_rows=len(bodies),
    )
