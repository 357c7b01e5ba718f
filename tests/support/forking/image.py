"""The process that has imported programs, and those that are forked from it.

python -P -m tests.support.forking.image DESCRIPTOR MODULES... ROOM
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import io
import json
import os
import platform
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.spawn import spawn_main
from pathlib import Path
from typing import TextIO, cast

from tests.support.forking.programs import (
    DEFAULTS,
    MAX_REQUEST_BYTES,
    NOT_COMPILED,
    NUMBER_BYTES,
    READY,
    SPAWNED,
    THREADS,
    Program,
    Request,
    program_of,
)
from tests.support.forking.starts import ROOM_VARIABLE, ForkingStarts

SHOWN_OF_HELPERS = ("TRINITY_TEST_SESSION",)
"""Tests would take one that shows all variables for the program that it forks for."""
_FIRST_FREE_DESCRIPTOR = 64

_CLONE_PARENT, _SET_TID, _CLEAR_TID = 0x8000, 0x01000000, 0x00200000
_PR_GET_TID_ADDRESS = 40
_CLONE = {"x86_64": 56, "aarch64": 220}
_python = ctypes.PyDLL(None, use_errno=True)


def main() -> None:
    """Imports; each process that is forked from this one comes out of `_serve` with its request."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    image = {name: value for name, value in os.environ.items() if name != ROOM_VARIABLE}
    _import_all(sys.argv[2:-1])
    own_path = [path for path in sys.path if path not in _folders(os.environ)]
    connection.send(READY)
    while True:
        request, descriptors = _serve(connection)
        program = _take_on(request, descriptors, own_path)
        helper = _fork_helper()
        if isinstance(helper, socket.socket):
            connection = helper
            continue
        number, ours = helper
        ForkingStarts(partial(_same, ours), image).install()
        _run(program, number)
        return


def _same(connection: socket.socket) -> socket.socket:
    return connection


def _import_all(modules: Sequence[str]) -> None:
    os.environ |= {name: value for name, value in DEFAULTS.items() if name not in os.environ}
    for module in modules:
        if module.startswith("vllm."):
            os.environ |= NOT_COMPILED
        importlib.import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing after a fork"
    gc.collect()
    gc.freeze()  # collections would copy the pages that the forked processes share


def _folders(environment: Mapping[str, str]) -> list[str]:
    return [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]


def _serve(connection: socket.socket) -> tuple[Request, list[int]]:
    """Forks for each request, and returns it in the process that it is for."""
    while True:
        try:
            message, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 64)
        except (KeyboardInterrupt, ConnectionError):
            message = b""
        if not message:
            os._exit(0)
        number = _fork_beside()
        if number == 0:
            connection.close()
            return Request(**json.loads(message)), descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(max(number, 0).to_bytes(NUMBER_BYTES, "little"))


def _fork_beside() -> int:
    """Forks a child of this process's parent; returns its number, 0 in it, -1 if it is refused."""
    tid = ctypes.c_void_p()
    flags = _CLONE_PARENT | signal.SIGCHLD
    if _python.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(tid), 0, 0, 0) == 0 and tid.value:
        flags |= _SET_TID | _CLEAR_TID
    places = (tid, None) if platform.machine() == "x86_64" else (None, tid)
    call = ctypes.c_long(_CLONE[platform.machine()])
    sys.stdout.flush()
    sys.stderr.flush()
    _python.PyOS_BeforeFork()
    number = _python.syscall(call, ctypes.c_ulong(flags), None, None, *places)
    if number == 0:
        _python.PyOS_AfterFork_Child()
    else:
        _python.PyOS_AfterFork_Parent()
    return int(number)


def _take_on(request: Request, descriptors: list[int], own_path: list[str]) -> Program:
    """Takes on what a started process is given."""
    program = program_of(request.command)
    assert program is not None
    if request.leads_session:
        os.setsid()
    if program.death_signal:
        _python.prctl(1, program.death_signal, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _place(descriptors, request.numbers)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    time.tzset()
    _show(program.command, request.env)
    _set_threads(request.env)
    local = [] if program.is_safe else [request.cwd]
    sys.path[:] = [*local, *_folders(os.environ), *own_path]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.argv = [program.module, *program.arguments]
    if program.module == SPAWNED:
        sys.argv = ["-c", program.command[-1]]
    sys.orig_argv = list(program.command)
    sys.stdin = _stream(0, "rb", sys.stdin, newline=None)
    sys.stdout = _stream(1, "wb", sys.stdout)
    sys.stderr = _stream(2, "wb", sys.stderr)
    # A program may open another stream on its buffer: this keeps the first one from being closed.
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    return program


def _set_threads(env: Mapping[str, str]) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and THREADS in env:
        torch.set_num_threads(int(env[THREADS]))


def _stream(number: int, mode: str, before: TextIO, newline: str | None = "\n") -> io.TextIOWrapper:
    """Opens a standard stream, which may be another kind of file than before, as Python does."""
    assert isinstance(before, io.TextIOWrapper)
    binary = cast(io.BufferedWriter, open(number, mode, closefd=False))  # noqa: SIM115
    return io.TextIOWrapper(
        binary,
        encoding=before.encoding,
        errors=before.errors,
        newline=newline,
        line_buffering=number == 2 or binary.isatty(),
        write_through=before.write_through,
    )


def _place(descriptors: list[int], numbers: list[int]) -> None:
    """Gives each descriptor its number; they may be one another's."""
    above = max(*numbers, _FIRST_FREE_DESCRIPTOR) + 1
    for descriptor, number in zip(
        [_moved(descriptor, above) for descriptor in descriptors], numbers, strict=True
    ):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _moved(descriptor: int, above: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
    os.close(descriptor)
    return moved


def _show(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Writes both where /proc shows them, into the room of the first process, as long as ever."""
    stat = Path("/proc/self/stat").read_text()
    places = [int(word) for word in stat[stat.rindex(")") + 2 :].split()[45:49]]
    variables = [f"{name}={value}" for name, value in env.items()]
    _write(places[0], places[1], command)
    _write(places[2], places[3], variables)


def _write(start: int, end: int, words: Sequence[str]) -> None:
    shown = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, shown, len(shown))


def _fork_helper() -> socket.socket | tuple[int, socket.socket]:
    """Forks what forks for this process; returns its number and a connection to it.

    In that process it returns the connection to serve.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if number := os.fork():
        theirs.close()
        return number, ours
    ours.close()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.closerange(3, theirs.fileno())
    os.closerange(theirs.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    _show(["forks"], {name: os.environ[name] for name in SHOWN_OF_HELPERS if name in os.environ})
    return theirs


def _run(program: Program, helper: int) -> None:
    """Runs the program; unless it raises, this process ends here."""
    if program.module == "trinity.run.local.supervisor":
        _spare(helper)
    code = 0
    try:
        if program.module == SPAWNED:
            tracker, pipe = map(int, program.arguments)
            spawn_main(tracker_fd=tracker, pipe_handle=pipe)
        else:
            _run_module(program.module)
    except SystemExit as end:
        code = _exit_code(end)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # to take apart what was imported would copy the pages that are shared


def _run_module(module: str) -> None:
    spec = importlib.util.find_spec(module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    sys.modules.pop(f"{module}.__main__" if is_package else module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _spare(helper: int) -> None:
    """Has the supervisor leave alone what forks for it, a child that leads no session."""
    from trinity.run.local import reaper

    kill_orphans = reaper.kill_orphans
    reaper.kill_orphans = lambda leaders: kill_orphans({*leaders, helper})


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    sys.stderr.write(f"{end.code}\n")
    return 1


if __name__ == "__main__":
    main()
