"""One stack for all attacks."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.hostile.arena import Arena, arena_in


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def arena(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Arena]:
    """A running stack in which one experiment has ended."""
    async with arena_in(tmp_path_factory.mktemp("hostile")) as started:
        yield started
