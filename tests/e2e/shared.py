"""What one worker of a test session makes for all of them."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for every worker of the session."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "e2e"
    folder.mkdir(exist_ok=True)
    return folder


def made_once(done: Path, make: Callable[[], str]) -> str:
    """What `make` gave to the first who came, kept in `done`; the others wait for it."""
    with done.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            done.write_text(make())
        return done.read_text()
