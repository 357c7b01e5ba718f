"""Programs started by a process that has imported them and forks: most of a start is imports.

done = run_warm("services.buffer", env={...})      # as subprocess.run with `python -m`
process = start_warm("services.buffer", env={...}, stdout=log, stderr=log)    # as Popen

A program runs as with `python -m`: its own arguments, variables, folder, descriptors, signals and
exit code. What tests show of imports and of the interpreter itself needs a real start.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

MODULE = "tests.support.warm"
START_SECONDS = 120.0
MAX_REQUEST_BYTES = 128 * 1024
NUMBER_BYTES = 4
READY = b"ready"
TAKEN_ON = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""Variables of the interpreter that a forked program takes on; it cannot take on the others."""
COMMANDS = tuple(
    f"trinity.{name}"
    for name in (
        "cli.config",
        "cli.experiment",
        "cli.feedback",
        "cli.run",
        "cli.taskset",
        "run.deploy",
    )
)
"""What commands import late, for `also`."""


class WarmProcess:
    """What `subprocess.Popen` would be for a forked program."""

    def __init__(self, report: int) -> None:
        self._report = report
        self.returncode: int | None = None
        self.pid = self._next_number(START_SECONDS)

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal, as Popen does."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(self._next_number(timeout))
            os.close(self._report)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _next_number(self, timeout: float | None) -> int:
        if not select.select([self._report], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(MODULE, timeout or 0.0)
        data = os.read(self._report, NUMBER_BYTES)
        assert data, "the process that forks ended"
        return int.from_bytes(data, "little")


@dataclass(slots=True)
class _Parent:
    """A process that has imported a program; requests and descriptors go through a socket."""

    process: "subprocess.Popen[bytes]"
    connection: socket.socket

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> WarmProcess:
        ours, theirs = os.pipe()
        try:
            message = json.dumps(request).encode()
            socket.send_fds(self.connection, [message], [*descriptors, theirs])
        finally:
            os.close(theirs)
        return WarmProcess(ours)

    def close(self) -> None:
        self.connection.close()
        self.process.wait()


@dataclass(slots=True)
class _Parents:
    """One for each program, as long as the tests of this process run."""

    by_modules: dict[tuple[str, ...], _Parent] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def parent_of(self, modules: tuple[str, ...]) -> _Parent:
        with self.lock:
            if modules not in self.by_modules:
                self.by_modules[modules] = _start_parent(modules)
            return self.by_modules[modules]

    def close(self) -> None:
        while self.by_modules:
            self.by_modules.popitem()[1].close()


_parents = _Parents()
close_warm_parents = atexit.register(_parents.close)


def _start_parent(modules: tuple[str, ...]) -> _Parent:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), *modules],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    ours.settimeout(START_SECONDS)
    assert ours.recv(len(READY)) == READY, f"{modules} cannot be imported"
    return _Parent(process, ours)


def start_warm(
    module: str,
    *arguments: str,
    env: Mapping[str, str],
    stdout: IO[bytes],
    stderr: IO[bytes],
    cwd: Path | None = None,
    also: tuple[str, ...] = (),
) -> WarmProcess:
    """Run a module; `also` are modules that it imports late."""
    acting = [name for name in env if name.startswith("PYTHON") and name not in TAKEN_ON]
    ignored = [name for name in acting if env[name] != os.environ.get(name)]
    assert not ignored, f"{ignored} act where an interpreter starts: start the program itself"
    request = {"argv": [module, *arguments], "env": dict(env), "cwd": str(cwd or Path.cwd())}
    with open(os.devnull, "rb") as stdin:
        descriptors = [stream.fileno() for stream in (stdin, stdout, stderr)]
        return _parents.parent_of((module, *also)).start(request, descriptors)


def run_warm(
    module: str,
    *arguments: str,
    env: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    also: tuple[str, ...] = (),
    timeout: float = START_SECONDS,
) -> "subprocess.CompletedProcess[str]":
    """Run a module to its end; returns what it wrote."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = start_warm(
            module, *arguments, env=env, stdout=stdout, stderr=stderr, cwd=cwd, also=also
        )
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess([module, *arguments], code, _text(stdout), _text(stderr))


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode()


def main() -> None:
    """Imports, then forks for each request; a forked process runs its program and ends with it."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    program, *also = sys.argv[2:]
    _import_program(program)
    for module in also:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # collections would copy the pages that the forked processes share
    connection.send(READY)
    forked = _fork_for_requests(connection)
    if forked is not None:
        _become(*forked)


def _import_program(module: str) -> None:
    """Imports what a program imports, and leaves the program itself to `runpy`."""
    name = module
    if importlib.import_module(module).__spec__.submodule_search_locations is not None:  # type: ignore[union-attr]
        name = f"{module}.__main__"
        importlib.import_module(name)
    del sys.modules[name]


def _fork_for_requests(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns a request in the process forked for it, and None when there are no more."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 4)
        if not message:
            return None
        if os.fork() == 0:  # this one waits for the next, whose end it reports
            connection.close()
            if _fork_and_report(descriptors):
                return json.loads(message), descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        _forget_ended()


def _fork_and_report(descriptors: list[int]) -> bool:
    """Returns true in the forked process; the other one ends here."""
    report = descriptors.pop()
    if (pid := os.fork()) == 0:
        os.close(report)
        return True
    for descriptor in descriptors:
        os.close(descriptor)
    os.write(report, pid.to_bytes(NUMBER_BYTES, "little"))
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(report, status.to_bytes(NUMBER_BYTES, "little"))
    os._exit(0)


def _forget_ended() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Takes on what a started process is given, and runs the program."""
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [path for path in given if path not in sys.path]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.argv = list(request["argv"])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
