"""Below calls: whatever bytes come in on a port, the service goes on and takes no more for it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from tests.integration.hostile.arena import Arena
from tests.integration.hostile.attack import SERVICES
from tests.integration.hostile.floods import BEGIN, floods
from tests.integration.hostile.frames import PREFACE, connected, send
from trinity.runtime.logs import INTERVAL_SECONDS
from trinity.runtime.rpc.limits import MAX_METADATA_BYTES, MAX_REQUEST_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="package")

Code = grpc.StatusCode
NUM_IDLE = 200
NUM_SLOW = 20
COPIES = 3
FLOOD_SECONDS = 0.6
HANDSHAKE_SECONDS = 60.0
"""Well above the time after which a silent connection is dropped."""
GROWTH_MEBIBYTES = 64
"""What one request may leave behind."""
ROUND_MEBIBYTES = 24
"""What a round may leave behind once the allocator holds what rounds need: each sends about 39."""
MAX_ROUNDS = 8
NUM_LINES = 20
"""In each interval in which a line of a kind is written once."""


def path_of(name: str) -> str:
    """A call that changes nothing."""
    service, _ = SERVICES[name]
    call = next(one.name for one in service.methods if one.name.startswith("Get"))
    return f"/{service.full_name}/{call}"


async def flood(arena: Arena, seed: int) -> None:
    """All floods at once, on every port."""
    kinds = {name: floods(path_of(name), seed) for name in SERVICES}
    async with asyncio.TaskGroup() as tasks:
        for name, parts in kinds.items():
            for part in parts.values():
                for _ in range(COPIES):
                    sending = send(getattr(arena.at, name), part, wait_seconds=FLOOD_SECONDS)
                    tasks.create_task(sending)


async def send_slowly(address: str) -> None:
    """A preface, a few bytes a second."""
    async with connected(address) as (_, writer):
        for byte in PREFACE:
            writer.write(bytes([byte]))
            with contextlib.suppress(OSError):
                await writer.drain()
            await asyncio.sleep(0.3)


@contextlib.asynccontextmanager
async def left_open(arena: Arena) -> AsyncIterator[None]:
    """Connections to every service that say nothing, nothing after the preface, or very little."""
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        slow = []
        for name in SERVICES:
            address = getattr(arena.at, name)
            for index in range(NUM_IDLE):
                _, writer = await stack.enter_async_context(connected(address))
                if index % 4 == 0:
                    writer.write(BEGIN)
            slow += [tasks.create_task(send_slowly(address)) for _ in range(NUM_SLOW)]
        yield
        for task in slow:
            task.cancel()


async def until_files(arena: Arena, is_right: Callable[[int], bool]) -> None:
    """Wait until every service has had a number of open files that is right."""
    waited_for = set(SERVICES)
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        while waited_for:
            now = arena.vitals
            waited_for -= {name for name in waited_for if is_right(now[name].num_files)}
            await asyncio.sleep(0.2)


async def attack(arena: Arena, seed: int) -> None:
    """Floods on every port, alone and beside connections that stay open, which are then dropped."""
    await flood(arena, seed=2 * seed)
    # Those opened first may be dropped before the last are open.
    came = asyncio.create_task(until_files(arena, lambda number: number > NUM_IDLE // 2))
    async with left_open(arena):
        await came
        await flood(arena, seed=2 * seed + 1)
        # This side keeps them; those that speak HTTP/2 may stay longer.
        await until_files(arena, lambda number: number < NUM_IDLE)


async def test_whatever_comes_in_on_a_port_the_service_goes_on(arena: Arena) -> None:
    async with arena.unharmed("connections") as valid:
        first, began = arena.vitals, time.monotonic()
        growing = set(SERVICES)
        for seed in range(MAX_ROUNDS):
            before = arena.vitals
            await attack(arena, seed)
            after = arena.vitals
            grown = {name: after[name].mebibytes - before[name].mebibytes for name in growing}
            growing = {name for name in growing if grown[name] >= ROUND_MEBIBYTES}
            if not growing:
                break
        assert not growing, f"still growing in round {MAX_ROUNDS}: {grown}"
    num_lines = NUM_LINES * (1 + (time.monotonic() - began) / INTERVAL_SECONDS)
    assert valid.seconds, "no valid call was made meanwhile"
    for name in SERVICES:
        assert after[name].num_log_lines < first[name].num_log_lines + num_lines


@pytest.mark.parametrize("name", SERVICES)
async def test_what_is_too_large_is_refused_at_once(arena: Arena, name: str) -> None:
    before = arena.vitals[name]
    large, packed = bytes(16 * MAX_REQUEST_BYTES), bytes(32 * MAX_REQUEST_BYTES)
    options = [("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0)]
    async with grpc.aio.insecure_channel(getattr(arena.at, name), options=options) as channel:
        call = channel.unary_unary(path_of(name))
        for code, answer in (
            (Code.RESOURCE_EXHAUSTED, call(large)),
            (Code.RESOURCE_EXHAUSTED, call(packed, compression=grpc.Compression.Gzip)),
            (Code.RESOURCE_EXHAUSTED, call(b"", metadata=[("a", "b" * 8 * MAX_METADATA_BYTES)])),
            (Code.UNIMPLEMENTED, channel.unary_unary("/trinity.api.v1.None/Such")(b"")),
            (Code.INVALID_ARGUMENT, channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await answer
            assert refused.value.code() is code
    assert arena.vitals[name].mebibytes < before.mebibytes + GROWTH_MEBIBYTES
