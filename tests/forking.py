"""Says in which tests programs are forked from a process that has imported them."""

import fnmatch
from collections.abc import Iterator

import pytest

from tests.support.forking.programs import MODEL_FREE, STACKS
from tests.support.forking.starts import forked_programs

Forked = tuple[tuple[str, ...], tuple[str, ...]]
"""What is imported, and the programs that are forked where a test starts them."""
STARTED: Forked = ((), ())
"""Each program is started itself."""
ON_MODEL_FREE: Forked = (MODEL_FREE, STACKS)
BY_PATH: dict[str, Forked] = {
    "*/tests/chaos/test_campaign.py": ON_MODEL_FREE,
    "*/tests/e2e/model_free/test_model_free.py": ON_MODEL_FREE,
    "*/tests/e2e/model_free/test_turns.py": ON_MODEL_FREE,
    "*/tests/integration/together/test_a_rank_dies.py": ON_MODEL_FREE,
}
"""The first pattern counts; without one, each program is started itself."""


def forked_in(path: str) -> Forked:
    """Returns what is imported and forked for a test."""
    matching = (found for pattern, found in BY_PATH.items() if fnmatch.fnmatchcase(path, pattern))
    return next(matching, STARTED)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Around a test and its fixtures."""
    modules, programs = forked_in(item.path.as_posix())
    if not modules:
        return (yield)
    with forked_programs(modules, programs):
        return (yield)
