"""The logs of a run's directory: merged in time order, and followed."""

import heapq
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path

from trinity.config.error_collector import did_you_mean
from trinity.errors import UserError
from trinity.looking.log_lines import LogLine, parsed

FOLDER = "log"
ENDING = ".log"
LOOK_SECONDS = 0.3
by_time = attrgetter("time")


def log_files(job_dir: Path, services: Sequence[str]) -> dict[str, Path]:
    """Returns the logs by service: all, or the named ones.

    Raises: UserError when there are none.
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
    """Yields what is there, then what comes, also in files that appear later; never ends.

    None separates two polls, because a message is yielded only once it is complete.
    """
    tails: dict[str, _Tail] = {}
    while True:
        for name, path in _all_files(job_dir).items():
            if name not in tails and (not services or name in services):
                tails[name] = _Tail(name, path)
        new = [line for tail in tails.values() for line in tail.look()]
        yield from sorted(new, key=by_time)
        yield None
        time.sleep(LOOK_SECONDS)


def _all_files(job_dir: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted((job_dir / FOLDER).glob(f"*{ENDING}"))}


def _messages(service: str, path: Path) -> Iterator[LogLine]:
    builder = _Builder(service)
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if done := builder.take(line.rstrip("\n")):
                yield done
    if last := builder.end():
        yield last


class _Builder:
    """Assembles lines into messages."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._open: LogLine | None = None

    def take(self, line: str) -> LogLine | None:
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
            if done := self._builder.take(line.decode(errors="replace")):
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
