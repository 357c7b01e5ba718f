"""Logging of a service: one line per message on standard output, with values in `extra`.

Errors of libraries and users' code may contain addresses: passwords in them are removed here.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from trinity.masking import without_passwords
from trinity.telemetry import tracing

STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Text from other parties may appear in a line; it must not start another line or send terminal
# control codes.
ESCAPED = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


def _extras(record: logging.LogRecord) -> dict[str, object]:
    """Returns the fields given as `extra` and the current span's ids.

    Names that start with an underscore belong to other libraries and are left out.
    """
    extras = {
        key: value
        for key, value in vars(record).items()
        if key not in STANDARD_FIELDS and not key.startswith("_")
    }
    if place := tracing.current():
        extras |= {"trace_id": place.trace_hex, "span_id": place.span_hex}
    return extras


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message key=value ...`, then the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        extras = "".join(f" {key}={value}" for key, value in _extras(record).items())
        line = f"{_timestamp(record)} {record.levelname} {record.name}: {record.getMessage()}"
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return without_passwords((line + extras).translate(ESCAPED) + trace)


class JsonFormatter(logging.Formatter):
    """One JSON object per line; fields of `extra` stand beside the standard ones."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return without_passwords(json.dumps(entry, default=str))


def configure_logging(service: str, level: str, style: Literal["text", "json"]) -> None:
    """Sends this process's log to standard output; libraries stay at WARNING."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter(service) if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("trinity", "services", "__main__"):
        logging.getLogger(name).setLevel(level)
    logging.getLogger("audit").setLevel(logging.INFO)
