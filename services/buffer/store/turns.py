"""Statements on sessions and their turns, whose payloads lie in the stage's segments."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from services.buffer.domain.stage import AssignmentState
from services.buffer.domain.turns import ReceivedTurn
from services.buffer.store.database import (
    BufferDatabase,
    id_in,
    in_stage,
    insert_bodies,
    insert_rows,
    key_columns,
    of_stage,
    seconds_from_now,
    stage_params,
    value_of,
)
from services.buffer.store.schema import NOW, UUID, assignment
from services.buffer.store.segments import payloads_of, retired_segments, unavailable_if_dropped
from services.buffer.store.session_schema import session, turn
from trinity.runtime.session_ids import session_id
from trinity.runtime.sql import Connection
from trinity.types import StageKey

CODEC = "trinity.api.v1.TurnPayload/zlib"
SCHEMA_VERSION = 1
BODIES_AT_ONCE = 64
KNOWN = sa.select(turn.c.turn_id, turn.c.content_hash).where(of_stage(turn), id_in(turn.c.turn_id))
"""Hashes of stored turns by id."""
TOKENS = sa.select(session.c.session_id, session.c.token).where(
    of_stage(session), id_in(session.c.session_id)
)
"""Tokens of clients' sessions by id."""
OF_SESSIONS = (
    sa.select(turn)
    .where(of_stage(turn), id_in(turn.c.session_id))
    .order_by(turn.c.session_id, turn.c.number)
)
_OF_COMMITTED = sa.select(turn).where(of_stage(turn), id_in(turn.c.assignment_id))
UNCOMMITTED_SECONDS = 7 * 86_400
"""Time for which the contents of clients' turns are kept that are not committed."""
_IS_HELD = sa.select(sa.func.count()).where(
    in_stage(assignment),
    assignment.c.assignment_id == sa.bindparam("own_id", type_=UUID),
    assignment.c.lease_token == sa.bindparam("token", type_=UUID),
    assignment.c.state == AssignmentState.LEASED,
    assignment.c.lease_until > NOW,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """A turn as it is stored."""

    turn_id: str
    parent_id: str | None
    prompt_sha256: bytes
    ordinal: int
    segment_id: int
    call_id: str | None = None
    task: str | None = None
    reward: float | None = None
    run: int | None = None
    """The run that it was committed as."""


async def insert_turns(
    connection: Connection, key: StageKey, segment_id: int, turns: Sequence[ReceivedTurn]
) -> None:
    """Stores new turns, and their sessions with the first turn of each."""
    if not turns:
        return
    own = key_columns(key)
    sessions = {
        received.session_id: {
            **own,
            "session_id": received.session_id,
            "assignment_id": received.assignment_id,
            "run": received.run,
        }
        for received in turns
        if received.assignment_id is not None
    }
    await insert_rows(connection, session, list(sessions.values()), ignore_existing=True)
    place = {**own, "segment_id": segment_id}
    bodies = [
        {
            **place,
            "payload_id": received.turn_id,
            "codec": CODEC,
            "schema_version": SCHEMA_VERSION,
            "body": received.body,
        }
        for received in turns
    ]
    await insert_bodies(connection, payloads_of(segment_id), bodies)
    names = (
        *("session_id", "turn_id", "parent_id", "prompt_sha256", "ordinal", "content_hash"),
        "call_id",
    )
    rows = [{**place, **{name: getattr(received, name) for name in names}} for received in turns]
    await insert_rows(connection, turn, rows)


async def holds_lease(
    connection: Connection, key: StageKey, assignment_id: str, token: str
) -> bool:
    """Returns true if an assignment is leased under this token."""
    values = stage_params(key, own_id=assignment_id, token=token)
    return bool(await connection.fetch_value(_IS_HELD, values))


async def turns_of(
    connection: Connection, key: StageKey, runs: Iterable[tuple[str, int]]
) -> list[StoredTurn]:
    """Returns the turns of runs, given by assignment and number, in the order of their storing."""
    wanted = set(runs)
    ids = sorted({session_id(*run) for run in wanted})
    rows = await connection.fetch(OF_SESSIONS, stage_params(key, ids=ids))
    ids = sorted({assignment_id for assignment_id, _ in wanted})
    committed = await connection.fetch(_OF_COMMITTED, stage_params(key, ids=ids))
    rows += [row for row in committed if (row.assignment_id, row.run) in wanted]
    return [value_of(StoredTurn, row) for row in rows]


async def read_bodies(
    database: BufferDatabase, key: StageKey, turns: Sequence[StoredTurn]
) -> AsyncIterator[list[tuple[StoredTurn, bytes | None]]]:
    """Yields turns with their payloads in parts; None for a payload that is gone."""
    for begin in range(0, len(turns), BODIES_AT_ONCE):
        part = turns[begin : begin + BODIES_AT_ONCE]
        bodies: dict[str, bytes] = {}
        async with database.autocommit() as connection:
            retired = await retired_segments(connection, key)
            for segment_id in {stored.segment_id for stored in part} - retired:
                ids = [stored.turn_id for stored in part if stored.segment_id == segment_id]
                table = payloads_of(segment_id)
                wanted = sa.select(table.c.payload_id, table.c.body).where(
                    in_stage(table, key),
                    table.c.segment_id == segment_id,
                    id_in(table.c.payload_id, ids),
                )
                with unavailable_if_dropped():
                    found = await connection.fetch(wanted)
                bodies |= {row.payload_id: row.body for row in found}
        yield [(stored, bodies.get(stored.turn_id)) for stored in part]


async def segments_of_open_sessions(connection: Connection, key: StageKey) -> set[int]:
    """Returns the segments with turns that an explorer may still ask for.

    Those of clients are asked for until they are committed, and then for their run.
    """
    of_session = sa.and_(turn.c.session_id == session.c.session_id, of_stage(turn, key))
    of_assignment = sa.and_(
        assignment.c.assignment_id == session.c.assignment_id, in_stage(assignment, key)
    )
    statement = (
        sa.select(turn.c.segment_id)
        .distinct()
        .select_from(assignment)
        .join(session, sa.and_(of_assignment, in_stage(session, key)))
        .join(turn, of_session)
        .where(assignment.c.is_open)
    )
    is_young = turn.c.created_at > seconds_from_now(-UNCOMMITTED_SECONDS)
    of_run = sa.and_(assignment.c.assignment_id == turn.c.assignment_id, in_stage(assignment, key))
    of_clients = (
        sa.select(turn.c.segment_id)
        .distinct()
        .select_from(turn)
        .join(assignment, of_run, isouter=True)
        .where(of_stage(turn, key), turn.c.call_id.is_not(None))
        .where(sa.or_(assignment.c.is_open, turn.c.assignment_id.is_(None) & is_young))
    )
    return {
        *await connection.fetch_column(statement),
        *await connection.fetch_column(of_clients),
    }


def have_turns(assignment_ids: Iterable[str], key: StageKey) -> sa.Select[tuple[str]]:
    """Builds the statement that returns which of these assignments have turns."""
    return (
        sa.select(session.c.assignment_id)
        .distinct()
        .where(in_stage(session, key), id_in(session.c.assignment_id, list(assignment_ids)))
    )
