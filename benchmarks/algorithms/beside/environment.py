"""TRL in a folder of its own beside this environment, whose torch and transformers it uses.

It must not be installed into the environment: another version of TRL may ask for other packages.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.algorithms.beside.course import Course

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "trl==1.16.0"


def prepare_folder(folder: Path) -> Path:
    """Installs TRL there if it is not there; returns the folder.

    Raises: CalledProcessError when pip cannot; it says why.
    """
    done = folder / "installed"
    if done.exists() and done.read_text() == PACKAGE:
        return folder
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    subprocess.run([*pip, "--no-deps", "--upgrade", "--target", str(folder), PACKAGE], check=True)
    done.write_text(PACKAGE)
    return folder


def trl_course(
    *,
    folder: Path,
    work: Path,
    algorithm: str,
    model: str,
    seed: int,
    num_steps: int,
    environment: Mapping[str, str],
) -> Course:
    """Trains with TRL in a process of its own.

    Raises: RuntimeError with the end of what it said.
    """
    path = os.pathsep.join([str(ROOT), str(folder)])
    assert algorithm == "grpo", "TRL has a trainer of its own for each algorithm"
    assert algorithm == "grpo", "TRL has a trainer of its own for each algorithm"
    arguments = [str(work), model, str(seed), str(num_steps)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.algorithms.beside.trl_grpo", *arguments],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": path, "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"TRL ended with {done.returncode}: {done.stderr[-2000:]}")
    return Course.from_json(done.stdout.strip().splitlines()[-1])
