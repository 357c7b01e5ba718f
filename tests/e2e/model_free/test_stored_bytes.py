"""A whole run leaves no pickle in the database: every stored byte string is looked through."""

import io
import pickle
import pickletools
import random
import re
from pathlib import Path

import numpy as np
import psycopg
import pytest
from psycopg import sql

from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.shared_stack import ON_IT, SharedStack
from trinity.api.v1 import experience_pb2
from trinity.api.v1 import synchronizer_pb2 as pb

COLUMNS = """
    SELECT table_name, column_name, data_type FROM information_schema.columns
    WHERE table_schema = %s AND data_type IN ('bytea', 'text', 'jsonb')
"""
BEGINNING = re.compile(rb"\x80[\x02-\x05]")
"""PROTO, the first opcode of every pickle of protocol 2 and later; 0 and 1 have no such mark."""
FEWEST_OPCODES = 4
"""PROTO, one that makes a value, one that keeps it, STOP."""


def is_pickle(stored: bytes) -> bool:
    """Whether it can be read as one from its first byte to its last."""
    try:
        *_, (_, _, place) = pickletools.genops(stored)
    except Exception:  # whatever is wrong with it, it is none
        return False
    return place == len(stored) - 1


def holds_pickle(stored: bytes) -> bool:
    """Whether one begins somewhere in it, of those that say their protocol first."""
    return any(_begins_pickle(stored[one.start() :]) for one in BEGINNING.finditer(stored))


def _begins_pickle(rest: bytes) -> bool:
    """Lengths and figures may begin like one: no more do they leave one thing on the stack."""
    try:
        opcodes = list(pickletools.genops(rest))
        pickletools.dis(rest, out=io.StringIO())
    except Exception:  # whatever is wrong with it, it is none
        return False
    return len(opcodes) >= FEWEST_OPCODES


PICKLED = {"a": [1, 2.5, b"c"]}
WITH_PROTOCOL = range(2, pickle.HIGHEST_PROTOCOL + 1)


def test_a_pickle_would_be_known() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert is_pickle(pickle.dumps(PICKLED, protocol))
    for stored in (b"", b"{}", b'{"a": 1}', b"\n\x03abc", bytes(32), b"default"):
        assert not is_pickle(stored)
        assert not holds_pickle(stored)


@pytest.mark.parametrize("protocol", WITH_PROTOCOL)
@pytest.mark.parametrize("value", [PICKLED, "text", [0], np.zeros(3)], ids=repr)
def test_a_pickle_within_a_message_would_be_known(value: object, protocol: int) -> None:
    hidden = pickle.dumps(value, protocol)
    field = experience_pb2.Tensor(shape=[len(hidden)], data=hidden)
    result = experience_pb2.RunResultBatch(producer="one", blob_sha256=hidden)
    for message in (field, result):
        stored = message.SerializeToString()
        assert holds_pickle(stored)
        assert not is_pickle(stored)


def test_random_bytes_and_lengths_that_begin_like_a_pickle_are_none() -> None:
    chance = random.Random(1)
    for length in (256, 384, 512, 640):
        for _ in range(2_000):
            field = experience_pb2.Tensor(data=chance.randbytes(length))
            assert not holds_pickle(field.SerializeToString())
    assert not holds_pickle(experience_pb2.RunResult(reason="N." * 128).SerializeToString())


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
                found = is_pickle(stored) or holds_pickle(stored)
                assert not found, (table, column, stored[:60])
                num_stored += 1
    return num_stored
