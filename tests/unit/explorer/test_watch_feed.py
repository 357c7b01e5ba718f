"""A watch stream is reopened until a deadline, and its outage is one wait."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from services.explorer.clients import watch_feed
from services.explorer.clients.watch_feed import WatchFeed
from trinity.errors import RolloutStageFailed, Unavailable
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import RetryPolicy


@pytest.fixture
def waits() -> WaitRegistry:
    return WaitRegistry(owner="explorer", on_change=lambda: None)


async def closed() -> AsyncIterator[int]:
    raise Unavailable("refused")
    yield 0


async def silent() -> AsyncIterator[int]:
    await asyncio.Event().wait()
    yield 0


async def opened() -> AsyncIterator[int]:
    yield 1
    await asyncio.Event().wait()


def feed_of(
    stream: Callable[[], AsyncIterator[int]], purpose: str, policy: RetryPolicy
) -> WatchFeed[int]:
    return WatchFeed(stream, waits_for="synchronizer", purpose=purpose, retry_policy=policy)


@pytest.mark.parametrize(
    ("stream", "reason"), [(closed, "refused"), (silent, watch_feed.NO_RESPONSE)]
)
async def test_a_stream_that_stays_closed_or_says_nothing_ends_with_a_sentence(
    stream: Callable[[], AsyncIterator[int]],
    reason: str,
    waits: WaitRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_feed, "FIRST_RESPONSE_SECONDS", 0.02)
    with pytest.raises(RolloutStageFailed, match=f"for the synchronizer to follow it: {reason}"):
        await feed_of(stream, "follow it", RetryPolicy(waits, 0.05)).follow_stream()


async def test_two_streams_of_one_service_are_two_waits(waits: WaitRegistry) -> None:
    first = feed_of(closed, "follow one", RetryPolicy(waits))
    other = feed_of(opened, "follow other", RetryPolicy(waits))
    running = [asyncio.create_task(feed.follow_stream()) for feed in (first, other)]
    await other.wait_for(lambda _: True)
    (wait,) = waits.to_proto()
    assert wait.reason == "to follow one: refused"
    for task in running:
        task.cancel()
    await asyncio.wait(running)
