"""What one worker of a test session makes for all of them."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def shared_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """One folder for every worker of the session."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """One worker at a time."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def made_once(done: Path, make: Callable[[], str]) -> str:
    """What `make` gave to the first who came, kept in `done`; the others wait for it."""
    with alone(done.with_suffix(".lock")):
        if not done.exists():
            done.write_text(make())
        return done.read_text()
