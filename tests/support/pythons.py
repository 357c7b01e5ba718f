"""The interpreters of this machine."""

import shutil
import subprocess
from pathlib import Path

import pytest


def other_python(name: str) -> str:
    """Returns a Python that runs: a name on the path may stand for one that is not there."""
    installed = Path.home().glob(f".pyenv/versions/{name.removeprefix('python')}.*/bin/{name}")
    for path in filter(None, (shutil.which(name), *map(str, installed))):
        if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    pytest.skip(f"there is no {name} here")
