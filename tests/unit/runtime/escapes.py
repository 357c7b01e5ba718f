"""Ways out of a sandbox, each of them a program: it prints 1 if it came out, else 0.

python escapes.py <name> <argument as JSON>

A control runs the same programs without a sandbox.
"""

import ctypes
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PIECE = 16 * 2**20
CLONE_NEWUSER = 0x10000000
libc = ctypes.CDLL(None, use_errno=True)


def signals(pid: int) -> bool:
    os.kill(pid, 0)
    return True


def sees(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def ends_the_first(_: None) -> bool:
    """Ends the process above this one, or reads what it was started with."""
    if os.getppid() == 1:
        os.kill(1, signal.SIGKILL)
    return bool(Path(f"/proc/{os.getppid()}/environ").read_bytes())


def opens(path: str) -> bool:
    return bool(os.open(path, os.O_RDWR))


def reads(path: str) -> bool:
    return bool(os.open(path, os.O_RDONLY))


def connects(port: int) -> bool:
    socket.create_connection(("127.0.0.1", port), timeout=10).close()
    return True


def connects_by_name(name: str) -> bool:
    """Connects to an abstract address of Unix."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect("\0" + name)
    return True


def finds_shared_memory(key: int) -> bool:
    return int(libc.shmget(key, 0, 0)) >= 0


def takes_memory(num_bytes: int) -> bool:
    return bytearray(num_bytes)[-1] == 0


def takes_anonymous_memory(num_bytes: int) -> bool:
    with mmap.mmap(-1, num_bytes) as shared:
        for place in range(0, num_bytes, mmap.PAGESIZE):
            shared[place] = 1
    return True


def takes_memory_in_a_file(num_bytes: int) -> bool:
    return _fill(os.memfd_create("more"), num_bytes)


def takes_memory_in_children(num_bytes: int) -> bool:
    """Takes it in four processes, each a quarter; all must still be there when the last has it.

    A limit may kill one that has long said so, to make room for the next.
    """
    program = f"taken = bytearray({num_bytes // 4}); print(1, flush=True); input()"
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    children = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(4)]
    came = [child.stdout.read(1) for child in children if child.stdout]
    for child in children:
        child.communicate(b"\n")
    return came == [b"1"] * 4 and all(child.returncode == 0 for child in children)


def fills(place: list[Any]) -> bool:
    path, num_bytes = place
    with open(path, "wb") as file:
        os.unlink(path)
        return _fill(file.fileno(), num_bytes)


def _fill(file: int, num_bytes: int) -> bool:
    return all(os.write(file, bytes(PIECE)) == PIECE for _ in range(num_bytes // PIECE))


def starts_many(number: int) -> bool:
    children: list[int] = []
    try:
        for _ in range(number):
            children.append(os.fork())
            if children[-1] == 0:
                signal.pause()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
    return True


def enters_a_namespace(_: None) -> bool:
    return int(libc.unshare(CLONE_NEWUSER)) == 0


def makes_a_device(path: str) -> bool:
    os.mknod(path, 0o600 | 0o060000, os.makedev(254, 0))
    return True


if __name__ == "__main__":
    act: Callable[[Any], bool] = globals()[sys.argv[1]]
    try:
        came_out = act(json.loads(sys.argv[2]))
    except (OSError, MemoryError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        came_out = False
    sys.stdout.write(f"{int(came_out)}\n")
