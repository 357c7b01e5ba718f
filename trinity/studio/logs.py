"""The newest lines of a run's logs; only the ends of the files are read, whatever their size."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trinity.errors import UserError
from trinity.run.local.addresses import stack_directory_of
from trinity.run.log_files import LogFilter, LogLine, by_time, log_files, tail_messages

TAIL_BYTES = 512 * 1024
"""Read of each file."""
MAX_LINES = 200
MAX_LINE_CHARS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """The newest lines that a filter takes, the newest last; texts are untrusted."""

    services: tuple[str, ...]
    """All that have a log."""
    lines: tuple[LogLine, ...]
    num_more: int
    """Lines before these that were read and taken."""
    is_cut: bool
    """True if a file is longer than the part that was read."""


def read_page(job_dir: Path, service: str, wanted: LogFilter) -> LogPage:
    """Returns the newest lines of one service, or with an empty name of all.

    Raises: UserError if the run has no logs here.
    """
    home = stack_directory_of(job_dir)
    files = log_files(home, ())
    chosen = {name: path for name, path in files.items() if service in ("", name)}
    taken = sorted(_taken(chosen, wanted), key=by_time)
    return LogPage(
        services=tuple(files),
        lines=tuple(taken[-MAX_LINES:]),
        num_more=max(0, len(taken) - MAX_LINES),
        is_cut=any(_size(path) > TAIL_BYTES for path in chosen.values()),
    )


def line_text(line: LogLine) -> str:
    """Formats a line as `trinity log` prints it, with what follows it; a very long one is cut."""
    time = line.time.strftime("%m-%d %H:%M:%S.%f")[:-3]
    text = "\n".join(
        (f"{time} {line.service} {line.level} {line.text}", *(f"    {more}" for more in line.more))
    )
    if len(text) <= MAX_LINE_CHARS:
        return text
    return f"{text[:MAX_LINE_CHARS]} [{len(text) - MAX_LINE_CHARS:,} more characters]"


def _taken(files: dict[str, Path], wanted: LogFilter) -> Iterator[LogLine]:
    for name, path in files.items():
        try:
            yield from filter(wanted.takes, tail_messages(name, path, TAIL_BYTES))
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
