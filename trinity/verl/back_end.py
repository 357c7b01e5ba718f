"""Rows of keys of veRL's back end, by their treatment below `trainer_config`."""

from collections.abc import Iterator

from trinity.config.loading.verl_keys import PREFIX, USED, WITHOUT_EFFECT, fate_of
from trinity.config.schema.base import NoEffect, Renamed
from trinity.verl.row import TRAINER_CONFIG, Fate, Row, missing, moved

NOT_GIVEN = "not passed on to the back end, which keeps its own way"
_ANY = "any value"


def back_end(*keys: str) -> tuple[Row, ...]:
    """The rows of keys; a key ending with `*` includes keys below it with rows of their own."""
    return tuple(row for key in keys for row in _rows(key))


def _rows(key: str) -> Iterator[Row]:
    if key.endswith(".*"):
        yield from (_row(name) for name in _known_below(key.removesuffix("*")))
    yield _row(key)


def _known_below(beginning: str) -> list[str]:
    """Keys of the tables with this prefix, and the section itself if it has a name here."""
    prefix = f"{PREFIX}." if beginning.startswith(f"{PREFIX}.") else ""
    known = (f"{prefix}{name}" for name in sorted({*USED, *WITHOUT_EFFECT}))
    section = beginning.removesuffix(".")
    return [
        name for name in known if name.startswith(beginning) or (name == section and _moves(name))
    ]


def _moves(key: str) -> bool:
    return isinstance(fate_of(key, _ANY), Renamed)


def _row(key: str) -> Row:
    match fate_of(key, _ANY):
        case Renamed(to=ours):
            return moved(key, ours.removeprefix("/"))
        case NoEffect(reason=why):
            note = f"no effect: {why}"
            return Row(verl=key, fate=Fate.PASSED, ours=f"{TRAINER_CONFIG}.{key}", note=note)
    return missing(NOT_GIVEN, key)[0]
