"""What a file is told besides its mistakes: keys that do nothing, are called otherwise, or wait."""

from dataclasses import dataclass
from typing import Any

from trinity.config.secret import shown
from trinity.config.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One key that does not act as it is written."""

    status: Status
    key: str
    """As the user calls it."""
    value: Any
    place: str
    """`in file:line`."""
    line: int
    """0 where it stands on the command line."""
    text: str
    """The reason; of a renamed key the new name."""

    @property
    def what(self) -> str:
        """The key, with its value where that is short."""
        value = shown(self.key, self.value)
        is_short = not isinstance(self.value, dict | list | tuple) and len(value) <= 40
        return f"`{self.key}: {value}`" if is_short else f"`{self.key}`"

    def __str__(self) -> str:
        if self.status is Status.RENAMED:
            return f"`{self.key}` is used as `{self.text}`"
        return f"{self.what}: {self.text}"
