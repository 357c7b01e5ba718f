"""What the buffer lacks shows in its readiness and among its waits."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from services.buffer.__main__ import BufferReadiness
from trinity.runtime.presence import WaitRegistry


@dataclass
class Told:
    """Readiness as it was told last."""

    ready: bool | None = None
    reason: str = ""

    async def set_ready(self, ready: bool, reason: str = "") -> None:
        self.ready, self.reason = ready, reason


@dataclass
class World:
    """A buffer's needs, with a broker that comes and goes."""

    told: Told = field(default_factory=Told)
    waits: WaitRegistry = field(
        default_factory=lambda: WaitRegistry(owner="buffer", on_change=lambda: None)
    )
    stream: Any = field(default_factory=lambda: SimpleNamespace(is_connected=True))
    bound: asyncio.Event = field(default_factory=asyncio.Event)

    def needs(self) -> BufferReadiness:
        ingest: Any = SimpleNamespace(bound=self.bound)
        health: Any = self.told
        return BufferReadiness(health=health, ingest=ingest, stream=self.stream, waits=self.waits)

    @property
    def waits_for(self) -> list[str]:
        return [wait.waits_for for wait in self.waits.to_proto()]


async def test_the_database_and_the_broker_are_waits_for_as_long_as_they_are_away() -> None:
    world = World()
    needs = world.needs()
    await needs.set_ready(False, "the database has not answered for 2 s")
    assert sorted(world.waits_for) == ["broker", "database"]
    assert world.told == Told(False, "the database has not answered for 2 s")
    world.bound.set()
    await needs.set_ready(True)
    assert world.waits_for == [] and world.told.ready
    world.stream.is_connected = False
    await needs.set_ready(True)
    assert world.waits_for == ["broker"]
    assert world.told == Told(False, "the broker does not answer")
