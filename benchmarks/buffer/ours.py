"""The rows of the table as our clients and the buffer's process give them.

A run of memory, with the trainer stopped under full load, is a minute with a database, a broker and
its own buffer: a process that has once grown gives nothing back, and a further minute of the
same one would show the first one's memory.
"""

import asyncio
import signal
import statistics
import time
from pathlib import Path

import psutil
import psycopg

from benchmarks.buffer.made import (
    BATCH_ROWS,
    REPEAT_TIMES,
    Sizes,
    num_tokens_of,
    rollout_plan,
)
from benchmarks.buffer.stack import Stack, running_stack
from services.buffer.store.database import CHANNEL, batch_topic
from trinity.types import StageKey

KIB = 1024
Figures = dict[str, float]
MEMORY_BYTES = 16 * 1024
SAMPLE_SECONDS = 0.25


async def measure(stack: Stack, folder: Path, sizes: Sizes) -> Figures:
    """One run of everything that takes seconds."""
    large = await _through(stack, folder, 16 * KIB, sizes.large_steps)
    small = await _through(stack, folder, 2 * KIB, sizes.small_steps)
    huge = await _through(stack, folder, 64 * KIB, sizes.huge_steps)
    return {
        "publish_16k": large["publish"],
        "read_16k": BATCH_ROWS / large["read"],
        "publish_2k": small["publish"],
        "take_2k_ms": 1000 * small["take"],
        "take_16k_ms": 1000 * large["take"],
        "take_64k_ms": 1000 * huge["take"],
        **await _one_at_a_time(stack, folder, sizes),
        "lease_2k_ms": await _lease(stack, folder, 2 * KIB, sizes.leases),
        "lease_opening_ms": await _lease_opening(stack, folder, 2 * KIB, sizes.leases),
        "lease_64k_ms": await _lease(stack, folder, 64 * KIB, sizes.leases),
        **await _wake(stack, folder, sizes.wakes),
    }


async def _through(stack: Stack, folder: Path, num_bytes: int, num_steps: int) -> Figures:
    """Published, then taken by the trainer for the first time, then read again."""
    key = await stack.open(rollout_plan(folder, num_steps=num_steps))
    rows = num_steps * BATCH_ROWS
    await stack.explorer.call("lease", key=key, rows=rows, num_tokens=num_tokens_of(num_bytes))
    seconds = await stack.explorer.number("publish", count=rows, batch=BATCH_ROWS)
    take = await stack.trainer.numbers("read", first=1, last=num_steps)
    read = await stack.trainer.numbers("read", first=1, last=num_steps)
    return {
        "publish": rows / seconds,
        "take": statistics.median(take),
        "read": statistics.median(read),
    }


async def _one_at_a_time(stack: Stack, folder: Path, sizes: Sizes) -> Figures:
    num_steps = 1 + (sizes.awaited + sizes.outstanding) // BATCH_ROWS
    key = await stack.open(rollout_plan(folder, num_steps=num_steps))
    await stack.explorer.call(
        "lease", key=key, rows=num_steps * BATCH_ROWS, num_tokens=num_tokens_of(16 * KIB)
    )
    each = stack.explorer.number
    one = await each("publish_each", count=sizes.awaited, outstanding=1)
    many = await each("publish_each", count=sizes.outstanding, outstanding=64)
    return {"awaited_1": sizes.awaited / one, "awaited_64": sizes.outstanding / many}


async def _lease(stack: Stack, folder: Path, task_bytes: int, calls: int) -> float:
    """An explorer's lease of 256 tasks of this size, of an explore step that is open."""
    rows = (1 + calls) * BATCH_ROWS * REPEAT_TIMES
    plan = rollout_plan(folder, num_steps=1, batch_rows=rows, task_bytes=task_bytes)
    key = await stack.open(plan)
    await stack.explorer.call("lease_tasks", key=key, count=1, calls=1)
    return await _median_lease(stack, key, calls)


