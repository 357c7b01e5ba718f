"""One stack for all tests that leave its processes alone, an experiment each."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.model_free.stack import model_free_stack
from trinity.runtime.security.secret_files import SecretFiles

ON_IT = pytest.mark.asyncio(loop_scope="session")
"""The mark of tests that use it: they run in the loop in which it is looked after."""


@dataclass(frozen=True, slots=True)
class SharedStack:
    """Experiments on it need names that no other test gives."""

    folder: Path
    synchronizer: str
    """Its address."""
    buffer: str
    """And the buffer's."""

    def secret(self, name: str) -> str:
        """An address with its password."""
        return (SecretFiles(self.folder / "infra" / "secrets").folder / name).read_text().strip()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedStack]:
    folder = tmp_path_factory.mktemp("shared-stack")
    async with model_free_stack(folder) as stack:
        yield SharedStack(folder, stack.addresses.synchronizer, stack.addresses.buffer)
