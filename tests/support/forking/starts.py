"""Starts of a process that go through one that forks."""

import atexit
import contextlib
import fnmatch
import json
import multiprocessing.util
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.forking.programs import (
    ALSO_TAKEN_ON,
    NUMBER_BYTES,
    READY,
    Request,
    acts_at_import,
    program_of,
)

IMAGE = "tests.support.forking.image"
IMPORT_SECONDS = 300.0
RUN_SECONDS = 120.0
ROOM_VARIABLE = "TRINITY_TEST_ROOM"
ROOM_BYTES = 100_000
ARGUMENTS_BYTES = 4_000
"""Room in which a forked program shows its variables and its arguments."""
Starts = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]
"""Functions that start programs: for asyncio, for the supervisor and for multiprocessing."""


def starts_of_now() -> Starts:
    """Returns those that are in place."""
    return (
        subprocess._fork_exec,  # type: ignore[attr-defined]
        os.posix_spawn,
        multiprocessing.util.spawnv_passfds,
    )


def put_in_place(starts: Starts) -> None:
    """Has all programs started by these functions."""
    subprocess._fork_exec, os.posix_spawn, multiprocessing.util.spawnv_passfds = starts  # type: ignore[attr-defined]


ORIGINALS = starts_of_now()


class ForkingStarts:
    """Starts of this process: forked where that is possible."""

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        image: Mapping[str, str],
        programs: tuple[str, ...] = ("*",),
    ) -> None:
        self._connect = connect
        self._image = image
        self._programs = programs
        """Patterns of those that are forked."""
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def install(self) -> None:
        """Has subprocess, asyncio, `os.posix_spawn` and multiprocessing start programs by it."""
        put_in_place((self.fork_exec, self.posix_spawn, self.spawnv_passfds))

    def fork_exec(self, *given: Any) -> int:
        """Does what `_posixsubprocess.fork_exec` does, with its arguments of 3.11 to 3.14."""
        args, _, _, keep, cwd, env_list, stdin, _, _, stdout, _, stderr, _, errors = given[:14]
        leads_session, *others = given[15:22]
        if others == [-1, None, None, None, -1, None]:
            descriptors = {number: number for number in keep if number != errors}
            for number, stream in enumerate((stdin, stdout, stderr)):
                descriptors[number] = number if stream == -1 else stream
            env = dict(os.environ) if env_list is None else _read_variables(env_list)
            command = [os.fsdecode(word) for word in args]
            folder = os.getcwd() if cwd is None else os.fsdecode(cwd)
            if pid := self._start(command, env, descriptors, folder, bool(leads_session)):
                return pid
        return int(ORIGINALS[0](*given))

    def posix_spawn(
        self,
        path: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        file_actions: Sequence[tuple[Any, ...]] = (),
        setsid: bool = False,
        **more: Any,
    ) -> int:
        """Does what `os.posix_spawn` does for a program with standard streams and no others."""
        with contextlib.ExitStack() as opened:
            streams = {0: 0, 1: 1, 2: 2}
            for action in file_actions:
                match action:
                    case (os.POSIX_SPAWN_OPEN, number, file, flags, mode):
                        streams[number] = os.open(file, flags, mode)
                        opened.callback(os.close, streams[number])
                    case (os.POSIX_SPAWN_DUP2, number, other):
                        streams[other] = streams[number]
            if pid := self._start(list(argv), dict(env), streams, os.getcwd(), setsid):
                return pid
        return int(ORIGINALS[1](path, argv, env, file_actions=file_actions, setsid=setsid, **more))

    def spawnv_passfds(self, path: bytes, args: Sequence[str], passfds: Sequence[int]) -> int:
        """Does what `multiprocessing.util.spawnv_passfds` does."""
        descriptors = {number: number for number in (0, 1, 2, *sorted(map(int, passfds)))}
        command = [os.fsdecode(word) for word in args]
        if pid := self._start(command, dict(os.environ), descriptors, os.getcwd(), False):
            return pid
        return int(ORIGINALS[2](path, args, passfds))

    def _start(
        self,
        command: list[str],
        env: dict[str, str],
        descriptors: dict[int, int],
        folder: str,
        leads_session: bool,
    ) -> int:
        """Returns the number of the forked process, or 0 if the program must be started itself."""
        program = program_of(command)
        if program is None or os.getpid() != self._owner:
            return 0
        if acts_at_import(env, self._image, ALSO_TAKEN_ON.get(program.module, ())):
            return 0
        if not any(fnmatch.fnmatchcase(program.module, name) for name in self._programs):
            return 0
        request = Request(
            command=command,
            env=env,
            cwd=folder,
            leads_session=leads_session,
            numbers=list(descriptors),
        )
        message = json.dumps(asdict(request)).encode()
        with self._lock, contextlib.suppress(OSError):
            connection = self._connect()
            socket.send_fds(connection, [message], list(descriptors.values()))
            return int.from_bytes(connection.recv(NUMBER_BYTES), "little")
        return 0


def _read_variables(given: Sequence[bytes]) -> dict[str, str]:
    pairs = (os.fsdecode(pair).partition("=") for pair in given)
    return {name: value for name, _, value in pairs}


@dataclass(slots=True)
class _Image:
    """A process that has imported programs; it is started with the first test that needs it."""

    modules: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    process: "subprocess.Popen[bytes] | None" = None
    connection: socket.socket | None = None

    def connect(self) -> socket.socket:
        if self.connection is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self.process = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", IMAGE, str(theirs.fileno())),
                        *(*self.modules, "x" * ARGUMENTS_BYTES),
                    ],
                    stdin=subprocess.DEVNULL,
                    env={**self.environment, ROOM_VARIABLE: "x" * ROOM_BYTES},
                    pass_fds=[theirs.fileno()],
                )
            ours.settimeout(IMPORT_SECONDS)
            assert ours.recv(len(READY)) == READY, f"{self.modules} cannot be imported"
            self.connection = ours
        return self.connection

    def close(self) -> None:
        if self.connection is not None and self.process is not None:
            self.connection.close()
            self.process.wait()
            self.connection = None


_images: dict[tuple[str, ...], _Image] = {}


@contextlib.contextmanager
def forked_programs(modules: tuple[str, ...], programs: tuple[str, ...]) -> Iterator[None]:
    """Forks these programs where they are started here, from a process with these modules."""
    image = _images.setdefault(modules, _Image(modules))
    image.connect()  # a start may be in an event loop, which would stand still for the imports
    with _starting_through(ForkingStarts(image.connect, image.environment, programs)):
        yield


@contextlib.contextmanager
def real_starts() -> Iterator[None]:
    """Starts programs themselves within a test whose others are forked."""
    with _starting_through(None):
        yield


def run_module(
    module: str,
    *arguments: str,
    env: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    timeout: float = RUN_SECONDS,
) -> "subprocess.CompletedProcess[str]":
    """Runs a program to its end; returns what it wrote."""
    return subprocess.run(
        [sys.executable, "-P", "-m", module, *arguments],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@contextlib.contextmanager
def _starting_through(starts: ForkingStarts | None) -> Iterator[None]:
    before = starts_of_now()
    try:
        if starts is None:
            put_in_place(ORIGINALS)
        else:
            starts.install()
        yield
    finally:
        put_in_place(before)


def close_images() -> None:
    """Ends the processes that have imported programs."""
    while _images:
        _images.popitem()[1].close()


atexit.register(close_images)
