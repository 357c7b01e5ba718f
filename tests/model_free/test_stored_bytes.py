"""A whole run leaves no pickle in the database: every stored byte string is looked at."""

import pickle
import pickletools
from pathlib import Path

import psycopg
from psycopg import sql

from tests.model_free.experiment import experiment_plan, run_to_end
from tests.model_free.shared_stack import ON_IT, SharedStack
from trinity.api.v1 import synchronizer_pb2 as pb

COLUMNS = """
    SELECT table_name, column_name, data_type FROM information_schema.columns
    WHERE table_schema = %s AND data_type IN ('bytea', 'text', 'jsonb')
"""


def is_pickle(stored: bytes) -> bool:
    """Whether it can be read as one from its first byte to its last."""
    try:
        *_, (_, _, place) = pickletools.genops(stored)
    except Exception:  # whatever is wrong with it, it is none
        return False
    return place == len(stored) - 1


def test_a_pickle_would_be_known() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert is_pickle(pickle.dumps({"a": [1, 2.5, b"c"]}, protocol))
    for stored in (b"", b"{}", b'{"a": 1}', b"\n\x03abc", bytes(32), b"default"):
        assert not is_pickle(stored)


@ON_IT
async def test_nothing_that_a_run_stores_is_a_pickle(
    tmp_path: Path, shared_stack: SharedStack
) -> None:
    plan = experiment_plan(tmp_path, name="without-pickles")
    ended = await run_to_end(shared_stack.synchronizer, plan)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    num_stored = {
        schema: _look_at(schema, shared_stack.secret(f"{schema}-postgres-dsn"))
        for schema in ("buffer", "synchronizer")
    }
    assert num_stored["buffer"] > 1_000 and num_stored["synchronizer"] > 10


def _look_at(schema: str, dsn: str) -> int:
    """How many values there were."""
    num_stored = 0
    with psycopg.connect(dsn) as connection:
        for table, column, kind in connection.execute(COLUMNS, [schema]).fetchall():
            chosen = (
                sql.Identifier(column)
                if kind == "bytea"
                else sql.SQL("{}::text").format(sql.Identifier(column))
            )
            query = sql.SQL("SELECT {} FROM {}").format(chosen, sql.Identifier(schema, table))
            for (value,) in connection.execute(query):
                stored = value.encode() if isinstance(value, str) else bytes(value or b"")
                assert not is_pickle(stored), (table, column, stored[:60])
                num_stored += 1
    return num_stored
