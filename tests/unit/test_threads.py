"""Calls beside the event loop, some of which never end."""

import asyncio
import subprocess
import sys
import threading

import pytest

from trinity.threads import DaemonThreads

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

    assert await threads().run(lambda: 6 * 7) == 42
    with pytest.raises(LookupError, match="no such thing"):
        await threads().run(fail)


async def test_a_call_that_wants_to_end_the_process_only_fails() -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await threads().run(leave)


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

    await asyncio.gather(*(pool.run(count) for _ in range(8)))
    assert most == 2


async def test_a_call_that_nobody_awaits_is_lost_until_it_ends_and_holds_up_no_other() -> None:
    pool, release, begun = threads(1), threading.Event(), asyncio.Event()
    stuck = asyncio.create_task(pool.run(release.wait, begun.set))
    await begun.wait()
    stuck.cancel()
    await asyncio.wait([stuck])
    assert pool.num_lost == 1
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await pool.run(lambda: "next") == "next"
    release.set()
    await asyncio.to_thread(join_all)
    assert pool.num_lost == 0


async def test_a_call_that_is_cancelled_before_its_turn_never_runs() -> None:
    pool, release, begun = threads(1), threading.Event(), asyncio.Event()
    ran: list[str] = []
    first = asyncio.create_task(pool.run(release.wait, begun.set))
    second = asyncio.create_task(pool.run(lambda: ran.append("second")))
    await begun.wait()
    second.cancel()
    await asyncio.wait([second])
    release.set()
    await first
    await pool.run(lambda: ran.append("third"))
    assert ran == ["third"]
    assert pool.num_lost == 0


def test_a_call_that_never_ends_keeps_no_process_from_ending() -> None:
    code = """
import asyncio, threading
from trinity.threads import DaemonThreads

async def main():
    begun = asyncio.Event()
    pool = DaemonThreads(name="stuck", max_threads=1)
    stuck = asyncio.create_task(pool.run(threading.Event().wait, begun.set))
    await begun.wait()
    stuck.cancel()

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_SECONDS, check=False)
    assert ended.returncode == 0
