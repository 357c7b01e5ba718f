"""One arena for all tests that kill on the usual stack, one experiment after the other."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.chaos.arena import Arena, arena_in

ON_IT = pytest.mark.asyncio(loop_scope="session")
"""The mark of tests that use it: they run in the loop in which it is looked after."""


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def arena(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Arena]:
    """Its experiments need names that no other test gives."""
    async with arena_in(tmp_path_factory.mktemp("arena")) as arena:
        yield arena
