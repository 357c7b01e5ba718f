"""Fixtures that every test may use, and what must hold when the last test is over."""

from collections.abc import Iterator

import psutil
import pytest

pytest_plugins = ["tests.infra_fixtures"]

_OURS = ("nats-server", "postgres", "services.", "trinity.local.supervisor")


@pytest.fixture(scope="session", autouse=True)
def no_part_of_the_stack_is_left_running() -> Iterator[None]:
    """Fail the session when a test leaves a broker, a database or a service behind."""
    yield
    commands = [_command(child) for child in psutil.Process().children(recursive=True)]
    left = [command for command in commands if any(name in command for name in _OURS)]
    assert not left, f"left running by the tests: {left}"


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # ended meanwhile
        return ""
