"""Folds repeated log lines: the first is written, the others are counted."""

import copy
import logging
import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
FOLD_SECONDS = 5.0
MAX_OPEN = 256
"""Different lines whose repetitions are counted at the same time."""
FOLDED_VARIABLE = "RAY_DEDUP_LOGS"
"""Set to 0, it switches folding off. The name is that of Ray, which people know."""
_NEVER = ("audit",)
_Line = tuple[object, ...]


@dataclass(slots=True)
class _Repeated:
    """A line that was written, and how often it came again since then."""

    last: logging.LogRecord
    until: float
    count: int = 0


class FoldingHandler(logging.Handler):
    """Passes records to another handler; equal ones within some seconds become one more line.

    handler = FoldingHandler(logging.StreamHandler(sys.stdout))
    logger.info("a cold cache")  # a line
    logger.info("a cold cache")  # counted
    # five seconds after the first: "a cold cache repeated=1"

    Two records are equal if their logger, level, text, fields and traceback are; only the time and
    the trace may differ. At the end of the process `flush` writes the counts.
    """

    def __init__(self, inner: logging.Handler, seconds: float = FOLD_SECONDS) -> None:
        super().__init__()
        self._inner = inner
        self._seconds = seconds
        self._open: OrderedDict[_Line, _Repeated] = OrderedDict()
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Writes or counts a record; `logging` holds this handler's lock."""
        now = time.monotonic()
        self._write_due(now)
        if record.name in _NEVER:
            self._inner.handle(record)
            return
        line = _identity(record)
        repeated = self._open.get(line)
        if repeated is not None:
            repeated.count += 1
            repeated.last = record
            self._start_timer()
            return
        self._open[line] = _Repeated(record, now + self._seconds)
        if len(self._open) > MAX_OPEN:
            self._write(self._open.popitem(last=False)[1])
        self._inner.handle(record)

    def flush(self) -> None:
        """Writes all counts."""
        with self._held():
            self._write_due(float("inf"))
        self._inner.flush()

    def close(self) -> None:
        """Writes all counts and closes the other handler."""
        self.flush()
        if self._timer is not None:
            self._timer.cancel()
        self._inner.close()
        super().close()

    def _held(self) -> "threading.RLock":
        assert self.lock is not None
        return self.lock

    def _write_due(self, now: float) -> None:
        """Writes the counts whose time is over; lines are in the order of their first record."""
        while self._open:
            line, repeated = next(iter(self._open.items()))
            if repeated.until > now:
                return
            del self._open[line]
            self._write(repeated)

    def _write(self, repeated: _Repeated) -> None:
        if repeated.count:
            record = copy.copy(repeated.last)
            record.repeated = repeated.count
            self._inner.handle(record)

    def _start_timer(self) -> None:
        """Makes sure that a count is written though no other record comes."""
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, self._on_timer)
            self._timer.daemon = True
            self._timer.start()

    def _on_timer(self) -> None:
        with self._held():
            self._timer = None
            self._write_due(time.monotonic())
            if any(repeated.count for repeated in self._open.values()):
                self._start_timer()


def extras_of(record: logging.LogRecord) -> dict[str, object]:
    """Returns the fields given as `extra`.

    Names that start with an underscore belong to other libraries and are left out.
    """
    return {
        key: value
        for key, value in vars(record).items()
        if key not in STANDARD_FIELDS and not key.startswith("_")
    }


def folded(handler: logging.Handler) -> logging.Handler:
    """Returns a handler that folds, unless the environment says otherwise."""
    return handler if os.environ.get(FOLDED_VARIABLE) == "0" else FoldingHandler(handler)


def _identity(record: logging.LogRecord) -> _Line:
    error = record.exc_info[1] if record.exc_info else None
    fields = tuple((name, repr(value)) for name, value in extras_of(record).items())
    traceback = repr(error) if error else record.exc_text
    return record.name, record.levelno, record.getMessage(), fields, traceback
