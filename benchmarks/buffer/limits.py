"""The rows of the table as the broker and the database alone give them."""

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.buffer.made import BATCH_ROWS, NUM_TASKS, Sizes, task_of
from benchmarks.buffer.stack import Stack
from benchmarks.buffer.worker import BenchmarkWorker, started

KIB = 1024
MESSAGE_BYTES = 1024 * KIB
PACKED = 64
"""As our client packs: so many results in a message, or as many as fit."""


@dataclass(frozen=True, slots=True)
class WorkerPair:
    """Two bare processes."""

    sender: BenchmarkWorker
    store: BenchmarkWorker


@asynccontextmanager
async def processes(stack: Stack) -> AsyncIterator[WorkerPair]:
    """Starts both processes, with the broker and the database of the stack."""
    arguments = {"dsn": stack.admin_dsn, "nats_url": stack.nats_url}
    async with (
        started("benchmarks.buffer.raw", **arguments) as sender,
        started("benchmarks.buffer.raw", **arguments) as store,
    ):
        yield WorkerPair(sender, store)


async def measure(stack: Stack, sizes: Sizes) -> dict[str, float]:
    """One run."""
    async with processes(stack) as pair:
        store = pair.store
        figures = {"publish_16k": await rate(pair, 16 * KIB, sizes.large_steps * BATCH_ROWS)}
        figures["memory_mb"] = await store.number("most_mb")  # before anything is read
        figures["read_16k"] = BATCH_ROWS / _median(await store.numbers("read", batch=BATCH_ROWS))
        figures["take_16k_ms"] = 1000 * _median(await store.numbers("take", batch=BATCH_ROWS))
        figures["publish_2k"] = await rate(pair, 2 * KIB, sizes.small_steps * BATCH_ROWS)
        figures["take_2k_ms"] = 1000 * _median(await store.numbers("take", batch=BATCH_ROWS))
        await rate(pair, 64 * KIB, sizes.huge_steps * BATCH_ROWS)
        figures["take_64k_ms"] = 1000 * _median(await store.numbers("take", batch=BATCH_ROWS))
        one = await store.number("one_by_one", size=16 * KIB, count=sizes.awaited)
        figures["awaited_1"] = sizes.awaited / one
        figures["awaited_64"] = await rate(
            pair, 16 * KIB, sizes.outstanding, packed=1, in_flight=64
        )
        figures["wake_ms"] = 1000 * _median(await store.numbers("wake", count=sizes.wakes))
    return figures | await _leases(stack, sizes.leases)


async def rate(
    pair: WorkerPair,
    size: int,
    count: int,
    *,
    packed: int | None = None,
    in_flight: int = 16,
) -> float:
    """Rows a second, in a fresh table, from the first that is published to the last commit."""
    packed = packed or min(PACKED, MESSAGE_BYTES // size - 1)
    whole = -(-count // packed) * packed
    ended = asyncio.create_task(pair.store.number("store", size=size, count=whole))
    began = await pair.sender.number(
        "publish", size=size, count=whole, packed=packed, in_flight=in_flight
    )
    return whole / (await ended - began)


async def _leases(stack: Stack, calls: int) -> dict[str, float]:
    """One process that asks another for tasks, of both sizes."""
    async with (
        started("benchmarks.buffer.raw_lease", dsn=stack.admin_dsn) as giver,
        started("benchmarks.buffer.raw_lease", dsn=stack.admin_dsn) as asker,
    ):
        return {
            "lease_2k_ms": await _lease_ms(giver, asker, 2 * KIB, calls),
            "lease_64k_ms": await _lease_ms(giver, asker, 64 * KIB, calls),
        }


async def _lease_ms(
    giver: BenchmarkWorker, asker: BenchmarkWorker, task_bytes: int, calls: int
) -> float:
    """The same tasks as ours, and likewise a first call that is not counted."""
    port = await giver.number(
        "make",
        task=task_of(task_bytes),
        num_tasks=NUM_TASKS,
        num_assignments=(1 + calls) * BATCH_ROWS,
    )
    granting = asyncio.create_task(giver.call("grant"))
    seconds = await asker.numbers("lease", port=int(port), count=BATCH_ROWS, calls=1 + calls)
    await granting
    return 1000 * _median(seconds[1:])


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds)
