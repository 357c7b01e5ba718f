"""A child process's end of the lines of JSON between it and its parent, `Worker`."""

import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO


class RequestChannel:
    """The parent's requests on standard input, and lines of JSON back to it.

    What a function prints goes to standard error, and so do the lines that it logs. One that reads
    standard input finds it at its end, so it neither waits nor takes requests away. Each line has
    the token of the newest request that has one: other code that finds the channel has to know it.
    """

    def __init__(self) -> None:
        self._answers = _reserve_stdout()
        self.input = reserve_stdin()
        self._lock = threading.Lock()
        self._token = ""

    def configure_logging(self) -> None:
        """Sends this process's log to the place for it."""
        # A process without logs starts without telemetry.
        from trinity.runtime.logs import LEVEL_VARIABLE, configure_logging

        configure_logging("worker", os.environ.get(LEVEL_VARIABLE, "INFO"), "text")

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yields the requests, until there are no more."""
        for line in self.input:
            request = json.loads(line)
            self._token = request.pop("token", self._token)
            yield request

    def write(self, message: Mapping[str, object], *payload: bytes) -> None:
        """Writes a line to the parent, and bytes of which it says the number.

        Any thread may call it.
        """
        line = json.dumps({**message, "token": self._token}) + "\n"
        with self._lock:
            self._answers.writelines([line.encode(), *payload])
            self._answers.flush()


def _reserve_stdout() -> BinaryIO:
    """Reserves the original standard output for answers."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def reserve_stdin() -> BinaryIO:
    """Returns the original standard input; what reads it from here on finds its end."""
    requests = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return requests
