"""The rows of the table as the broker and the database alone give them."""

import asyncio
import statistics

from benchmarks.buffer.plans import BATCH_ROWS
from benchmarks.buffer.sizes import Sizes
from benchmarks.buffer.stack import Stack
from benchmarks.buffer.worker import Worker, started

KIB = 1024
MESSAGE_BYTES = 1024 * KIB
PACKED = 64
"""As our client packs: so many results in a message, or as many as fit."""


async def measure(stack: Stack, sizes: Sizes) -> dict[str, float]:
    """One run."""
    arguments = {"dsn": stack.admin_dsn, "nats_url": stack.nats_url}
    async with (
        started("benchmarks.buffer.raw", **arguments) as sender,
        started("benchmarks.buffer.raw", **arguments) as store,
    ):
        rate = await _rate(sender, store, 16 * KIB, sizes.large_steps * BATCH_ROWS)
        figures = {"publish_16k": rate}
        figures["read_16k"] = BATCH_ROWS / _median(await store.numbers("read", batch=BATCH_ROWS))
        figures["take_16k_ms"] = 1000 * _median(await store.numbers("take", batch=BATCH_ROWS))
        figures["publish_2k"] = await _rate(sender, store, 2 * KIB, sizes.small_steps * BATCH_ROWS)
        figures["take_2k_ms"] = 1000 * _median(await store.numbers("take", batch=BATCH_ROWS))
        await _rate(sender, store, 64 * KIB, sizes.huge_steps * BATCH_ROWS)
        figures["take_64k_ms"] = 1000 * _median(await store.numbers("take", batch=BATCH_ROWS))
        one = await store.number("one_by_one", size=16 * KIB, count=sizes.awaited)
        figures["awaited_1"] = sizes.awaited / one
        figures["awaited_64"] = await _rate(
            sender, store, 16 * KIB, sizes.outstanding, packed=1, in_flight=64
        )
        figures["wake_ms"] = 1000 * _median(await store.numbers("wake", count=sizes.wakes))
    return figures


async def _rate(
    sender: Worker,
    store: Worker,
    size: int,
    count: int,
    *,
    packed: int | None = None,
    in_flight: int = 16,
) -> float:
    """Rows a second from the first that is published to the commit of the last."""
    packed = packed or min(PACKED, MESSAGE_BYTES // size - 1)
    whole = -(-count // packed) * packed
    ended = asyncio.create_task(store.number("store", size=size, count=whole))
    began = await sender.number(
        "publish", size=size, count=whole, packed=packed, in_flight=in_flight
    )
    return whole / (await ended - began)


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds)
