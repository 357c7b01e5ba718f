"""Which lines of the logs somebody wants to see."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from trinity.errors import UserError
from trinity.looking.log_lines import LogLine, level_number

_AGO = re.compile(r"(?P<number>\d+)(?P<unit>[smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """What a line must be; what is not given is no condition."""

    level: str = "DEBUG"
    """The least severe."""
    since: datetime | None = None
    text: str = ""
    """Part of it, whatever the case."""
    trace: str = ""
    """The beginning of a trace's id."""
    experiment: str = ""

    def takes(self, line: LogLine) -> bool:
        """Whether a line is to be seen."""
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
    """A time, or how long ago.

    Raises: UserError when it is neither.
    """
    try:
        return _since(text.strip(), now)
    except (ValueError, OverflowError):  # the second: before the first of years
        raise UserError(
            f"--since {text!r} is no time: give how long ago (30s, 10m, 2h, 1d), or a time as "
            "2026-03-01T12:30, UTC unless it says otherwise"
        ) from None


def _since(text: str, now: datetime) -> datetime:
    if match := _AGO.fullmatch(text):
        return now - timedelta(**{_UNITS[match["unit"]]: int(match["number"])})
    given = datetime.fromisoformat(text)
    return given if given.tzinfo else given.replace(tzinfo=UTC)
