"""A loop that fails is started again, later each time, and is shown until it works."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from trinity.runtime.loops import LoopKeeper, LoopKind
from trinity.runtime.presence import WaitRegistry

STEADY_SECONDS = 1_000.0


class Told:
    """What a process is told of its loops."""

    def __init__(self) -> None:
        self.health: list[tuple[str, bool]] = []
        self.waits = WaitRegistry(owner="buffer", on_change=lambda: None)

    async def report(self, name: str, works: bool) -> None:
        self.health.append((name, works))

    @property
    def shown(self) -> list[tuple[str, str]]:
        return [(wait.waits_for, wait.reason) for wait in self.waits.to_proto()]

    def keeper(self, steady_seconds: float = STEADY_SECONDS) -> LoopKeeper:
        return LoopKeeper(
            waits=self.waits,
            report=self.report,
            first_pause_seconds=1.0,
            steady_seconds=steady_seconds,
        )


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between starts, which take no time here."""
    found: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        found.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    return found


def failing(times: int, error: Exception) -> Callable[[], Awaitable[None]]:
    left = [times]

    async def loop() -> None:
        if left[0]:
            left[0] -= 1
            raise error

    return loop


@pytest.mark.parametrize("kind", list(LoopKind))
async def test_a_loop_is_started_again_with_growing_pauses(
    pauses: list[float], kind: LoopKind
) -> None:
    told = Told()
    error = ExceptionGroup("several", [ExceptionGroup("inner", [KeyError("number")])])
    await told.keeper().keep_running("retention", failing(8, error), kind)
    growing = [pause for pause in pauses if pause != STEADY_SECONDS]
    assert growing == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert told.shown == [(kind, "retention: KeyError: 'number'")]
    assert told.health[:3] == [("retention", True), ("retention", False), ("retention", False)]


async def test_a_loop_that_runs_for_a_while_again_is_shown_no_longer() -> None:
    told, works = Told(), asyncio.Event()

    class Waits(WaitRegistry):
        def clear(self, name: str, *, told_from: float | None = None) -> None:
            super().clear(name, told_from=told_from)
            works.set()

    told.waits = Waits(owner="buffer", on_change=lambda: None)
    is_first = [True]

    async def loop() -> None:
        if is_first.pop() if is_first else False:
            raise ValueError("once")
        await asyncio.Event().wait()

    keeper = LoopKeeper(
        waits=told.waits, report=told.report, first_pause_seconds=0.0, steady_seconds=0.0
    )
    task = asyncio.create_task(keeper.keep_running("retention", loop))
    async with asyncio.timeout(60):
        await works.wait()
    assert told.shown == []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_cancelled_ends() -> None:
    told = Told()
    task = asyncio.create_task(told.keeper().keep_running("retention", asyncio.Event().wait))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told.shown == []
