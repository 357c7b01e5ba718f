"""`trinity log`: the logs of a run's processes, in order of time."""

import json
import os
import re
import shutil
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import Annotated

import typer

from trinity.cli.places import FindRun, at_a_run
from trinity.errors import UserError
from trinity.run.local.addresses import stack_directory_of
from trinity.run.log_files import (
    LEVELS,
    LogFilter,
    LogLine,
    follow_logs,
    level_number,
    log_files,
    read_logs,
    since_of,
)
from trinity.run.places import Deployment
from trinity.runtime.control_characters import ESCAPED

COLORS = {"WARNING": "33", "ERROR": "31", "CRITICAL": "31;1", "DEBUG": "2"}
SERVICE_COLOR = "36"
SERVICE_WIDTH = 12
LEVEL_WIDTH = 8
HEAD_WIDTH = len("2000-01-01 00:00:00.000 ") + SERVICE_WIDTH + LEVEL_WIDTH + 2
MIN_TEXT_WIDTH = 40
CUT = "…"
ELSEWHERE = (
    "the logs of a deployment are where its processes run: ask `kubectl logs`, `docker compose "
    "logs` or `nomad alloc logs`"
)
_LOGGER = re.compile(r"^(services|trinity)(\.\w+)*: ")

ServiceOption = Annotated[
    list[str] | None,
    typer.Option("--service", "-s", help="buffer, explorer, nats, ...; may be given again."),
]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines.")]
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=0, help="Only the last lines; 0 for all.")
]
LevelOption = Annotated[
    str, typer.Option("--level", "-l", help="Lowest severity: DEBUG, INFO, WARNING, ERROR.")
]
SinceOption = Annotated[
    str | None, typer.Option("--since", help="30s, 10m, 2h or 1d ago; or a time.")
]
TextOption = Annotated[str, typer.Option("--grep", "-g", help="Part of the text, in any case.")]
TraceOption = Annotated[str, typer.Option("--trace", help="A trace's id, or the beginning of it.")]
ExperimentOption = Annotated[
    str, typer.Option("--experiment", help="Lines that name this experiment, by id or label.")
]
ShortOption = Annotated[
    bool | None,
    typer.Option(
        "--short/--long",
        help="Cut lines below WARNING at the terminal's width; the default on a terminal.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


@at_a_run()
def log(
    *,
    find_run: FindRun,
    service: ServiceOption = None,
    level: LevelOption = "DEBUG",
    since: SinceOption = None,
    grep: TextOption = "",
    trace: TraceOption = "",
    experiment: ExperimentOption = "",
    limit: LimitOption = 0,
    follow: FollowOption = False,
    short: ShortOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the logs of a run's processes together, also of a run that has stopped."""
    if level.upper() not in LEVELS:
        raise UserError(f"--level {level} is not a level: give one of {', '.join(LEVELS)}")
    services = service or []
    place = find_run()
    if isinstance(place, Deployment):
        raise UserError(ELSEWHERE)
    directory = stack_directory_of(place)
    wanted = LogFilter(
        level=level.upper(),
        since=since_of(since, datetime.now(UTC)) if since else None,
        text=grep,
        trace=trace.lower(),
        experiment=experiment,
    )
    files = log_files(directory, services)
    human = _painted if _takes_colors() else _plain
    is_short = sys.stdout.isatty() if short is None else short
    shown = (lambda line: human(_shortened(line))) if is_short else human
    show = _json_line if as_json else shown
    looks = follow_logs(directory, services) if follow else iter([*read_logs(files), None])
    try:
        for line in _wanted(looks, wanted, limit):
            print(show(line), flush=follow)
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe: prevents a flush to it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _wanted(looks: Iterator[LogLine | None], wanted: LogFilter, limit: int) -> Iterator[LogLine]:
    """Yields the last `limit` existing lines, or all without a limit; then every new line."""
    there = takewhile(lambda line: line is not None, looks)
    first = (line for line in there if line is not None and wanted.takes(line))
    yield from deque(first, maxlen=limit) if limit else first
    yield from (line for line in looks if line is not None and wanted.takes(line))


def _shortened(line: LogLine) -> LogLine:
    """Returns the line without its logger, at the terminal's width; warnings and errors whole."""
    text = _LOGGER.sub("", line.text)
    if level_number(line.level) >= level_number("WARNING"):
        return replace(line, text=text)
    room = max(shutil.get_terminal_size().columns - HEAD_WIDTH, MIN_TEXT_WIDTH)
    cut = text if len(text) <= room and not line.more else f"{text[: room - 1]}{CUT}"
    return replace(line, text=cut, more=())


def _plain(line: LogLine) -> str:
    return _human(line, line.service.ljust(SERVICE_WIDTH), line.level.ljust(LEVEL_WIDTH))


def _painted(line: LogLine) -> str:
    service = _paint(line.service.ljust(SERVICE_WIDTH), SERVICE_COLOR)
    level = line.level.ljust(LEVEL_WIDTH)
    return _human(line, service, _paint(level, COLORS.get(line.level, "")))


def _human(line: LogLine, service: str, level: str) -> str:
    """Formats a line; it may hold text of others, so terminal control characters are escaped."""
    head = f"{line.time:%Y-%m-%d %H:%M:%S}.{line.time.microsecond // 1000:03d}"
    parts = [part.translate(ESCAPED) for part in (line.text, *line.more)]
    return "\n".join([f"{head} {service} {level} {parts[0]}", *parts[1:]])


def _paint(text: str, color: str) -> str:
    return f"\x1b[{color}m{text}\x1b[0m" if color else text


def _json_line(line: LogLine) -> str:
    entry = {
        "time": line.time.isoformat(),
        "service": line.service,
        "level": line.level,
        "text": "\n".join((line.text, *line.more)),
        **({"trace_id": line.trace_id} if line.trace_id else {}),
    }
    return json.dumps(entry)


def _takes_colors() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ
