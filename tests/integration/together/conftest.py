"""The weights that runs here are compared with, and the stack that most of them share."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.model_free.alone import calm_weights as calm_weights
from tests.support.model_free.engine import HOLD_VARIABLE, RUN_SECONDS_VARIABLE
from tests.support.model_free.learner import STEP_SECONDS_VARIABLE
from tests.support.model_free.stack import model_free_stack
from trinity.run.local.stack import LocalStack

EXPLORER = {
    "TRINITY_EXPLORER_RUNS_PER_RUNNER": "2",
    "TRINITY_EXPLORER_LEASE_SECONDS": "2",
    RUN_SECONDS_VARIABLE: "0.5",
}
"""With one runner it takes a group at a time."""
TRAINER = {
    "TRINITY_TRAINER_PRELOAD_RANKS": "2",
    "TRINITY_TRAINER_MAX_RESTARTS": "1",
    STEP_SECONDS_VARIABLE: "0.2",
}


@dataclass(frozen=True, slots=True)
class Shared:
    """Its experiments need names that no other test gives."""

    stack: LocalStack
    job_dir: Path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lets its explorer end no run, so that others have time to come, however long it takes."""
        hold = _hold_of(self.job_dir)
        hold.touch()
        try:
            yield
        finally:
            hold.unlink(missing_ok=True)


def _hold_of(job_dir: Path) -> Path:
    return job_dir.parent / "hold"


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    job_dir = tmp_path_factory.mktemp("together") / "stack"
    held = {HOLD_VARIABLE: str(_hold_of(job_dir))}
    environment = {"explorer": EXPLORER | held, "trainer": TRAINER}
    async with model_free_stack(job_dir, environment=environment) as stack:
        yield Shared(stack, job_dir)
