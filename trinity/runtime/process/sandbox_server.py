"""Carries out requests inside a sandbox; also the program that a container of one starts.

    python3 -I -S sandbox_server.py <its start as JSON>

Requests and answers are lines of JSON on standard input and output, which commands do not get. It
is the first process of the sandbox and ends with its input, and all other processes end with it.
Each request is carried out in a child. Only the standard library is imported, and nothing later:
the files of Python may not be there.
"""

import base64
import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

NUM_ENTRIES = 1000
"""Entries of a folder that are listed."""
_PIECE = 65_536
_MOST_PIECES = 16
"""Of output that is read after a command's end: its background processes may print without end."""
_Message = dict[str, Any]


class _Capture:
    """The end, or with `is_head` the beginning, of a child's output."""

    def __init__(self, output: int, max_bytes: int, *, is_head: bool) -> None:
        self.output, self._max, self._is_head = output, max_bytes, is_head
        self.kept, self.left_out = bytearray(), 0
        os.set_blocking(output, False)

    def read(self) -> bool:
        """Reads a piece; returns False if there is none now."""
        try:
            piece = os.read(self.output, _PIECE)
        except BlockingIOError:
            return False
        self.kept += piece
        over = max(len(self.kept) - self._max, 0)
        self.left_out += over
        first = self._max if self._is_head else 0
        del self.kept[first : first + over]
        return bool(piece)


def offer_port(port: int, path: str) -> None:
    """Listens on a port of this network and gives the socket to the listener at `path`."""
    with (
        socket.create_server(("127.0.0.1", port)) as listening,
        socket.socket(socket.AF_UNIX) as sender,
    ):
        sender.connect(path)
        socket.send_fds(sender, [b"x"], [listening.fileno()])


def serve_requests() -> None:
    """Answers each line until there are no more."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    _write({"token": ""})
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        _write({"token": asked["token"], **_answer(asked)})


def _write(message: _Message) -> None:
    text = (json.dumps(message) + "\n").encode()
    while text:
        text = text[os.write(1, text) :]


def _answer(asked: _Message) -> _Message:
    """Carries out a request in a child; all processes are killed if it takes longer than it may."""
    outgoing, output = os.pipe()
    child = _fork()
    if child == 0:
        _carry_out(asked, output)
    os.close(output)
    kept = _Capture(outgoing, asked["max_bytes"], is_head=asked["kind"] == "read")
    is_late = not _await_end(child, kept, asked["seconds"])
    is_alone = is_late or asked["ends_others"]
    if is_alone:
        _kill_all(child)
    status = os.waitpid(child, 0)[1]
    for _ in range(_MOST_PIECES):
        if not kept.read():
            break
    os.close(outgoing)
    _reap(0 if is_alone else os.WNOHANG)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "output": base64.b64encode(kept.kept).decode(),
        "left_out": kept.left_out,
        "is_late": is_late,
    }


def _fork() -> int:
    try:
        return os.fork()
    except BlockingIOError:  # an earlier command left as many processes as there may be
        _kill_all(0)
        _reap(0)
        return os.fork()


def _reap(how: int) -> None:
    """Takes the exit codes of orphans: of all, or with WNOHANG of those that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, how)[0]:
            pass


def _await_end(child: int, kept: _Capture, seconds: float) -> bool:
    """Reads a child's output until it ends; returns False if it does not in this time."""
    ends = time.monotonic() + seconds
    handle = os.pidfd_open(child)
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    waiting.register(kept.output, select.POLLIN)
    waiting.register(0, 0)
    try:
        while (left := ends - time.monotonic()) > 0:
            for descriptor, event in waiting.poll(1000 * left):
                if descriptor == handle:
                    return True
                if descriptor == 0 and event & select.POLLHUP:
                    os._exit(0)  # the run is over
                if descriptor == kept.output and not kept.read() and event & select.POLLHUP:
                    waiting.unregister(kept.output)
        return False
    finally:
        os.close(handle)


def _kill_all(child: int) -> None:
    """Kills a child's group, and in a sandbox every process but this one."""
    with contextlib.suppress(ProcessLookupError):
        if child:
            os.killpg(child, signal.SIGKILL)
        if os.getpid() == 1:
            os.kill(-1, signal.SIGKILL)


def _carry_out(asked: _Message, output: int) -> None:
    """Carries out a request, prints the result, and ends."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source, descriptor)
        for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        _KINDS[asked["kind"]](asked)
        code = 0
    except OSError as error:
        what = asked.get("path") or asked["command"][0]
        os.write(2, f"{what}: {error.strerror}\n".encode())
    finally:
        os._exit(code)


def _run(asked: _Message) -> None:
    os.execvpe(asked["command"][0], asked["command"], asked["environment"])


def _read(asked: _Message) -> None:
    with open(asked["path"], "rb") as file:
        left = asked["max_bytes"] + 1
        while left > 0 and (piece := file.read(min(left, _PIECE))):
            _print(piece)
            left -= len(piece)


def _write_file(asked: _Message) -> None:
    os.makedirs(os.path.dirname(asked["path"]) or ".", exist_ok=True)
    with open(asked["path"], "wb") as file:
        file.write(base64.b64decode(asked["content"]))


def _list(asked: _Message) -> None:
    with os.scandir(asked["path"]) as entries:
        names = sorted(entry.name + "/" * entry.is_dir() for entry in entries)
    more = [f"... and {len(names) - NUM_ENTRIES} more"] if len(names) > NUM_ENTRIES else []
    _print("\n".join([*names[:NUM_ENTRIES], *more]).encode(errors="surrogateescape"))


def _print(text: bytes) -> None:
    while text:
        text = text[os.write(1, text) :]


_KINDS: dict[str, Callable[[_Message], None]] = {
    "run": _run,
    "read": _read,
    "write": _write_file,
    "list": _list,
}


if __name__ == "__main__":
    start = json.loads(sys.argv[1])
    if start["port"]:
        offer_port(start["port"], start["path"])
    serve_requests()
