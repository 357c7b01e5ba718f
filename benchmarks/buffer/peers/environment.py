"""The peers' own environment, and what they measure in it."""

import asyncio
import json
import os
import subprocess
import sys
import venv
from asyncio.subprocess import PIPE
from pathlib import Path

PLACE = Path(__file__).resolve().parent
PEERS = {"ray": "ray_queue.py", "transfer_queue": "transfer_queue_client.py"}
PACKAGES = ("ray==2.60.0", "TransferQueue==0.1.11")
TORCH = "torch==2.13.0"
ACTOR = "\x1b[36m("
LIMIT_SECONDS = 1_800
Figures = dict[str, list[float]]


def prepare(folder: Path) -> Path:
    """Make the environment if it is not there; answers its interpreter.

    Raises: CalledProcessError when a package cannot be installed; pip says why.
    """
    python, done = folder / ".venv/bin/python", folder / "installed"
    wanted = " ".join((TORCH, *PACKAGES))
    if done.exists() and done.read_text() == wanted:
        return python
    venv.create(folder / ".venv", with_pip=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    # The default build for Linux brings gigabytes of CUDA packages.
    if subprocess.run([*pip, "--no-deps", f"{TORCH}+cpu"], stderr=subprocess.DEVNULL).returncode:
        sys.stderr.write("pip finds no CPU build of torch and takes the default one\n")
    subprocess.run([*pip, TORCH, *PACKAGES], check=True)
    done.write_text(wanted)
    return python


async def measure(python: Path, peer: str, sizes: dict[str, object]) -> Figures | str:
    """The figures of each run by name, or what went wrong."""
    process = await asyncio.create_subprocess_exec(
        *(str(python), str(PLACE / PEERS[peer]), json.dumps(sizes)),
        stdout=PIPE,
        stderr=PIPE,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            said, errors = await process.communicate()
    except TimeoutError:
        process.terminate()
        await process.wait()
        return f"it did not end in {LIMIT_SECONDS} s"
    if process.returncode:
        return _reason(errors.decode(errors="replace"))
    figures: Figures = json.loads(said.decode().strip().splitlines()[-1])
    return figures


def _reason(errors: str) -> str:
    """The last line of the script itself: Ray adds what its actors say, in a colour of theirs."""
    lines = [line for line in errors.strip().splitlines() if not line.startswith(ACTOR)]
    return lines[-1] if lines else "it said nothing"
