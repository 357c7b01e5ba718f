"""Selects the log lines to show."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from trinity.errors import UserError
from trinity.looking.log_lines import LogLine, level_number

_AGO = re.compile(r"(?P<number>\d+)(?P<unit>[smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


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
