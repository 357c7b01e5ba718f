"""One stack for all tests of this package."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.security.secured import Secured, secured_stack


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Secured]:
    async with secured_stack(tmp_path_factory.mktemp("secured")) as stack:
        yield stack
