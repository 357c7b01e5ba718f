"""A configuration's text, with the line or the command line as the origin of each key."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trinity.config.lines import lines_of
from trinity.errors import UserError

COMMAND_LINE = "the command line"


@dataclass(frozen=True, slots=True)
class Source:
    """The file that a configuration came from, used to locate its keys."""

    path: Path
    text: str
    lines: Mapping[str, int]
    """Dotted key to line."""
    overridden: frozenset[str] = frozenset()
    """Dotted keys that the command line gives."""
    moved: Mapping[str, str] = field(default_factory=dict)
    """Dotted key to the older name that it was given under."""

    @classmethod
    def read(cls, path: Path) -> "Source":
        """Reads the file; raises UserError if it cannot be read."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"cannot read the configuration {path}: {reason}") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 text: give a YAML file") from error
        return cls(path, text, lines_of(text))

    def with_moved(self, moved: Mapping[str, str]) -> "Source":
        """The same source, with keys that were given under older names."""
        return replace(self, moved=moved)

    def with_overridden(self, overridden: frozenset[str]) -> "Source":
        """The same source, with keys that the command line gives."""
        return replace(self, overridden=overridden)

    def with_verls(self, lines: Mapping[str, int], overridden: frozenset[str]) -> "Source":
        """The same source, with keys of a verl file located at the line that names the file."""
        return replace(self, lines=lines, overridden=overridden)

    def as_written(self, key: str) -> str:
        """The key as the user wrote it."""
        for new, old in self.moved.items():
            if key == new or key.startswith((f"{new}.", f"{new}[")):
                return old + key.removeprefix(new)
        return key

    def origin(self, key: str) -> str | None:
        """`file:line` or the command line; None for a key that was not given."""
        written = self.as_written(key)
        if any(written == over or written.startswith(f"{over}.") for over in self.overridden):
            return COMMAND_LINE
        line = self.lines.get(written)
        return f"{self.path}:{line}" if line else None

    def line(self, key: str) -> int:
        """Line in the file; 0 for a key of the command line."""
        return 0 if self.origin(key) == COMMAND_LINE else self.lines.get(self.as_written(key), 0)

    def at(self, key: str) -> str:
        """`in file:line` or `on the command line`; in the file if the key is nowhere."""
        origin = self.origin(key)
        if any(over.startswith((f"{key}.", f"{key}[")) for over in self.overridden):
            origin = COMMAND_LINE  # an error of a section that is also in the file
        return f"on {origin}" if origin == COMMAND_LINE else f"in {origin or self.path}"
