"""TRL in a separate process, with its folder on the path after this environment."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.algorithms.beside.course import Course

ROOT = Path(__file__).resolve().parents[3]


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
    """Trains with TRL, which is in the folder.

    Raises: RuntimeError with the end of its output.
    """
    assert algorithm == "grpo", "TRL has a separate trainer for each algorithm"
    path = os.pathsep.join([str(ROOT), str(folder)])
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
