"""Answers requests on standard input, for processes that call users' functions."""

import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO

from trinity.errors import UserError
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.runtime.logs import LEVEL_VARIABLE, configure_logging
from trinity.types import JsonObject

AnswerFactories = Callable[[dict[str, Any]], Iterable[Callable[[], JsonObject]]]
"""Returns one function per answer to a request; each is called when it is its turn."""


WROTE_TO_CHANNEL = (
    "your code wrote to the channel over which its process answers: write to standard output or to "
    "a file of your own"
)


class NotAnAnswer(Exception):
    """Raised for a line on the channel of a process that its worker did not write."""


def answer_of(line: bytes, token: str) -> JsonObject:
    """Returns the message on a line.

    Raises: NotAnAnswer unless it has the token, and so was written through `RequestChannel`.
    """
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or answer.pop("token", None) != token:
        raise NotAnAnswer(WROTE_TO_CHANNEL)
    return answer


class RequestChannel:
    """The parent's requests on standard input, and lines of JSON back to it.

    What a function prints goes to standard error, and so do the lines that it logs. One that reads
    standard input finds it at its end, so it neither waits nor takes requests away. Each line has
    the token of the newest request that has one: other code that finds the channel has to know it.
    """

    def __init__(self) -> None:
        self._answers = _reserve_stdout()
        self._lines = reserve_stdin()
        self._lock = threading.Lock()
        self._token = ""

    def configure_logging(self) -> None:
        """Sends this process's log to the place for it."""
        configure_logging("worker", os.environ.get(LEVEL_VARIABLE, "INFO"), "text")

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yields the requests, until there are no more."""
        for line in self._lines:
            request = json.loads(line)
            self._token = request.pop("token", self._token)
            yield request

    def write(self, message: Mapping[str, object]) -> None:
        """Writes a line to the parent; any thread may call it."""
        line = json.dumps({**message, "token": self._token}) + "\n"
        with self._lock:
            self._answers.write(line)
            self._answers.flush()


def serve_requests(
    answering: AnswerFactories, memory_bytes: int | None, channel: RequestChannel | None = None
) -> int:
    """Answers each line, a request as JSON, until there are no more or memory runs out.

    An answer is a line on standard output. If users' files cannot be loaded, that error answers
    every request. A process that runs out of memory says so and exits: its state can no longer be
    trusted. Without `memory_bytes` the process may take what the machine has.
    """
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    channel = channel or RequestChannel()
    channel.configure_logging()
    load_error = _load_plugins()
    for request in channel.requests():
        try:
            for make in answering(request):
                channel.write({"error": load_error} if load_error else _answer_or_error(make))
        except MemoryError:
            channel.write({"error": _out_of_memory(memory_bytes), "is_last": True})
            return 1
    return 0


def _out_of_memory(memory_bytes: int | None) -> str:
    if memory_bytes is None:
        return "it needs more memory than this machine has"
    return f"it needs more than the {memory_bytes / 1024**2:,.0f} MiB of memory it may take"


def _answer_or_error(make: Callable[[], JsonObject]) -> JsonObject:
    try:
        return make()
    except UserError as error:
        return {"error": str(error)}
    except MemoryError:
        raise
    except Exception as error:  # whatever a user's function raises
        return {"error": f"{type(error).__name__}: {error}"}


def _reserve_stdout() -> TextIO:
    """Reserves the original standard output for answers."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def reserve_stdin() -> TextIO:
    """Returns the original standard input; what reads it from here on finds its end."""
    requests = os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return requests


def _load_plugins() -> str:
    try:
        load_plugins(plugin_dirs_from_environment())
    except UserError as error:
        return str(error)
    return ""
