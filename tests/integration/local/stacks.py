"""Builders of stacks whose services are stand-ins, and waits for what happens to them."""

import asyncio
import os
import select
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.integration.local import stand_in
from trinity.run.local.infrastructure import ProcessWithProbe
from trinity.run.local.process_spec import EventKind, ProcessSpec, StackEvent
from trinity.run.local.run_file import RunningStack, read_running
from trinity.run.local.services import StackContext, wait_serving
from trinity.run.local.stack import LocalStack
from trinity.runtime.process.child_process import OWN_IDENTITY

_PATIENCE_SECONDS = 60.0
Services = Callable[[StackContext], list[ProcessWithProbe]]


async def ready_at_once() -> None:
    """The readiness of a process that does not serve."""


def process(
    around: StackContext,
    name: str,
    argv: list[str],
    *,
    max_restarts: int = 5,
    stop_grace_seconds: float = 10.0,
) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        argv=OWN_IDENTITY.command([sys.executable, *argv], death_signal=signal.SIGKILL),
        log_file=around.job_dir / "log" / f"{name}.log",
        max_restarts=max_restarts,
        stop_grace_seconds=stop_grace_seconds,
    )


def serving(around: StackContext, name: str, *options: str) -> ProcessWithProbe:
    """A stand-in that is live on the address of the service."""
    address = str(getattr(around.addresses, name))
    spec = process(around, name, [stand_in.__file__, address, *options], stop_grace_seconds=1.0)
    return ProcessWithProbe(spec, partial(wait_serving, name, address, _PATIENCE_SECONDS))


def one_service(*options: str) -> Services:
    return lambda around: [serving(around, "buffer", *options)]


def no_services(_: StackContext) -> list[ProcessWithProbe]:
    return []


async def next_event(stack: LocalStack, kind: EventKind, name: str) -> StackEvent:
    """Return the next such event; the test fails if none comes."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        async for event in stack.events():
            if (event.kind, event.process) == (kind, name):
                return event
    raise AssertionError(f"the stack ended without {kind} of {name}")


class Watched:
    """Processes seen alive, to wait for their end."""

    def __init__(self, pids: list[int]) -> None:
        self._descriptors = [os.pidfd_open(pid) for pid in pids]

    def wait_for_ends(self, timeout_seconds: float = _PATIENCE_SECONDS) -> None:
        """Raises: AssertionError when one lives on."""
        for descriptor in self._descriptors:
            end = select.poll()
            end.register(descriptor, select.POLLIN)
            assert end.poll(timeout_seconds * 1_000), "a process outlived its stack"
            os.close(descriptor)


def read_pid(path: Path) -> int:
    return int(path.read_text())


def running_stack(job_dir: Path) -> RunningStack:
    running = read_running(job_dir)
    assert running is not None
    return running
