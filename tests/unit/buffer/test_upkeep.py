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
from trinity.runtime.presence import WaitRegistry
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
        KeyError("number"),
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
    waits = WaitRegistry(owner="buffer", on_change=lambda: None)
    shown = maintenance.StageFailures("cutoff", "something waits", waits)
    await maintenance._in_each_stage(Open(), lambda _: True, act, shown)
    assert acted == [NEXT]
    told = [(wait.waits_for, wait.reason) for wait in waits.to_proto()]
    about = f"experiment {KEY.experiment_id}, stage {KEY.stage}"
    why = f"cutoff ({about}): {type(error).__name__}: {error}"
    # A database that is away is shown by the process itself.
    assert told == ([] if isinstance(error, Unavailable) else [("data path", why)])


async def test_a_stage_that_works_again_or_has_ended_is_shown_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stages = [stage()]

    async def listed(_: Connection) -> list[Stage]:
        return stages

    async def act(_: Connection, key: StageKey) -> None:
        if fails:
            raise KeyError(key.stage)

    monkeypatch.setattr(maintenance, "list_readable", listed)
    waits = WaitRegistry(owner="buffer", on_change=lambda: None)
    shown = maintenance.StageFailures("cutoff", "something waits", waits)
    for has_ended in (False, True):
        fails = True
        await maintenance._in_each_stage(Open(), lambda _: True, act, shown)
        [wait] = waits.to_proto()
        assert wait.reason.endswith(f"stage {KEY.stage}): KeyError: {KEY.stage!r}")
        fails = False
        if has_ended:
            stages.clear()
        await maintenance._in_each_stage(Open(), lambda _: True, act, shown)
        assert waits.to_proto() == []
