"""What a script's variables hold, and from which line each part of it came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trinity.verl.shell.tokens import Token

UNKNOWN = "UNKNOWN"
"""Stands for what only running the script could tell."""


@dataclass(frozen=True, slots=True)
class Field:
    """A text and the line on which it was written."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Note:
    """Something about a script that its reader had to decide."""

    line: int
    text: str


@dataclass(slots=True)
class Variables:
    """Of one script: scalars are arrays of one."""

    given: Mapping[str, str]
    """What the caller sets, like `NAME=value bash script.sh`; it goes before defaults only."""
    notes: list[Note] = field(default_factory=list)
    defaulted: set[str] = field(default_factory=set)
    """Names whose default was taken because nobody set them."""
    _held: dict[str, tuple[Field, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._held = {name: (Field(text, 0),) for name, text in self.given.items()}

    def get(self, name: str) -> tuple[Field, ...] | None:
        """Its fields; None if nothing sets it."""
        return self._held.get(name)

    def put(self, name: str, fields: tuple[Field, ...], *, appended: bool = False) -> None:
        """Set it; `+=` appends elements."""
        self._held[name] = (self._held.get(name, ()) if appended else ()) + fields

    def remove(self, name: str) -> None:
        """`unset`."""
        self._held.pop(name, None)

    def note_guess(self, words: Sequence[Token]) -> None:
        """Of a command that decides something and is not run."""
        shown = " ".join(word.text for word in words)
        self.note(words[0].line, f"`{shown}` is not run and counts as failed")

    def note(self, line: int, text: str) -> None:
        """Remember, once, what the user should know."""
        if (note := Note(line, text)) not in self.notes:
            self.notes.append(note)
