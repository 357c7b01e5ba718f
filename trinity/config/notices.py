"""Notices on a file besides errors: keys without effect, renamed keys and planned keys."""

from dataclasses import dataclass
from typing import Any

from trinity.config.secret import shown
from trinity.config.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A key that does not act as written."""

    status: Status
    key: str
    """The key as the user wrote it."""
    value: Any
    place: str
    """`in file:line`."""
    line: int
    """0 for the command line."""
    text: str
    """The reason; for a renamed key, the new name."""

    @property
    def what(self) -> str:
        """The key, with its value if that is short."""
        value = shown(self.key, self.value)
        is_short = not isinstance(self.value, dict | list | tuple) and len(value) <= 40
        return f"`{self.key}: {value}`" if is_short else f"`{self.key}`"

    def __str__(self) -> str:
        if self.status is Status.RENAMED:
            return f"`{self.key}` is used as `{self.text}`"
        return f"{self.what}: {self.text}"
