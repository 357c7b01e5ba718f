"""The clock of runs stands still while their engine sleeps."""

import asyncio

from services.explorer.engine.work_clock import WorkClock


async def test_a_clock_that_stands_still_ends_no_wait() -> None:
    clock = WorkClock()
    clock.stop()
    waiting = asyncio.create_task(clock.sleep(0.01))
    task = asyncio.create_task(asyncio.Event().wait())
    watching = asyncio.create_task(clock.wait_for(task, 0.01))
    await asyncio.sleep(0.15)
    assert not waiting.done() and not watching.done()
    clock.go_on()
    async with asyncio.timeout(5.0):
        await asyncio.gather(waiting, watching)
    task.cancel()


async def test_a_wait_ends_with_its_task_or_its_time() -> None:
    clock = WorkClock()
    done = asyncio.create_task(asyncio.sleep(0.0))
    async with asyncio.timeout(5.0):
        await clock.wait_for(done, 60.0)
    assert done.done()
    stuck = asyncio.create_task(asyncio.Event().wait())
    async with asyncio.timeout(5.0):
        await clock.wait_for(stuck, 0.01)
        assert not stuck.done()
        await clock.wait_for(stuck, -1.0)
    stuck.cancel()


async def test_what_stood_still_is_no_time() -> None:
    clock = WorkClock()
    clock.stop()
    before = clock.now()
    clock.stop()
    await asyncio.sleep(0.02)
    clock.go_on()
    clock.go_on()
    assert 0.0 <= clock.now() - before < 0.02
