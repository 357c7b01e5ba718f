"""Untrusted text made plain: characters that steer a display are escaped."""

from collections.abc import Iterable
from datetime import UTC, datetime

from trinity.runtime.control_characters import ESCAPED

_KEPT = "\n\t"
_STEERING = {code: text for code, text in ESCAPED.items() if chr(code) not in _KEPT}
ABSENT = "not recorded"


def plain_text(text: str) -> str:
    """Returns the text with its lines; control and bidirectional characters are escaped."""
    return text.translate(_STEERING)


def visible_text(text: str) -> str:
    """Returns the text in one line: line ends are `↵`, tabs `→`."""
    return plain_text(text.replace("\n", "↵").replace("\t", "→"))


def one_line(text: str) -> str:
    """Returns the text in one line for a cell of a table."""
    return plain_text(" ".join(text.split()))


def cut_text(text: str, max_chars: int) -> str:
    """Returns the text, or its beginning and how much more there is."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[{len(text) - max_chars:,} more characters]"


def beginning_of(text: str, max_chars: int) -> str:
    """Returns the beginning of a text in one line."""
    line = " ".join(text[: 4 * max_chars].split())
    return line[:max_chars] + ("…" if len(line) > max_chars else "")


def number_text(value: float | None, digits: int = 2, *, is_signed: bool = False) -> str:
    """Formats a number; one that is missing is empty."""
    if value is None:
        return ""
    shown = 0.0 if abs(value) < 0.5 * 10**-digits else value  # else it would be -0.00
    return f"{shown:+.{digits}f}" if is_signed and shown else f"{shown:,.{digits}f}"


def reward_text(reward: float | None, shaped: float | None) -> str:
    """Formats the reward that came, and after an arrow the one that an operator made of it."""
    came = number_text(reward)
    return came if shaped is None else f"{came} → {number_text(shaped)}".lstrip()


def seconds_text(seconds: float | None) -> str:
    """Formats a duration as `42 s`, `6 min` or `3 h 12 min`."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def time_text(unix_millis: int) -> str:
    """Formats a time of day in UTC."""
    return datetime.fromtimestamp(unix_millis / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def joined(parts: Iterable[str]) -> str:
    """Joins the non-empty parts."""
    return " · ".join(part for part in parts if part)