async def _lease_opening(stack: Stack, folder: Path, task_bytes: int, calls: int) -> float:
    """The same, when it must first open the eight explore steps of 32 tasks that it hands out."""
    plan = rollout_plan(folder, num_steps=calls * REPEAT_TIMES, task_bytes=task_bytes)
    return await _median_lease(stack, await stack.open(plan), calls)


async def _median_lease(stack: Stack, key: dict[str, str], calls: int) -> float:
    """Milliseconds of a lease of 256 tasks."""
    seconds = await stack.explorer.numbers("lease_tasks", key=key, count=BATCH_ROWS, calls=calls)
    return 1000 * statistics.median(seconds)


async def _wake(stack: Stack, folder: Path, num_wakes: int) -> Figures:
    """A trainer waits for a batch of one group, whose last row is ready when Postgres says so."""
    plan = rollout_plan(folder, num_steps=num_wakes, batch_rows=REPEAT_TIMES)
    key = await stack.open(plan)
    rows = num_wakes * REPEAT_TIMES
    await stack.explorer.call("lease", key=key, rows=rows, num_tokens=num_tokens_of(16 * KIB))
    wakes, ways = [], []
    async with await psycopg.AsyncConnection.connect(stack.dsn, autocommit=True) as connection:
        await connection.execute(f"LISTEN {CHANNEL}")
        for step in range(1, num_wakes + 1):
            waiting = asyncio.create_task(stack.trainer.number("wait", step=step))
            await asyncio.sleep(0.05)
            _ = [notice async for notice in connection.notifies(timeout=0)]  # of the batch before
            ready = asyncio.create_task(_told(connection, batch_topic(StageKey(**key))))
            await asyncio.sleep(0)
            began = time.monotonic()
            await stack.explorer.number("publish", count=REPEAT_TIMES, batch=REPEAT_TIMES)
            told, taken = await ready, await waiting
            wakes.append(taken - told)
            ways.append(taken - began)
    return {
        "wake_ms": 1000 * statistics.median(wakes),
        "way_ms": 1000 * statistics.median(ways),
    }


async def _told(connection: psycopg.AsyncConnection, topic: str) -> float:
    """Returns the time of the next notification of a topic."""
    async for notification in connection.notifies():
        if notification.payload == topic:
            return time.monotonic()
    raise RuntimeError("the database ended the connection")


async def measure_memory(folder: Path, sizes: Sizes) -> Figures:
    """One run: the most that was seen in `load_seconds`."""
    async with running_stack(folder) as stack:
        return await _memory(stack, folder, sizes)


async def _memory(stack: Stack, folder: Path, sizes: Sizes) -> Figures:
    """The trainer is stopped in the middle of a batch."""
    assert stack.buffer.process is not None
    process = psutil.Process(stack.buffer.process.pid)
    lead_seconds = sizes.load_seconds / 20
    seconds = lead_seconds + sizes.load_seconds
    key = await stack.open(rollout_plan(folder, num_steps=sizes.load_steps))
    reading = asyncio.create_task(stack.trainer.call("read", first=1, last=sizes.load_steps))
    load = asyncio.create_task(
        stack.explorer.number(
            "load", key=key, seconds=seconds, num_tokens=num_tokens_of(MEMORY_BYTES)
        )
    )
    before = _resident_mb(process)
    await asyncio.sleep(lead_seconds)
    stack.trainer.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    most = await _most_mb(process, load)
    stopped_seconds = time.monotonic() - stopped
    reading.cancel()
    return {
        "memory_mb": most,
        "idle_memory_mb": before,
        "loaded_rows": await load,
        "stopped_seconds": stopped_seconds,
    }


async def _most_mb(process: psutil.Process, load: asyncio.Task[float]) -> float:
    """Returns the most memory seen until the load ends."""
    most = 0.0
    while not load.done():
        most = max(most, _resident_mb(process))
        await asyncio.sleep(SAMPLE_SECONDS)
    return most


def _resident_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20
