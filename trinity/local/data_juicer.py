"""Data-Juicer's server as a process of a local stack (`service.data_juicer.auto_start`)."""

import asyncio
import http.client
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trinity
from trinity.errors import RunFailed
from trinity.interpreter import module_command
from trinity.local.infrastructure import ProcessWithProbe
from trinity.local.process_spec import ProcessSpec
from trinity.local.services import StackContext
from trinity.runtime.child_process import OWN_IDENTITY

NAME = "data-juicer"
_READY_SECONDS = 600.0
"""Its import takes half a minute on a busy machine, and minutes from a cold disk."""
_RETRY_SECONDS = 0.2
Services = Callable[[StackContext], list[ProcessWithProbe]]


def with_data_juicer(services: Services, port: int, python: Path) -> Services:
    """Returns the services with Data-Juicer's server before them, on loopback."""

    def both(context: StackContext) -> list[ProcessWithProbe]:
        return [_server(context, port, python), *services(context)]

    return both


def _server(context: StackContext, port: int, python: Path) -> ProcessWithProbe:
    _, *arguments = module_command("trinity.data_juicer.server", "--port", str(port))
    spec = ProcessSpec(
        name=NAME,
        argv=OWN_IDENTITY.command([str(python), *arguments], death_signal=signal.SIGKILL),
        log_file=context.job_dir / "log" / f"{NAME}.log",
        env={"PYTHONPATH": str(_only_trinity(context.job_dir / "infra" / NAME))},
    )
    return ProcessWithProbe(spec, partial(_wait_healthy, port))


def _only_trinity(folder: Path) -> Path:
    """Returns a folder from which its Python finds this package, and none that we depend on."""
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
