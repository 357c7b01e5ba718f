"""Values of a script's variables, with the line of each part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trinity.verl.shell.tokens import Token

UNKNOWN = "UNKNOWN"
"""Placeholder of a value that is known only by running the script."""


@dataclass(frozen=True, slots=True)
class ExpandedField:
    """A text and the line on which it was written."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class ScriptNote:
    """A remark on a decision made while reading a script."""

    line: int
    text: str


@dataclass(slots=True)
class Variables:
    """Variables of one script; scalars are arrays of one element."""

    given: Mapping[str, str]
    """Values that the caller sets, like `NAME=value bash script.sh`; they only replace defaults."""
    notes: list[ScriptNote] = field(default_factory=list)
    defaulted: set[str] = field(default_factory=set)
    """Names whose default was taken because they were not set."""
    optional: set[str] = field(default_factory=set)
    """Unset names that the script itself treats so, as in `${NAME:+-}`: they are empty."""
    _held: dict[str, tuple[ExpandedField, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._held = {name: (ExpandedField(text, 0),) for name, text in self.given.items()}

    def get(self, name: str) -> tuple[ExpandedField, ...] | None:
        """The fields of a variable; None if it is not set."""
        return self._held.get(name)

    def put(self, name: str, fields: tuple[ExpandedField, ...], *, appended: bool = False) -> None:
        """Sets a variable; `+=` appends elements."""
        self._held[name] = (self._held.get(name, ()) if appended else ()) + fields

    def remove(self, name: str) -> None:
        """Removes a variable, as `unset` does."""
        self._held.pop(name, None)

    def note_guess(self, words: Sequence[Token]) -> None:
        """Notes a command that decides a condition but is not run."""
        shown = " ".join(word.text for word in words)
        self.note(words[0].line, f"`{shown}` is not run and counts as failed")

    def note(self, line: int, text: str) -> None:
        """Adds a note for the user, unless it is there already."""
        if (note := ScriptNote(line, text)) not in self.notes:
            self.notes.append(note)
