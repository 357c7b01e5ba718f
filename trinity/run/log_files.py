"""Reads, follows and filters the log files of the services, the broker and the database."""

import heapq
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path

from trinity.config.error_collector import did_you_mean
from trinity.errors import UserError

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
FOLDER = "log"
ENDING = ".log"
POLL_SECONDS = 0.3
by_time = attrgetter("time")
_AGO = re.compile(r"(?P<number>\d+)(?P<unit>[smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


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


def log_files(job_dir: Path, services: Sequence[str]) -> dict[str, Path]:
    """Returns the logs by service: all, or the named ones.

    Raises: UserError if no log exists.
    """
    found = _all_files(job_dir)
    if not found:
        raise UserError(f"there are no logs in {job_dir / FOLDER}: give the run's --job-dir")
    for name in services:
        if name not in found:
            raise UserError(f"`{name}` has no log in {job_dir / FOLDER}{did_you_mean(name, found)}")
    return {name: path for name, path in found.items() if not services or name in services}


def read_logs(files: dict[str, Path]) -> Iterator[LogLine]:
    """Yields all present messages in time order."""
    return heapq.merge(*(_messages(name, path) for name, path in files.items()), key=by_time)


def follow_logs(job_dir: Path, services: Sequence[str]) -> Iterator[LogLine | None]:
    """Yields existing lines, then new ones, also of files that appear later; never ends.

    None marks the end of a poll, because a message is yielded only once it is complete.
    """
    tails: dict[str, _Tail] = {}
    while True:
        for name, path in _all_files(job_dir).items():
            if name not in tails and (not services or name in services):
                tails[name] = _Tail(name, path)
        new = [line for tail in tails.values() for line in tail.look()]
        yield from sorted(new, key=by_time)
        yield None
        time.sleep(POLL_SECONDS)


def _all_files(job_dir: Path) -> dict[str, Path]:
    """Returns all logs by name; with `log.group_by_node` those of services are in folders.

    A service that has run on several machines is named with the folder.
    """
    folder = job_dir / FOLDER
    paths = sorted([*folder.glob(f"*{ENDING}"), *folder.glob(f"*/*{ENDING}")])
    times = Counter(path.stem for path in paths)
    return {_name_of(path, folder, is_alone=times[path.stem] == 1): path for path in paths}


def _name_of(path: Path, folder: Path, *, is_alone: bool) -> str:
    return path.stem if is_alone else str(path.relative_to(folder).with_suffix(""))


def log_file_of(job_dir: Path, service: str) -> Path:
    """Returns the path of a service's newest log, even before it exists."""
    folder = job_dir / FOLDER
    name = f"{service}{ENDING}"
    found = [path for path in (folder / name, *folder.glob(f"*/{name}")) if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=folder / name)


def _messages(service: str, path: Path) -> Iterator[LogLine]:
    builder = _Builder(service)
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if done := builder.add_line(line.rstrip("\n")):
                yield done
    if last := builder.end():
        yield last


def tail_messages(service: str, path: Path, max_bytes: int) -> Iterator[LogLine]:
    """Yields the messages at the end of a file; the beginning of a cut one is left out."""
    with path.open("rb") as file:
        skipped = max(0, file.seek(0, 2) - max_bytes)
        file.seek(skipped)
        lines = file.read(max_bytes).decode(errors="replace").removesuffix("\n").split("\n")
    builder, has_begun = _Builder(service), not skipped
    for line in lines[1:] if skipped else lines:
        has_begun = has_begun or parsed(service, line) is not None
        if has_begun and (done := builder.add_line(line)):
            yield done
    if last := builder.end():
        yield last


class _Builder:
    """Assembles lines into messages."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._open: LogLine | None = None

    def add_line(self, line: str) -> LogLine | None:
        """Adds a line; returns the previous message if this line begins another one."""
        begun = parsed(self._service, line)
        if begun is not None:
            done, self._open = self._open, begun
            return done
        if self._open is not None:
            self._open = self._open.with_more(line)
        elif line:
            # Written before the service had a log, such as by an interpreter that does not start.
            beginning = datetime.min.replace(tzinfo=UTC)
            self._open = LogLine(time=beginning, service=self._service, level="INFO", text=line)
        return None

    def end(self) -> LogLine | None:
        """Returns the last message."""
        done, self._open = self._open, None
        return done


class _Tail:
    """One growing file; a truncated one is read again from its start."""

    def __init__(self, service: str, path: Path) -> None:
        self._path = path
        self._builder = _Builder(service)
        self._offset = 0
        self._rest = b""

    def look(self) -> Iterator[LogLine]:
        """Yields messages that were completed since the last poll."""
        content = self._grown()
        if not content:
            if last := self._builder.end():
                yield last
            return
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            if done := self._builder.add_line(line.decode(errors="replace")):
                yield done

    def _grown(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return b""
        self._offset += len(content)
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """Conditions on a line; those that are not set do not apply."""

    level: str = "DEBUG"
    """The lowest severity shown."""
    since: datetime | None = None
    text: str = ""
    """Part of the text, ignoring case."""
    trace: str = ""
    """The beginning of a trace's id."""
    experiment: str = ""

    def takes(self, line: LogLine) -> bool:
        """Returns true if a line matches."""
        return (
            level_number(line.level) >= level_number(self.level)
            and (self.since is None or line.time >= self.since)
            and (not self.trace or line.trace_id.startswith(self.trace))
            and (not self.experiment or line.names(self.experiment))
            and (not self.text or self._has_text(line))
        )

    def _has_text(self, line: LogLine) -> bool:
        wanted = self.text.casefold()
        return any(wanted in part.casefold() for part in (line.text, *line.more))


def since_of(text: str, now: datetime) -> datetime:
    """Parses a time, or a duration before now.

    Raises: UserError when it is neither.
    """
    try:
        return _since(text.strip(), now)
    except (ValueError, OverflowError):  # OverflowError: before year 1
        raise UserError(
            f"--since {text!r} is not a time: give how long ago (30s, 10m, 2h, 1d), or a time like "
            "2026-03-01T12:30, UTC unless it says otherwise"
        ) from None


def _since(text: str, now: datetime) -> datetime:
    if match := _AGO.fullmatch(text):
        return now - timedelta(**{_UNITS[match["unit"]]: int(match["number"])})
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
