"""One line of the table that says what becomes of a key of veRL's."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from trinity.verl.json_value import JsonValue

Convert = Callable[[JsonValue], JsonValue]
TRAINER_CONFIG = "trainer.trainer_config"


class Fate(StrEnum):
    """What becomes of a key."""

    MOVED = "moved"
    """Its value goes to a key of ours, perhaps converted."""
    COMBINED = "combined"
    """It is read together with others by one of the rules."""
    PASSED = "passed"
    """It stays as it is, below `trainer.trainer_config`, where nothing depends on it."""
    NEEDLESS = "needless"
    """Nothing needs to be done about it, for a reason that the note gives."""
    MISSING = "missing"
    """It has no counterpart; the note says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A key of veRL's, or with a `*` at its end all that begin so."""

    verl: str
    fate: Fate
    ours: str = ""
    """Our key; several with commas."""
    note: str = ""
    convert: Convert | None = None
    """None leaves the value as it is."""
    back: Convert | None = None
    """The way back, where `convert` has one."""

    @property
    def has_way_back(self) -> bool:
        """Whether our value gives veRL's."""
        if self.fate is Fate.PASSED:
            return not self.verl.endswith("*")
        return self.fate is Fate.MOVED and (self.convert is None) == (self.back is None)


def moved(
    verl: str,
    ours: str,
    note: str = "",
    *,
    convert: Convert | None = None,
    back: Convert | None = None,
) -> Row:
    """Its value goes to `ours`."""
    return Row(verl=verl, fate=Fate.MOVED, ours=ours, note=note, convert=convert, back=back)


def combined(verl: str, ours: str, note: str) -> Row:
    """A rule reads it."""
    return Row(verl=verl, fate=Fate.COMBINED, ours=ours, note=note)


def needless(note: str, *keys: str) -> tuple[Row, ...]:
    """Nothing needs to be done about them."""
    return tuple(Row(verl=key, fate=Fate.NEEDLESS, note=note) for key in keys)


def missing(note: str, *keys: str) -> tuple[Row, ...]:
    """There is nothing like them here."""
    return tuple(Row(verl=key, fate=Fate.MISSING, note=note) for key in keys)
