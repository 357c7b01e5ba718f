"""Functions of a tenant that report what they can see and reach from their process."""

import contextlib
import ctypes
import mmap
import os
import socket
import sys
from pathlib import Path

from trinity.algorithm.priority.candidate import Candidate

REFUSED, OPEN = 0.0, 1.0
LEFT_BEHIND = "_left_behind_by_another_tenant"


def variable(_: Candidate, *, name: str) -> float:
    """1 where the variable is in its environment."""
    return float(name in os.environ)


def parents_environment(_: Candidate) -> float:
    """1 where it can read the environment of the buffer."""
    try:
        Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return REFUSED
    return OPEN


def network(_: Candidate, *, port: int) -> float:
    """1 where it reaches a server of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return REFUSED
    return OPEN


def network_again(candidate: Candidate, *, port: int) -> float:
    """The same, after it has tried to enter the network namespace of the first process."""
    try:
        with Path(f"/proc/{os.getppid()}/ns/net").open() as outside:
            ctypes.CDLL(None).setns(outside.fileno(), 0)
    except OSError:
        return network(candidate, port=port)
    return network(candidate, port=port)


def found(_: Candidate) -> float:
    """1 where an earlier call of it has left something in the process."""
    was_there = hasattr(sys, LEFT_BEHIND)
    setattr(sys, LEFT_BEHIND, True)
    return float(was_there)


def shared_memory(_: Candidate, *, kind: str, num_bytes: int) -> float:
    """1 where it can fill that much memory which no limit on data counts."""
    try:
        if kind == "anonymous":
            _fill(mmap.mmap(-1, num_bytes))
        elif kind == "zero":
            with Path("/dev/zero").open("r+b") as zero:
                _fill(mmap.mmap(zero.fileno(), num_bytes))
        elif kind == "memfd":
            _fill_file(os.memfd_create("more"), num_bytes)
        else:
            _fill_file(os.open(kind, os.O_RDWR | os.O_TMPFILE), num_bytes)
    except OSError:
        return REFUSED
    return OPEN


def _fill(area: mmap.mmap) -> None:
    for _ in range(len(area) // 2**20):
        area.write(b"x" * 2**20)


def _fill_file(descriptor: int, num_bytes: int) -> None:
    try:
        written = 0
        while written < num_bytes:
            written += os.write(descriptor, b"x" * 2**20)
    finally:
        os.close(descriptor)


def signals(_: Candidate, *, pid: int) -> float:
    """1 where it could end a process of this number."""
    try:
        os.kill(pid, 0)
    except OSError:
        return REFUSED
    return OPEN


def opens(_: Candidate, *, path: str, mode: str = "r") -> float:
    """1 where it can open a file."""
    try:
        with Path(path).open(mode):
            return OPEN
    except OSError:
        return REFUSED


def child(_: Candidate) -> float:
    """1 where it can start a process, whose memory is not its own."""
    try:
        pid = os.fork()
    except OSError:
        return REFUSED
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return OPEN


def prints(_: Candidate, *, num_bytes: int) -> float:
    """Writes to both outputs."""
    for stream in (sys.stdout, sys.stderr):
        stream.write("x" * (num_bytes // 2))
        stream.flush()
    return OPEN


def forges(_: Candidate, *, answer: str) -> float:
    """Writes a line to everything that the process has open."""
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, answer.encode() + b"\n")
    return OPEN
