"""Makes the environment of Data-Juicer, whose pinned packages do not fit beside ours.

data_juicer_python(print)   # the Python of it: TRINITY_DATA_JUICER_PYTHON, or made once in a cache
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from trinity.errors import UserError
from trinity.interpreter import module_command

REQUIREMENTS = ("py-data-juicer==1.6.1", "aiohttp")
PYTHON_VARIABLE = "TRINITY_DATA_JUICER_PYTHON"
"""A Python that has Data-Juicer already: nothing is made."""
CACHE_VARIABLE = "TRINITY_CACHE"
_COMPLETE = ".complete"


def data_juicer_python(report: Callable[[str], None]) -> Path:
    """Returns the Python of Data-Juicer's environment; the first call makes it, in minutes.

    Raises: UserError when it cannot be made, with the log to read.
    """
    if given := os.environ.get(PYTHON_VARIABLE):
        if not os.access(given, os.X_OK):
            raise UserError(f"{PYTHON_VARIABLE}={given} is no program: give a Python's path")
        return Path(given).absolute()
    folder = environment_folder()
    python = folder / "bin" / "python"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(folder.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be making it
            if not (folder / _COMPLETE).exists():
                report(f"making Data-Juicer's environment in {folder}: once, in some minutes")
                _make(folder, python)
    except OSError as error:
        raise UserError(
            f"Data-Juicer's environment cannot be made in {folder}: {error}; give another folder "
            f"as {CACHE_VARIABLE}, or a Python that has py-data-juicer as {PYTHON_VARIABLE}"
        ) from error
    return python


def environment_folder() -> Path:
    """Returns the environment's place: a folder for each release and each version of Python."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    cache = Path(os.environ.get(CACHE_VARIABLE) or home / "trinity")
    release = REQUIREMENTS[0].replace("py-", "").replace("==", "-")
    return cache.absolute() / f"{release}-python{sys.version_info[0]}.{sys.version_info[1]}"


def _make(folder: Path, python: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    log = folder.with_name(folder.name + ".log")
    pip = module_command("pip", "--disable-pip-version-check", "--python", str(python))
    make = module_command("venv", "--without-pip", str(folder))
    with log.open("w") as output:
        for command in (make, [*pip, "install", *REQUIREMENTS]):
            ended = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
            if ended.returncode:
                raise UserError(
                    f"Data-Juicer's environment could not be made: {_last_line(log)}; all of it is "
                    f"in {log}. Give a Python that has py-data-juicer as {PYTHON_VARIABLE}, or "
                    "start the server yourself and give `service.data_juicer.server_url`"
                )
    (folder / _COMPLETE).touch()


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["pip said nothing"])[-1]
