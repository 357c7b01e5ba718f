"""Calls a priority function on every candidate."""

import math
from collections.abc import Mapping, Sequence

from trinity.algorithm.priority.candidate import Candidate, PriorityFn
from trinity.errors import UserError
from trinity.types import JsonValue


def priorities_of(
    function: PriorityFn, arguments: Mapping[str, JsonValue], candidates: Sequence[Candidate]
) -> list[float | None]:
    """One for each candidate.

    Raises: UserError when one is no finite number, and whatever the function raises.
    """
    return [_checked(function(one, **arguments)) for one in candidates]


def _checked(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"it gave {value!r}, where a finite number or None is expected")
    return float(value)
