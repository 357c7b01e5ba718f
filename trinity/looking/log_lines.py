"""Parses log lines of the services (text or JSON), the broker and the database."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
OTHER_LEVELS = {
    "TRC": "DEBUG",
    "DBG": "DEBUG",
    "INF": "INFO",
    "LOG": "INFO",
    "NOTICE": "INFO",
    "WRN": "WARNING",
    "ERR": "ERROR",
    "FTL": "CRITICAL",
    "FATAL": "CRITICAL",
    "PANIC": "CRITICAL",
}
"""Level names of the broker and the database."""
_TEXT = re.compile(r"(?P<time>\d{4}-\d\d-\d\dT[\d:.]+[+-][\d:]+) (?P<level>[A-Z]+) (?P<text>.*)")
_POSTGRES = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d [\d:.]+) UTC (?P<text>\[\d+\][^:]*?(?P<level>[A-Z]+):.*)"
)
_NATS = re.compile(r"\[\d+\] (?P<time>\d{4}/\d\d/\d\d [\d:.]+) (?P<text>\[(?P<level>[A-Z]{3})\].*)")
_VALUE = re.compile(r" (?P<name>[a-z_]+)=(?P<value>\S+)")
_SHOWN_APART = ("time", "level", "service", "logger", "message", "traceback")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One message with the lines after it that have no time, such as a traceback."""

    time: datetime
    service: str
    level: str
    text: str
    fields: Mapping[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()

    @property
    def trace_id(self) -> str:
        """Empty if it was logged outside of any trace."""
        return self.fields.get("trace_id", "")

    def names(self, experiment: str) -> bool:
        """Returns true if the line is about an experiment, by its id or its label."""
        return experiment in (self.fields.get("experiment"), self.fields.get("experiment_id"))

    def with_more(self, line: str) -> "LogLine":
        """Returns the message with one more line."""
        return replace(self, more=(*self.more, line))


def parsed(service: str, line: str) -> LogLine | None:
    """Parses a line that begins a message; returns None for a continuation line."""
    if line.startswith("{"):
        return _of_json(service, line)
    if match := _TEXT.match(line):
        time, values = datetime.fromisoformat(match["time"]), dict(_values(match["text"]))
        return _line(service, time, match, values)
    if match := _POSTGRES.match(line):
        return _line(service, datetime.fromisoformat(match["time"]).replace(tzinfo=UTC), match)
    if match := _NATS.match(line):
        # The broker writes local time.
        local = datetime.strptime(match["time"], "%Y/%m/%d %H:%M:%S.%f").astimezone()
        return _line(service, local, match)
    return None


def level_number(level: str) -> int:
    """Returns the severity; unknown levels count as INFO."""
    return LEVELS.index(level) if level in LEVELS else LEVELS.index("INFO")


def _line(
    service: str, time: datetime, match: "re.Match[str]", values: Mapping[str, str] | None = None
) -> LogLine:
    level = OTHER_LEVELS.get(match["level"], match["level"])
    known = level if level in LEVELS else "INFO"
    return LogLine(time=time, service=service, level=known, text=match["text"], fields=values or {})


def _values(text: str) -> Iterator[tuple[str, str]]:
    return ((match["name"], match["value"]) for match in _VALUE.finditer(text))


def _of_json(service: str, line: str) -> LogLine | None:
    try:
        entry = json.loads(line)
        time = datetime.fromisoformat(entry["time"])
        text = f"{entry['logger']}: {entry['message']}"
    except (ValueError, KeyError, TypeError):
        return None
    values = {name: str(value) for name, value in entry.items() if name not in _SHOWN_APART}
    shown = "".join(f" {name}={value}" for name, value in values.items())
    return LogLine(
        time=time,
        service=str(entry.get("service", service)),
        level=str(entry.get("level", "INFO")),
        text=text + shown,
        fields=values,
        more=tuple(str(entry.get("traceback", "")).splitlines()),
    )
