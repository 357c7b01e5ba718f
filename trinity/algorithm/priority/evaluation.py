"""Calls a priority function on every candidate."""

import math
from collections.abc import Mapping, Sequence

from trinity.algorithm.priority.candidate import Candidate, PriorityFn
from trinity.errors import UserError
from trinity.types import JsonValue


def compute_priorities(
    function: PriorityFn, arguments: Mapping[str, JsonValue], candidates: Sequence[Candidate]
) -> list[float | None]:
    """Returns a priority for each candidate.

    Raises: UserError when one is not a finite number, and any error of the function.
    """
    return [_checked(function(candidate, **arguments)) for candidate in candidates]


def _checked(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"it gave {value!r}, where a finite number or None is expected")
    return float(value)
