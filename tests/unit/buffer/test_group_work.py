"""Claims are held for as long as their groups are worked on, also when the database is away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from services.buffer.domain.operators import FunctionChain
from services.buffer.domain.stage import Stage
from services.buffer.pipeline import pipeline
from services.buffer.pipeline.pipeline import ClaimProcessor
from services.buffer.pipeline.shaping import AdvantageComputer
from services.buffer.store.database import BufferDatabase
from services.buffer.store.pipeline import Claim, GroupResult
from services.buffer.workers.functions import FunctionRunner, ServiceUnavailable
from tests.unit.buffer.builders import ASSIGNMENT, KEY, stage
from trinity.errors import Unavailable
from trinity.runtime.postgres import async_engine
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.sql import Connection

NUM_OUTAGES = 2
SECONDS = 5.0
OWN = Claim(key=KEY, assignment_id=ASSIGNMENT, explore_step=1, position=0, token="t", attempts=0)


class ComesBack(BufferDatabase):
    """Is away a few times, then there; nothing is asked of it but whether it is."""

    def __init__(self) -> None:
        super().__init__(async_engine("postgresql://nobody@localhost/none", "buffer"))
        self._num_asked = 0

    @contextlib.asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Connection]:
        self._num_asked += 1
        if self._num_asked <= NUM_OUTAGES:
            raise Unavailable("the database is away")
        yield cast(Connection, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(AdvantageComputer):
    """Shapes until somebody says that it was long enough, and gives nothing."""

    is_enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def compute_groups(
        self, stage: Stage, chain: FunctionChain, claims: Sequence[Claim]
    ) -> list[GroupResult]:
        try:
            async with asyncio.timeout(SECONDS):
                await self.is_enough.wait()
        except TimeoutError as error:
            raise ServiceUnavailable("nobody said so") from error
        raise ServiceUnavailable("it was long enough")


async def test_claims_are_renewed_again_when_the_database_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database = ComesBack()
    waits = WaitRegistry(owner="buffer", on_change=lambda: None)
    shaper = Slow(database=database, functions=FunctionRunner(1.0, 0), waits=waits)
    renewed: list[Claim] = []

    async def renew(_: Connection, claims: Sequence[Claim], __: float) -> None:
        renewed.extend(claims)
        shaper.is_enough.set()

    monkeypatch.setattr(pipeline, "CLAIM_SECONDS", 0.003)
    monkeypatch.setattr(pipeline, "renew_claims", renew)
    own = stage()
    with pytest.raises(ServiceUnavailable, match="long enough"):
        await ClaimProcessor(database=database, computer=shaper).process_claims(
            own, FunctionChain.from_plan(own.plan), [OWN]
        )
    assert renewed[0] == OWN
    assert "the database is away" in str(caplog.records[0].__dict__)
