"""Measures the memory of the buffer's process while its trainer is stopped under full load.

A run is a minute with a database, a broker and a buffer of its own: a process that has once grown
gives nothing back, and a further minute of the same one would show the first one's memory.
"""

import asyncio
import signal
import time
from pathlib import Path

import psutil

from benchmarks.buffer.made import num_tokens_of
from benchmarks.buffer.plans import rollout_plan
from benchmarks.buffer.sizes import Sizes
from benchmarks.buffer.stack import Stack, running_stack

NUM_BYTES = 16 * 1024
SAMPLE_SECONDS = 0.25
Figures = dict[str, float]


async def measure(folder: Path, sizes: Sizes) -> Figures:
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
        stack.explorer.number("load", key=key, seconds=seconds, num_tokens=num_tokens_of(NUM_BYTES))
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
