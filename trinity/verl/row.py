"""Rows of the conversion table: the treatment of each veRL key."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from trinity.config.loading.verl_keys import PREFIX, RENAMED_KEYS, WITHOUT_EFFECT, key_treatment
from trinity.config.schema.base import IgnoredKey, RenamedKey
from trinity.verl.values import JsonValue

Convert = Callable[[JsonValue], JsonValue]
TRAINER_CONFIG = "trainer.trainer_config"

NOT_GIVEN = "not passed on to the back end, which keeps its own way"
_ANY = "any value"


class KeyConversion(StrEnum):
    """The treatment of a key."""

    MOVED = "moved"
    """Its value is written to one of our keys, possibly converted."""
    COMBINED = "combined"
    """It is read together with others by one of the rules."""
    PASSED = "passed"
    """It is passed unchanged below `trainer.trainer_config`, as no other key depends on it."""
    NOT_NEEDED = "needless"
    """It has its effect here without a key, for a reason that the note gives."""
    LEFT_OUT = "left out"
    """It has no counterpart and does not affect training."""
    MISSING = "missing"
    """It has no counterpart; the note says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """A veRL key; one that ends with `*` stands for all keys with that prefix."""

    verl: str
    conversion: KeyConversion
    ours: str = ""
    """Our key; several with commas."""
    note: str = ""
    neutral: tuple[JsonValue, ...] = ()
    """Values with which veRL behaves as we always do."""
    convert: Convert | None = None
    """None leaves the value unchanged."""
    inverse: Convert | None = None
    """The inverse of `convert`, if it has one."""

    @property
    def is_invertible(self) -> bool:
        """True if veRL's value can be computed from ours."""
        if self.conversion is KeyConversion.PASSED:
            return not self.verl.endswith("*")
        return self.conversion is KeyConversion.MOVED and (self.convert is None) == (
            self.inverse is None
        )


def renamed_row(
    verl: str,
    ours: str,
    note: str = "",
    *,
    convert: Convert | None = None,
    inverse: Convert | None = None,
) -> KeyRow:
    """Row of a key whose value goes to `ours`."""
    return KeyRow(
        verl=verl,
        conversion=KeyConversion.MOVED,
        ours=ours,
        note=note,
        convert=convert,
        inverse=inverse,
    )


def combined_row(verl: str, ours: str, note: str) -> KeyRow:
    """Row of a key that a rule reads."""
    return KeyRow(verl=verl, conversion=KeyConversion.COMBINED, ours=ours, note=note)


def not_needed_rows(note: str, *keys: str) -> tuple[KeyRow, ...]:
    """Rows of keys that are not needed here."""
    return tuple(KeyRow(verl=key, conversion=KeyConversion.NOT_NEEDED, note=note) for key in keys)


def left_out_rows(note: str, *keys: str) -> tuple[KeyRow, ...]:
    """Rows of keys without counterpart that do not affect training."""
    return tuple(KeyRow(verl=key, conversion=KeyConversion.LEFT_OUT, note=note) for key in keys)


def missing_rows(note: str, *keys: str, neutral: tuple[JsonValue, ...] = ()) -> tuple[KeyRow, ...]:
    """Rows of keys without counterpart, which matter with all values but the neutral ones."""
    return tuple(
        KeyRow(verl=key, conversion=KeyConversion.MISSING, note=note, neutral=neutral)
        for key in keys
    )


def trainer_config_rows(*keys: str) -> tuple[KeyRow, ...]:
    """Rows of passed keys; a key ending with `*` includes the known keys below it."""
    return tuple(row for key in keys for row in _rows(key))


def _rows(key: str) -> Iterator[KeyRow]:
    if key.endswith(".*"):
        yield from (_row(name) for name in _known_below(key.removesuffix("*")))
    yield _row(key)


def _known_below(beginning: str) -> list[str]:
    """Keys of the tables with this prefix, and the section itself if it has a name here."""
    prefix = f"{PREFIX}." if beginning.startswith(f"{PREFIX}.") else ""
    known = (f"{prefix}{name}" for name in sorted({*RENAMED_KEYS, *WITHOUT_EFFECT}))
    section = beginning.removesuffix(".")
    return [
        name for name in known if name.startswith(beginning) or (name == section and _moves(name))
    ]


def _moves(key: str) -> bool:
    return isinstance(key_treatment(key, _ANY), RenamedKey)


def _row(key: str) -> KeyRow:
    match key_treatment(key, _ANY):
        case RenamedKey(to=ours):
            return renamed_row(key, ours.removeprefix("/"))
        case IgnoredKey(reason=why):
            note = f"no effect: {why}"
            return KeyRow(
                verl=key, conversion=KeyConversion.PASSED, ours=f"{TRAINER_CONFIG}.{key}", note=note
            )
    return missing_rows(NOT_GIVEN, key)[0]
