"""Log output of a process: text or JSON lines without passwords, and logs limited in rate."""

import json
import logging
import os
import re
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from types import MappingProxyType
from typing import Literal, TypeAlias

from trinity.runtime.control_characters import ESCAPED
from trinity.runtime.folded_log import STANDARD_FIELDS, extras_of, folded
from trinity.runtime.telemetry import tracing

HIDDEN = "***"

_IN_ADDRESS = re.compile(r"(?P<user>://[^\s:/@]*):[^\s/@]+@")
INTERVAL_SECONDS = 10.0
MAX_BURSTS = 1_000
NO_SUBJECT: Mapping[str, str] = MappingProxyType({})
_Key: TypeAlias = tuple[str, ...]
OWN_PACKAGES = {"trinity", "services", "__main__", "audit"}
"""The first parts of loggers' names whose lines are written from `log.level` on."""
_LIBRARIES = tuple(
    sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
LEVEL_VARIABLE = "TRINITY_LOG_LEVEL"
"""Least level of the lines of the processes that call users' functions."""
LogStyle: TypeAlias = Literal["text", "json"]


def redact_passwords(text: str) -> str:
    """Returns the text with the password of each address replaced by `***`."""
    return _IN_ADDRESS.sub(rf"\g<user>:{HIDDEN}@", text) if "://" in text else text


def _extras(record: logging.LogRecord) -> dict[str, object]:
    """Returns the fields given as `extra` and the current span's ids."""
    extras = extras_of(record)
    if place := tracing.current():
        extras |= {"trace_id": place.trace_hex, "span_id": place.span_hex}
    return extras


def _traceback(record: logging.LogRecord) -> str:
    """Returns the traceback of a record, also of one that another process made."""
    if record.exc_info:
        return logging.Formatter().formatException(record.exc_info)
    return record.exc_text or ""


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message key=value ...`, then the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        extras = "".join(f" {key}={value}" for key, value in _extras(record).items())
        line = f"{_timestamp(record)} {record.levelname} {record.name}: {record.getMessage()}"
        trace = _traceback(record)
        return redact_passwords(
            (line + extras).translate(ESCAPED) + ("\n" + trace if trace else "")
        )


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the standard fields and those of `extra`."""

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
        if trace := _traceback(record):
            entry["traceback"] = trace
        return redact_passwords(json.dumps(entry, default=str))


def as_fields(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns metrics as fields of a line; one with the name of a record's own field is renamed."""
    return {
        f"metric/{name}" if name in STANDARD_FIELDS else name: value
        for name, value in metrics.items()
    }


def own_package(module: str) -> None:
    """Writes the lines of a module's package from `log.level` on, wherever it is installed."""
    OWN_PACKAGES.add(module.partition(".")[0])


class LibraryFilter(logging.Filter):
    """Drops records of libraries below WARNING; a user's files are not a library.

    A line belongs to a user if the file that wrote it is neither of Python nor installed.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns true for a record to write."""
        return (
            record.levelno >= logging.WARNING
            or record.name.partition(".")[0] in OWN_PACKAGES
            or is_users_file(record.pathname)
        )


@cache
def is_users_file(path: str) -> bool:
    """Returns true for a file of Python that is neither of Python itself nor installed."""
    is_installed = path.startswith(_LIBRARIES) or any(part in path for part in _INSTALLED)
    return path.endswith(".py") and not is_installed


def log_formatter(service: str, style: LogStyle) -> logging.Formatter:
    """Returns the formatter of a service's lines."""
    return JsonFormatter(service) if style == "json" else TextFormatter()


def configure_logging(service: str, level: str, style: LogStyle) -> None:
    """Sends this process's log to standard output; libraries stay at WARNING."""
    stream = logging.StreamHandler(sys.stdout)
    stream.setFormatter(log_formatter(service, style))
    handler = folded(stream)
    handler.addFilter(LibraryFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("audit").setLevel(logging.INFO)
    os.environ[LEVEL_VARIABLE] = level


@dataclass(slots=True)
class _Burst:
    """Events of one kind and subject since the last line about them."""

    kind: str
    about: Mapping[str, str]
    level: int
    until: float
    count: int = 0

    @property
    def key(self) -> _Key:
        return self.kind, *self.about.values()


class RateLimitedLog:
    """Logs the first event of a kind; later ones within the interval become one line with a count.

    log = RateLimitedLog(logging.getLogger(__name__))
    log.warning("refused a request", reason="a is missing")  # a line
    log.warning("refused a request", reason="b is missing")  # counted
    log.warning("refused a request", {"subject": "b"})  # a line: it has another subject
    # ten seconds after the first: "refused a request again" times=1

    Call it from asyncio code only. A kind is a constant text, so there are few of them. Subjects
    may be chosen by untrusted callers: beyond `max_bursts` they are counted together.
    """

    def __init__(
        self,
        logger: logging.Logger,
        interval_seconds: float = INTERVAL_SECONDS,
        max_bursts: int = MAX_BURSTS,
    ) -> None:
        self._logger = logger
        self._interval_seconds = interval_seconds
        self._max_bursts = max_bursts
        self._bursts: dict[_Key, _Burst] = {}

    def warning(self, kind: str, about: Mapping[str, str] = NO_SUBJECT, /, **extra: object) -> None:
        """Logs something that a caller did wrong."""
        if self._begins(kind, about, logging.WARNING):
            self._logger.warning(kind, extra={**about, **extra})

    def error(self, kind: str, error: BaseException, **extra: object) -> None:
        """Logs something that went wrong in this process, with its traceback."""
        if self._begins(kind, NO_SUBJECT, logging.ERROR):
            self._logger.error(kind, extra=extra, exc_info=error)

    def _begins(self, kind: str, about: Mapping[str, str], level: int) -> bool:
        """Returns true when no event of this kind was logged lately; otherwise counts it."""
        new = _Burst(kind, about, level, time.monotonic() + self._interval_seconds)
        if new.key not in self._bursts and len(self._bursts) >= self._max_bursts:
            new.about = NO_SUBJECT
        burst = self._bursts.get(new.key)
        if burst is not None and time.monotonic() < burst.until + self._interval_seconds:
            burst.count += 1
            return False
        # Older than two intervals: the event loop that should have ended it is gone.
        self._begin(new)
        return True

    def _begin(self, burst: _Burst) -> None:
        self._bursts[burst.key] = burst
        import asyncio  # the import is slow, and short commands do not log

        asyncio.get_running_loop().call_later(self._interval_seconds, self._end, burst.key)

    def _end(self, key: _Key) -> None:
        """Logs how many events there were; a burst that continues is logged once per interval."""
        burst = self._bursts.pop(key, None)
        if burst is not None and burst.count:
            extra = {**burst.about, "times": burst.count}
            self._logger.log(burst.level, "%s again", burst.kind, extra=extra)
            until = time.monotonic() + self._interval_seconds
            self._begin(_Burst(burst.kind, burst.about, burst.level, until))
