"""What becomes of every key of veRL's: the one place that says it."""

from functools import cache

from trinity.verl.row import Row
from trinity.verl.table import actor, algorithm, critic, data, rollout, trainer

ROWS: tuple[Row, ...] = (
    *algorithm.ROWS,
    *data.ROWS,
    *actor.ROWS,
    *rollout.ROWS,
    *critic.ROWS,
    *trainer.ROWS,
)


def row_of(key: str) -> Row | None:
    """The row of a key: its own, else the longest pattern; None if there is no such key."""
    exact, patterns = _index()
    if key in exact:
        return exact[key]
    return next((row for row in patterns if _matches(key, row.verl)), None)


@cache
def _index() -> tuple[dict[str, Row], list[Row]]:
    exact = {row.verl: row for row in ROWS if "*" not in row.verl}
    patterns = [row for row in ROWS if "*" in row.verl]
    return exact, sorted(patterns, key=lambda row: -len(row.verl))


def _matches(key: str, pattern: str) -> bool:
    if pattern.startswith("*"):
        return pattern.strip("*") in key
    beginning = pattern.removesuffix("*")
    return key.startswith(beginning) or key == beginning.removesuffix(".")
