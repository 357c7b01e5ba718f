"""Logs of the explorer's runners: what workflows log goes to `explorer_runner_<n>.log`."""

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from trinity.runtime.folded_log import extras_of, folded
from trinity.types import JsonObject

MAX_CHARACTERS = 64 * 1024
"""Longest message and longest traceback; the rest is left out."""
Write = Callable[[Mapping[str, object]], None]


class LineSender(logging.Handler):
    """Sends each record as a message with the key `log`."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Sends a record; what cannot be written is reported on standard error."""
        try:
            self._write({"log": _to_json(record)})
        except Exception:  # logging never fails the code that logs
            self.handleError(record)


def log_line(line: Mapping[str, Any]) -> None:
    """Logs a record that a process sent, as if it had been made here."""
    logger = logging.getLogger(line["name"])
    logger.handle(logging.makeLogRecord({**line["fields"], **line["record"], "name": logger.name}))


def _to_json(record: logging.LogRecord) -> JsonObject:
    traceback = ""
    if record.exc_info:
        traceback = logging.Formatter().formatException(record.exc_info)
    return {
        "name": record.name,
        "record": {
            "msg": record.getMessage()[:MAX_CHARACTERS],
            "levelno": record.levelno,
            "levelname": record.levelname,
            "created": record.created,
            "pathname": record.pathname,
            "lineno": record.lineno,
            "exc_text": traceback[-MAX_CHARACTERS:] or None,
        },
        "fields": json.loads(json.dumps(extras_of(record), default=str)),
    }


FILE_NAME = "explorer_runner_{number}.log"
_OURS = "services."
_current: ContextVar[int | None] = ContextVar("runner", default=None)


def current_runner() -> int | None:
    """Returns the number of the runner whose workflow is running here; None outside of one."""
    return _current.get()


class RunnerNumbers:
    """Gives each run the least busy of the stage's runners, which names the file of its lines.

    with runners.running():
        logging.getLogger("of a workflow").info("...")  # in the file of the runner
    """

    def __init__(self, num_runners: int) -> None:
        self._num_runners = num_runners
        self._open: Counter[int] = Counter()

    @contextlib.contextmanager
    def running(self) -> Iterator[int]:
        """Takes a runner for the block, also for threads and tasks that are started in it."""
        number = min(range(self._num_runners), key=lambda runner: (self._open[runner], runner))
        self._open[number] += 1
        token = _current.set(number)
        try:
            yield number
        finally:
            _current.reset(token)
            self._open[number] -= 1


class RunnerRouter(logging.Handler):
    """Writes the lines of runs into the file of their runner, all others where they went before.

    Errors, and what the explorer itself says of a run, are in both. Without a directory all lines
    stay together, and those of runs have the field `runner`.
    """

    def __init__(self, inner: logging.Handler, directory: Path | None) -> None:
        super().__init__()
        self._inner = inner
        self._directory = directory
        self._files: dict[int, logging.Handler] = {}
        self.filters[:] = inner.filters

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record; `logging` holds this handler's lock."""
        number = current_runner()
        if number is None:
            self._inner.handle(record)
        elif self._directory is None:
            record.runner = number
            self._inner.handle(record)
        else:
            self._file(number, self._directory).handle(record)
            if record.name.startswith(_OURS) or record.levelno >= logging.ERROR:
                self._inner.handle(record)

    def flush(self) -> None:
        """Writes what is counted but not written."""
        for handler in (self._inner, *self._files.values()):
            handler.flush()

    def close(self) -> None:
        """Closes the files."""
        for handler in (self._inner, *self._files.values()):
            handler.close()
        super().close()

    def _file(self, number: int, directory: Path) -> logging.Handler:
        if number not in self._files:
            path = directory / FILE_NAME.format(number=number)
            file = logging.FileHandler(path, encoding="utf-8", delay=True)
            file.setFormatter(self.formatter)
            self._files[number] = folded(file)
        return self._files[number]


def route_runs(directory: Path | None, formatter: logging.Formatter) -> None:
    """Routes the lines of runs from now on; without a directory they only name their runner."""
    root = logging.getLogger()
    router = RunnerRouter(root.handlers[0], directory)
    router.setFormatter(formatter)
    root.handlers[:] = [router]
