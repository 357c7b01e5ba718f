"""The treatment of every veRL key, collected from all tables."""

from difflib import get_close_matches
from functools import cache

from trinity.config.loading.keys import documented_key, parse_key
from trinity.verl.row import KeyRow
from trinity.verl.table import (
    actor,
    algorithm,
    back_ends,
    critic,
    data,
    easy_r1,
    rollout,
    supervised,
    trainer,
)

_CLOSE = 0.8
"""Likeness of a misspelt word to the right one."""
ROWS: tuple[KeyRow, ...] = (
    *algorithm.ROWS,
    *data.ROWS,
    *actor.ROWS,
    *back_ends.ROWS,
    *rollout.ROWS,
    *critic.ROWS,
    *trainer.ROWS,
    *easy_r1.ROWS,
)

SUPERVISED_ROWS: tuple[KeyRow, ...] = (
    *supervised.ROWS,
    *back_ends.SUPERVISED_ROWS,
    *trainer.ROWS,
)


def find_row(key: str, *, supervised: bool = False) -> KeyRow | None:
    """The row of a key: its own, else the longest pattern; None if there is no such key."""
    exact, patterns = _index(SUPERVISED_ROWS if supervised else ROWS)
    if key in exact:
        return exact[key]
    return next((row for row in patterns if _matches(key, row.verl)), None)


def near_key(key: str, *, supervised: bool = False) -> str:
    """Returns a known key of the same section with a similar last word; empty if not found."""
    exact, _ = _index(SUPERVISED_ROWS if supervised else ROWS)
    section, _, name = key.rpartition(".")
    names = [known.rpartition(".") for known in exact]
    beside = sorted(last for above, _, last in names if above == section)
    near = get_close_matches(name, beside, n=1, cutoff=_CLOSE)
    return f"{section}.{near[0]}".lstrip(".") if near else ""


def verl_names(key: str) -> list[str]:
    """veRL's names of one of our keys, or of the keys it is made from."""
    return _verl_names_by_key().get(key, [])


@cache
def _verl_names_by_key() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in ROWS:
        for ours in row.ours.split(", "):
            names = found.setdefault(documented_key(parse_key(ours)), [])
            names += [row.verl] if row.verl not in names else []
    return found


@cache
def _index(rows: tuple[KeyRow, ...]) -> tuple[dict[str, KeyRow], list[KeyRow]]:
    exact = {row.verl: row for row in reversed(rows) if "*" not in row.verl}
    patterns = [row for row in rows if "*" in row.verl]
    return exact, sorted(patterns, key=lambda row: -len(row.verl))


def _matches(key: str, pattern: str) -> bool:
    if pattern.startswith("*"):
        return pattern.strip("*") in key
    beginning = pattern.removesuffix("*")
    return key.startswith(beginning) or key == beginning.removesuffix(".")
