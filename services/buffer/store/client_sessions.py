"""Statements on the sessions of clients, and on the calls that they reward and commit."""

from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from services.buffer.store.database import (
    id_in,
    key_columns,
    of_stage,
    seconds_from_now,
    stage_params,
    value_of,
)
from services.buffer.store.schema import NOW, STAGE_KEY, UUID
from services.buffer.store.session_schema import session, turn
from services.buffer.store.turns import OF_SESSIONS, TOKENS, UNCOMMITTED_SECONDS, StoredTurn
from trinity.runtime.sql import Connection
from trinity.types import StageKey

_IS_OF_SESSION = (of_stage(turn), turn.c.session_id == sa.bindparam("own_id", type_=UUID))
_REWARD = (
    sa.update(turn)
    .where(*_IS_OF_SESSION, id_in(turn.c.call_id), turn.c.reward.is_(None))
    .values(reward=sa.bindparam("new_reward"), task=sa.bindparam("new_task"))
)
_READY = sa.select(turn).where(
    *_IS_OF_SESSION,
    turn.c.reward.is_not(None),
    turn.c.assignment_id.is_(None),
    turn.c.created_at > seconds_from_now(-UNCOMMITTED_SECONDS),
)
_COMMIT = (
    sa.update(turn)
    .where(of_stage(turn), id_in(turn.c.turn_id))
    .values(assignment_id=sa.bindparam("new_assignment", type_=UUID), run=sa.bindparam("new_run"))
)


async def token_of(connection: Connection, key: StageKey, own_id: str) -> str | None:
    """Returns the token of a client's session; None if there is no such session."""
    rows = await connection.fetch(TOKENS, stage_params(key, ids=[own_id]))
    return rows[0].token if rows else None


async def hold_session(
    connection: Connection, key: StageKey, own_id: str, name: str, token: str
) -> bool:
    """Makes a session if there is none, and gives it this token; returns True for a new one."""
    row = {**key_columns(key), "session_id": own_id, "client": name, "token": token}
    new = insert(session).values(row)
    held = new.on_conflict_do_update(
        index_elements=["session_id", *STAGE_KEY],
        set_={"token": new.excluded.token, "opened_at": NOW},
    )
    return bool(await connection.fetch_value(held.returning(sa.literal_column("xmax = 0"))))


async def turns_of_client(
    connection: Connection, key: StageKey, own_id: str, wanted: Iterable[str] = ()
) -> list[StoredTurn]:
    """Returns the turns of a session in the order of their storing.

    With `wanted` only these, and those before them.
    """
    rows = await connection.fetch(OF_SESSIONS, stage_params(key, ids=[own_id]))
    turns = [value_of(StoredTurn, row) for row in rows]
    if not (left := set(wanted)):
        return turns
    found = []
    for stored in reversed(turns):  # parents are stored first
        if stored.turn_id in left:
            found.append(stored)
            left.add(stored.parent_id or "")
    return found[::-1]


async def reward_calls(
    connection: Connection,
    key: StageKey,
    own_id: str,
    call_ids: Sequence[str],
    *,
    reward: float,
    task: str,
) -> None:
    """Gives the answers of these calls a reward, unless they have one."""
    values = stage_params(key, own_id=own_id, ids=call_ids, new_reward=reward, new_task=task)
    await connection.execute(_REWARD, values)


async def ready_turns(connection: Connection, key: StageKey, own_id: str) -> list[StoredTurn]:
    """Returns the rewarded turns that are not committed, in the order of their storing."""
    ready = _READY.order_by(turn.c.number)
    rows = await connection.fetch(ready, stage_params(key, own_id=own_id))
    return [value_of(StoredTurn, row) for row in rows]


async def mark_committed(
    connection: Connection, key: StageKey, turns: Mapping[tuple[str, int], Sequence[str]]
) -> None:
    """Records the runs, by assignment and number, that turns were committed as."""
    for (assignment_id, run), ids in turns.items():
        values = stage_params(key, ids=ids, new_assignment=assignment_id, new_run=run)
        await connection.execute(_COMMIT, values)
