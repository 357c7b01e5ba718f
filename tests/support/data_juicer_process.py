"""The server of Data-Juicer itself, where an environment has it."""

import contextlib
import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("TRINITY_TEST_DATA_JUICER", "")
"""The Python of an environment that has py-data-juicer."""
START_SECONDS = 600.0
LIMIT_SECONDS = 600.0
"""Of a call, on a machine that does much else."""


@contextlib.contextmanager
def data_juicer_server() -> Iterator[str]:
    """Its address, until the end of the block."""
    command = [PYTHON, "-m", "trinity.user_code.data_juicer.server", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], START_SECONDS)[0], "it is not there yet"
            yield process.stdout.readline().strip()
        finally:
            process.kill()
