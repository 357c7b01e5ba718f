"""Validated effects of the operators of a stage, which may be written by users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from services.buffer.domain.group import LeftOut, Outcome
from services.buffer.domain.samples import storable
from trinity.operators.rollouts import Changes, Rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Operated:
    """Accumulated effects of operators, keyed by group number or by experience id."""

    left_out: tuple[tuple[int, LeftOut], ...] = ()
    masked: frozenset[str] = frozenset()
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The rewards that were changed."""
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    failures: Mapping[int, Outcome] = field(default_factory=dict)
    """Groups for which an operator gave non-finite rewards."""

    def after(
        self, operator: str, rollouts: Rollouts, ids: Sequence[str], changes: Changes
    ) -> "Operated":
        """Returns the effects with those of one more operator added.

        Raises: ValueError when the arrays do not belong to these samples.
        """
        size = len(ids)
        for name in ("left_out", "masked", "rewards"):
            _check(name, getattr(changes, name), size)
        for name, values in changes.numbers.items():
            _check(f"numbers {name}", values, size)
        for name, figures in changes.metrics.items():
            if figures.shape != (rollouts.num_groups,):
                raise ValueError(
                    f"its metric {name} must have {rollouts.num_groups} entries, one a group"
                )
        return Operated(
            left_out=(*self.left_out, *_left_out(operator, rollouts, ids, changes)),
            masked=self.masked | _chosen(ids, changes.masked),
            rewards={**self.rewards, **_new_rewards(rollouts, ids, changes)},
            metrics=self._with_metrics(operator, rollouts, changes),
            failures={**self.failures, **_failures(operator, rollouts, changes)},
        )

    def _with_metrics(
        self, operator: str, rollouts: Rollouts, changes: Changes
    ) -> Mapping[int, Mapping[str, float]]:
        figures = dict(changes.metrics)
        if changes.left_out is not None:
            num_left_out = rollouts.group_sums(changes.left_out.astype(np.float64))
            figures[f"{operator}/filtered_count"] = num_left_out
        merged = dict(self.metrics)
        for number in set(rollouts.groups.tolist()):
            own = {storable(name): float(values[number]) for name, values in figures.items()}
            merged[number] = {**merged.get(number, {}), **own}
        return merged


def _check(name: str, values: npt.NDArray[np.generic] | None, size: int) -> None:
    if values is not None and values.shape != (size,):
        raise ValueError(f"its {name} has the shape {values.shape} for {size} samples")


def _chosen(ids: Sequence[str], which_N: npt.NDArray[np.bool_] | None) -> frozenset[str]:
    return frozenset() if which_N is None else frozenset(ids[i] for i in np.flatnonzero(which_N))


def _left_out(
    operator: str, rollouts: Rollouts, ids: Sequence[str], changes: Changes
) -> list[tuple[int, LeftOut]]:
    if changes.left_out is None:
        return []
    reason = changes.reason or f"operator {operator} leaves it out"
    numbers = rollouts.groups.tolist()
    return [
        (numbers[i], LeftOut(experience_id=ids[i], reason=reason))
        for i in np.flatnonzero(changes.left_out)
    ]


def _new_rewards(rollouts: Rollouts, ids: Sequence[str], changes: Changes) -> dict[str, float]:
    if changes.rewards is None:
        return {}
    is_new_N = changes.rewards != rollouts.rewards
    return {ids[i]: float(changes.rewards[i]) for i in np.flatnonzero(is_new_N)}


def _failures(operator: str, rollouts: Rollouts, changes: Changes) -> dict[int, Outcome]:
    if changes.rewards is None:
        return {}
    is_wrong_N = ~np.isfinite(changes.rewards)
    if changes.left_out is not None:
        is_wrong_N &= ~changes.left_out
    error = "it gave rewards that are not finite numbers"
    failed = Outcome(error=error, function=f"operator {operator}")
    return dict.fromkeys(rollouts.groups[is_wrong_N].tolist(), failed)
