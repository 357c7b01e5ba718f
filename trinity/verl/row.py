"""One row of the conversion table: the treatment of a key of veRL's."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from trinity.verl.json_value import JsonValue

Convert = Callable[[JsonValue], JsonValue]
TRAINER_CONFIG = "trainer.trainer_config"


class Fate(StrEnum):
    """The treatment of a key."""

    MOVED = "moved"
    """Its value goes to a key of ours, perhaps converted."""
    COMBINED = "combined"
    """It is read together with others by one of the rules."""
    PASSED = "passed"
    """It stays unchanged, below `trainer.trainer_config`, if nothing depends on it."""
    NEEDLESS = "needless"
    """Nothing needs to be done about it, for a reason that the note gives."""
    MISSING = "missing"
    """It has no counterpart; the note says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A key of veRL's; one that ends with `*` stands for all keys with that prefix."""

    verl: str
    fate: Fate
    ours: str = ""
    """Our key; several with commas."""
    note: str = ""
    convert: Convert | None = None
    """None leaves the value unchanged."""
    back: Convert | None = None
    """The inverse of `convert`, if it has one."""

    @property
    def has_way_back(self) -> bool:
        """True if veRL's value can be computed from ours."""
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
    """Row of a key whose value goes to `ours`."""
    return Row(verl=verl, fate=Fate.MOVED, ours=ours, note=note, convert=convert, back=back)


def combined(verl: str, ours: str, note: str) -> Row:
    """Row of a key that a rule reads."""
    return Row(verl=verl, fate=Fate.COMBINED, ours=ours, note=note)


def needless(note: str, *keys: str) -> tuple[Row, ...]:
    """Rows of keys that need nothing."""
    return tuple(Row(verl=key, fate=Fate.NEEDLESS, note=note) for key in keys)


def missing(note: str, *keys: str) -> tuple[Row, ...]:
    """Rows of keys without counterpart."""
    return tuple(Row(verl=key, fate=Fate.MISSING, note=note) for key in keys)
