"""Lines that users' code logs in its process, written where the run's own lines are written."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from trinity.runtime.folded_log import extras_of
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
