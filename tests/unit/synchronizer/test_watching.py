"""Streams of states, without a database."""

import pytest

from services.synchronizer.watching import WatchStreams
from trinity.errors import Unavailable
from trinity.runtime.notifications import Listener


class Source:
    """A state that a test changes; it can be away."""

    def __init__(self) -> None:
        self.listener = Listener("postgresql://nobody@127.0.0.1:1/none", "test")
        self.watching = WatchStreams(self.listener)
        self.state = 0
        self.failures = 0

    async def read(self) -> int:
        if self.failures:
            self.failures -= 1
            raise Unavailable("away")
        return self.state

    def change(self, state: int) -> None:
        self.state = state
        self.listener.wake_all()


async def test_a_slow_reader_gets_the_newest_state_only() -> None:
    source = Source()
    states = source.watching.stream("", source.read)
    assert await anext(states) == 0
    for state in range(1, 1000):
        source.change(state)
    assert await anext(states) == 999
    source.change(1000)
    assert await anext(states) == 1000
    await states.aclose()


async def test_a_state_that_did_not_change_is_not_repeated() -> None:
    source = Source()
    states = source.watching.stream("", source.read)
    assert await anext(states) == 0
    source.listener.wake_all()
    pending = anext(states)
    source.change(0)
    source.change(1)
    assert await pending == 1
    await states.aclose()


async def test_a_change_during_a_read_is_not_missed() -> None:
    source = Source()

    async def read_while_it_changes() -> int:
        state = await source.read()
        if state < 3:
            source.change(state + 1)
        return state

    states = source.watching.stream("", read_while_it_changes)
    assert [await anext(states) for _ in range(4)] == [0, 1, 2, 3]
    await states.aclose()


async def test_a_stream_outlasts_a_database_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.synchronizer.watching._RETRY_SECONDS", 0.001)
    source = Source()
    states = source.watching.stream("", source.read)
    assert await anext(states) == 0
    source.failures = 3
    source.change(1)
    assert await anext(states) == 1
    await states.aclose()


async def test_a_stream_ends_with_an_error_when_the_service_stops() -> None:
    source = Source()
    states = source.watching.stream("", source.read)
    assert await anext(states) == 0
    source.watching.close_streams()
    with pytest.raises(Unavailable, match="open the stream again"):
        await anext(states)
