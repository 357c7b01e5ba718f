"""Fixtures that every test may use, and what must hold when the last test is over."""

import gc
import os
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

from tests.support.forking.starts import close_images
from trinity.run.local.given_run import TRUSTED_VARIABLE

pytest_plugins = [
    "tests.scheduling",
    "tests.forking",
    "tests.support.infra_fixtures",
    "tests.support.model_free.ended_run",
]

# The gate tries the same inputs each time; HYPOTHESIS_PROFILE=search looks for new ones.
hypothesis.settings.register_profile("gate", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

_REPOSITORY = str(Path(__file__).parents[1])
_MARK = "TRINITY_TEST_SESSION"
_ENDING_SECONDS = 60.0
"""Processes that are killed take a while to end on a busy machine."""
_OURS = ("nats-server", "postgres", "services.", "trinity.run.local.supervisor")


def pytest_configure() -> None:
    """Lets processes that are started with `-P` find `tests`, which is in other packages too."""
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [_REPOSITORY, *(folder for folder in others if folder not in ("", _REPOSITORY))]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Pauses garbage collection, a sixth of the time: modules and tests are not freed anyway."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def no_part_of_the_stack_is_left_running(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Fail the session when a test leaves a broker, a database or a service behind."""
    os.environ[_MARK] = mark = uuid.uuid4().hex  # children inherit it, also those that are orphaned
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    os.environ[TRUSTED_VARIABLE] = "/"  # tests copy runs of their own
    yield
    close_images()
    ours = [process for process in psutil.process_iter() if _has(process, mark)]
    psutil.wait_procs([one for one in ours if _is_ours(one)], timeout=_ENDING_SECONDS)
    left = [_command(one) for one in ours if _has(one, mark) and _is_ours(one)]
    assert not left, f"left running by the tests: {left}"


def _has(process: psutil.Process, mark: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(_MARK) == mark
    except (psutil.Error, OSError):  # ended meanwhile, or another user's
        return False


def _is_ours(process: psutil.Process) -> bool:
    return any(name in _command(process) for name in _OURS)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # ended meanwhile
        return ""
