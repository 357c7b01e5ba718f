"""A buffer process for each test, on a real broker and a real database."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.buffer.harness import Buffer, BufferProcess, talk_to


@pytest.fixture
async def process(buffer_dsn: str, nats_url: str, tmp_path: Path) -> AsyncIterator[BufferProcess]:
    """`python -m services.buffer`, ready."""
    running = BufferProcess(buffer_dsn, nats_url, tmp_path / "buffer.log")
    try:
        await running.start()
        yield running
    finally:
        await running.kill()


@pytest.fixture
async def buffer(process: BufferProcess) -> AsyncIterator[Buffer]:
    """Calls on that process for an experiment of its own."""
    async with talk_to(process) as calls:
        yield calls
