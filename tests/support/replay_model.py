"""What batches with replay are to be, worked out step by step from what was rolled out.

It knows nothing of the buffer's way to do it: no pool, no states, no database.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Place = tuple[int, int, int]
"""Explore step, position, run and so on; what comes first is smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the plan asks for, in a stage whose order is fixed."""

    num_steps: int
    size: int
    """Rollouts in a batch."""
    rows_per_explore_step: int
    cooldown: int
    decay: float = 2.0
    use_limit: int = 0
    """0 is none."""
    oldest: Sequence[int] = ()
    """Of each train step, from 1 on, the oldest version that it takes; none is no bound."""


def batches(rolled_out: Iterable[tuple[Place, int]], rules: Rules) -> list[list[Place]]:
    """The rows of each train step; `rolled_out` are places with the versions that made them."""
    versions = dict(rolled_out)
    uses: Counter[Place] = Counter()
    last: dict[Place, int] = {}
    found = []
    for step in range(1, rules.num_steps + 1):
        fresh = min(rules.size, rules.rows_per_explore_step)
        due = -(-step * fresh // rules.rows_per_explore_step)
        able = [
            place
            for place, version in versions.items()
            if place[0] <= due
            and (not uses[place] or last[place] + rules.cooldown <= step)
            and (not rules.use_limit or uses[place] < rules.use_limit)
            and (not rules.oldest or version >= rules.oldest[step - 1])
        ]
        able.sort(key=lambda one: (rules.decay * uses[one] - versions[one], one))
        taken = able[: rules.size]
        uses.update(taken)
        last |= dict.fromkeys(taken, step)
        found.append(taken)
    return found
