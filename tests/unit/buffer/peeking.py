"""Functions of a tenant that report what they can see and reach from their process."""

import ctypes
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
