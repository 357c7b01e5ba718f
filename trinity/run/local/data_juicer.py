"""Data-Juicer for a local stack (`service.data_juicer.auto_start`): environment and server."""

import asyncio
import fcntl
import http.client
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trinity
from trinity.errors import RunFailed, UserError
from trinity.run.local.infrastructure import ProcessWithProbe
from trinity.run.local.process_spec import ProcessSpec
from trinity.run.local.services import StackContext
from trinity.runtime.owned_places import check_folder, claim_folder
from trinity.runtime.process.child_process import OWN_IDENTITY, module_command

REQUIREMENTS = ("py-data-juicer==1.6.1", "aiohttp")
PYTHON_VARIABLE = "TRINITY_DATA_JUICER_PYTHON"
"""A Python with Data-Juicer installed, to use instead of a new environment."""
CACHE_VARIABLE = "TRINITY_CACHE"
_COMPLETE = ".complete"
NAME = "data-juicer"
_READY_SECONDS = 600.0
"""Its import takes half a minute on a busy machine, and minutes from a cold disk."""
_RETRY_SECONDS = 0.2
Services = Callable[[StackContext], list[ProcessWithProbe]]


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
    check_folder(folder, f"give another folder as {CACHE_VARIABLE}")
    shutil.rmtree(folder, ignore_errors=True)
    claim_folder(folder, f"give another folder as {CACHE_VARIABLE}")
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


def with_data_juicer(services: Services, port: int, python: Path) -> Services:
    """Returns the services with Data-Juicer's server before them, on loopback."""

    def both(context: StackContext) -> list[ProcessWithProbe]:
        return [_server(context, port, python), *services(context)]

    return both


def _server(context: StackContext, port: int, python: Path) -> ProcessWithProbe:
    _, *arguments = module_command("trinity.user_code.data_juicer.server", "--port", str(port))
    spec = ProcessSpec(
        name=NAME,
        argv=OWN_IDENTITY.command([str(python), *arguments], death_signal=signal.SIGKILL),
        log_file=context.job_dir / "log" / f"{NAME}.log",
        env={"PYTHONPATH": str(_only_trinity(context.job_dir / "infra" / NAME))},
    )
    return ProcessWithProbe(spec, partial(_wait_healthy, port))


def _only_trinity(folder: Path) -> Path:
    """Returns a folder from which its Python imports this package without its dependencies."""
    folder.mkdir(parents=True, exist_ok=True)
    link, package = folder / "trinity", Path(trinity.__file__).parent
    if not link.exists() or link.resolve() != package.resolve():
        link.unlink(missing_ok=True)
        link.symlink_to(package)
    return folder


async def _wait_healthy(port: int) -> None:
    try:
        async with asyncio.timeout(_READY_SECONDS):
            while not await asyncio.to_thread(_is_healthy, port):  # noqa: ASYNC110 (no event tells)
                await asyncio.sleep(_RETRY_SECONDS)
    except TimeoutError:
        raise RunFailed(
            f"Data-Juicer's server did not answer at 127.0.0.1:{port} within {_READY_SECONDS:.0f} s"
        ) from None


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
