"""A tracking server of MLflow, and the store that its client writes to without one."""

import importlib.util
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from trinity.run.local.addresses import free_port

START_SECONDS = 180.0
SERVER_NEEDS = ("mlflow", "flask", "flask_cors", "uvicorn")


@pytest.fixture
def mlflow_uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store of the client's, or a server: the test's parameter."""
    pytest.importorskip("mlflow")
    database = f"sqlite:///{tmp_path}/mlflow.db"
    if request.param == "store":
        yield database
        return
    if missing := [name for name in SERVER_NEEDS if importlib.util.find_spec(name) is None]:
        pytest.skip(f"a server of MLflow needs {', '.join(missing)}")
    yield from served(database, tmp_path)


def served(database: str, directory: Path) -> Iterator[str]:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    options = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    stores = ["--backend-store-uri", database, "--artifacts-destination", str(directory)]
    with (directory / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *options, *stores],
            env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_for(f"{address}/health", server)
        yield address
    finally:
        os.killpg(server.pid, 15)
        server.wait(60)


def _wait_for(address: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.2)
    raise AssertionError(f"MLflow's server does not answer at {address}")
