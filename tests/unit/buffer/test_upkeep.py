"""What is looked after in each stage waits for no other stage."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import cast

import pytest

from services.buffer import maintenance
from services.buffer.domain.stage import Stage
from services.buffer.store.database import BufferDatabase
from services.buffer.store.stages import UnreadablePlan
from tests.unit.buffer.builders import KEY, stage
from trinity.errors import PreconditionFailed, Unavailable
from trinity.runtime.postgres import async_engine
from trinity.runtime.sql import Connection
from trinity.types import StageKey

NEXT = StageKey(tenant=KEY.tenant, experiment_id=KEY.experiment_id, stage="next")


class Open(BufferDatabase):
    """Gives connections that nobody may use."""

    def __init__(self) -> None:
        super().__init__(async_engine("postgresql://nobody@localhost/none", "buffer"))

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        yield cast(Connection, None)


@pytest.mark.parametrize(
    "error",
    [
        UnreadablePlan("its plan has a new field", key=KEY, is_open=True),
        PreconditionFailed("it is of another time"),
        Unavailable("the database is away"),
    ],
)
async def test_a_stage_that_cannot_be_locked_leaves_the_others_their_turn(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def two_stages(_: Connection) -> list[Stage]:
        first = stage()
        return [first, replace(first, key=NEXT)]

    acted: list[StageKey] = []

    async def act(_: Connection, key: StageKey) -> None:
        if key == KEY:
            raise error
        acted.append(key)

    monkeypatch.setattr(maintenance, "list_readable", two_stages)
    await maintenance._in_each_stage(Open(), lambda _: True, act, "something waits")
    assert acted == [NEXT]
