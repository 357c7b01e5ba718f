"""Calls beside the event loop, some of which never end."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from trinity.runtime.threads import DaemonThreads

PATIENCE_SECONDS = 30.0


def join_all() -> None:
    for thread in threading.enumerate():
        if thread.name == "test":
            thread.join(PATIENCE_SECONDS)


def threads(max_threads: int = 1) -> DaemonThreads:
    return DaemonThreads(name="test", max_threads=max_threads)


async def test_a_call_gives_its_result_or_its_error() -> None:
    def fail() -> None:
        raise LookupError("no such thing")

    assert await threads().run_in_thread(lambda: 6 * 7) == 42
    with pytest.raises(LookupError, match="no such thing"):
        await threads().run_in_thread(fail)


async def test_a_call_that_wants_to_end_the_process_only_fails() -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await threads().run_in_thread(leave)


async def test_no_more_calls_run_at_a_time_than_may() -> None:
    pool, running, most = threads(2), 0, 0
    lock = threading.Lock()
    both = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def count() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait()
        with lock:
            running -= 1

    await asyncio.gather(*(pool.run_in_thread(count) for _ in range(8)))
    assert most == 2


async def test_a_call_that_nobody_awaits_is_lost_until_it_ends_and_holds_up_no_other() -> None:
    pool, release, begun = threads(1), threading.Event(), asyncio.Event()
    stuck = asyncio.create_task(pool.run_in_thread(release.wait, begun.set))
    await begun.wait()
    stuck.cancel()
    await asyncio.wait([stuck])
    assert pool.num_abandoned == 1
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await pool.run_in_thread(lambda: "next") == "next"
    release.set()
    await asyncio.to_thread(join_all)
    assert pool.num_abandoned == 0


async def test_a_call_that_is_cancelled_before_its_turn_never_runs() -> None:
    pool, release, begun = threads(1), threading.Event(), asyncio.Event()
    ran: list[str] = []
    first = asyncio.create_task(pool.run_in_thread(release.wait, begun.set))
    second = asyncio.create_task(pool.run_in_thread(lambda: ran.append("second")))
    await begun.wait()
    second.cancel()
    await asyncio.wait([second])
    release.set()
    await first
    await pool.run_in_thread(lambda: ran.append("third"))
    assert ran == ["third"]
    assert pool.num_abandoned == 0


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What calls wait for; set at the end, whatever the test finds."""
    release = threading.Event()
    yield release
    release.set()


async def test_calls_that_are_cancelled_together_are_not_begun_in_each_others_place(
    release: threading.Event,
) -> None:
    pool = threads(2)
    begun = Begun(2)
    calls = [asyncio.create_task(pool.run_in_thread(release.wait, begun.one)) for _ in range(20)]
    await begun.enough.wait()
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert (pool.num_abandoned, begun.count) == (2, 2)


async def test_calls_that_are_cancelled_one_by_one_are_lost_up_to_a_bound(
    release: threading.Event,
) -> None:
    pool = DaemonThreads(name="test", max_threads=2, max_abandoned=5)
    begun = Begun(2)
    calls = [asyncio.create_task(pool.run_in_thread(release.wait, begun.one)) for _ in range(20)]
    await begun.enough.wait()
    for call in calls:
        call.cancel()
        await asyncio.wait([call])
    assert pool.num_abandoned == 5
    refused = [call for call in calls if not call.cancelled()]
    assert len(refused) == 15
    for refusal in (*refused, asyncio.create_task(pool.run_in_thread(release.wait))):
        with pytest.raises(RuntimeError, match="5 threads still run a test whose caller"):
            await refusal
    release.set()
    await asyncio.to_thread(join_all)
    assert pool.num_abandoned == 0
    assert await pool.run_in_thread(lambda: "next") == "next"


async def test_a_call_that_waits_begins_when_a_lost_one_has_ended() -> None:
    pool, first, second = DaemonThreads(name="test", max_threads=2, max_abandoned=2), *events()
    begun = Begun(2)
    lost = asyncio.create_task(pool.run_in_thread(first.wait, begun.one))
    running = asyncio.create_task(pool.run_in_thread(second.wait, begun.one))
    await begun.enough.wait()
    lost.cancel()
    await asyncio.wait([lost])
    waiting = asyncio.create_task(pool.run_in_thread(lambda: "next"))
    await asyncio.sleep(0)
    assert not waiting.done(), "as many go on as may"
    first.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await waiting == "next"
    second.set()
    await running


class Begun:
    """Counts calls whose turn has come."""

    def __init__(self, wanted: int) -> None:
        self.count = 0
        self.enough = asyncio.Event()
        self._wanted = wanted

    def one(self) -> None:
        self.count += 1
        if self.count == self._wanted:
            self.enough.set()


def events() -> tuple[threading.Event, threading.Event]:
    return threading.Event(), threading.Event()


def test_a_call_that_never_ends_keeps_no_process_from_ending() -> None:
    code = """
import asyncio, threading
from trinity.runtime.threads import DaemonThreads

async def main():
    begun = asyncio.Event()
    pool = DaemonThreads(name="stuck", max_threads=1)
    stuck = asyncio.create_task(pool.run_in_thread(threading.Event().wait, begun.set))
    await begun.wait()
    stuck.cancel()

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_SECONDS, check=False)
    assert ended.returncode == 0
