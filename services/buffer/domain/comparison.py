"""Converts groups of samples to the arrays that functions take, and results back to rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from services.buffer.domain.answer import Answer
from services.buffer.domain.group import Detail, Group, LeftOut, NewRow, Outcome, Sample
from services.buffer.domain.lots import draw_lots
from services.buffer.domain.operated import Operated
from trinity.algorithm.advantage.order import places_within
from trinity.algorithm.advantage.samples import Advantages, FloatVector, IntVector, Samples
from trinity.operators.rollouts import Changes, Rollouts

UNKNOWN = Detail()
COPIED = "; a copy of another sample stands in for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Groups and the arrays made from them; group number g in the arrays is `groups[g]`.

    A group without compared samples has a number too, but no entries in the arrays.
    """

    groups: Sequence[Group]
    samples: Rollouts
    """Samples that no operator has left out."""
    ids: Sequence[str]
    """The experience id of each entry."""
    operated: Operated = field(default_factory=Operated)
    """Accumulated effect of the operators so far."""

    @classmethod
    def of(cls, groups: Sequence[Group], details: Mapping[str, Detail], seed: int) -> "Comparison":
        """Builds the arrays of the compared samples; `details` are keyed by experience, if read."""
        rows = [
            (number, sample) for number, group in enumerate(groups) for sample in group.compared
        ]
        known = [details.get(sample.experience_id, UNKNOWN) for _, sample in rows]
        numbers_N = np.array([number for number, _ in rows], dtype=np.int64)
        runs_N = np.array([sample.run for _, sample in rows], dtype=np.int64)
        steps_N = _steps(numbers_N, runs_N)
        explore_steps_G = np.array([group.explore_step for group in groups], dtype=np.int64)
        positions_G = np.array([group.position for group in groups], dtype=np.int64)
        places = (explore_steps_G[numbers_N], positions_G[numbers_N], runs_N, steps_N)
        samples = Samples(
            rewards=np.array([sample.score for _, sample in rows], dtype=np.float64),
            groups=numbers_N,
            runs=runs_N,
            steps=steps_N,
            lots=draw_lots(seed, *places),
            mean_logprobs=np.array([detail.mean_logprob for detail in known], dtype=np.float64),
            step_rewards=np.array([detail.step_reward for detail in known], dtype=np.float64),
            states=_numbered(detail.state for detail in known),
        )
        rollouts = _rollouts(samples, [sample for _, sample in rows], known)
        return cls(
            groups=groups, samples=rollouts, ids=[sample.experience_id for _, sample in rows]
        )

    def changed(self, operator: str, changes: Changes) -> "Comparison":
        """Returns the comparison after an operator's changes.

        Non-finite numbers fail their group.

        Raises: ValueError for arrays of the wrong shape.
        """
        operated = self.operated.after(operator, self.samples, self.ids, changes)
        stays_N = ~np.isin(self.samples.groups, list(operated.failures))
        if changes.left_out is not None:
            stays_N &= ~changes.left_out
        rewards = self.samples.rewards if changes.rewards is None else changes.rewards
        numbers = {**self.samples.numbers, **changes.numbers}
        return replace(
            self,
            samples=replace(self.samples, rewards=rewards, numbers=numbers).chosen(stays_N),
            ids=[self.ids[i] for i in np.flatnonzero(stays_N)],
            operated=operated,
        )

    def outcomes(self, advantages: Advantages) -> list[Outcome]:
        """Returns the outcome of each group.

        Non-finite numbers fail their group.

        Raises: ValueError for arrays that do not belong to the samples.
        """
        answer = Answer.of(self.samples, advantages)
        outcomes = [Outcome.begun(group) for group in self.groups]
        for number, left_out in self.operated.left_out:
            outcomes[number].left_out.append(left_out)
        for number, figures in self.operated.metrics.items():
            outcomes[number].metrics |= figures
        for i, number in enumerate(self.samples.groups.tolist()):
            self._add(outcomes[number], answer, i)
        for number in set(self.samples.groups.tolist()):
            outcomes[number].metrics |= answer.metrics_of(number)
        for number, reason in answer.failures.items():
            outcomes[number] = Outcome(error=reason)
        for number, failed in self.operated.failures.items():
            outcomes[number] = failed
        return [outcome if outcome.error else outcome.counted() for outcome in outcomes]

    def _add(self, outcome: Outcome, answer: Answer, i: int) -> None:
        if not answer.is_left_out[i]:
            outcome.rows.append(self._row(i, 0, answer.values[i]))
            return
        source = answer.copies_of[i]
        reason = answer.reason + (COPIED if source >= 0 else "")
        outcome.left_out.append(LeftOut(experience_id=self.ids[i], reason=reason))
        if source >= 0:
            outcome.rows.append(self._row(source, answer.ordinals[i], answer.values[source]))

    def _row(self, i: int, ordinal: int, advantage: float) -> NewRow:
        own_id = self.ids[i]
        return NewRow(
            parent_id=own_id,
            ordinal=ordinal,
            advantage=advantage,
            reward=self.operated.rewards.get(own_id),
            is_masked=own_id in self.operated.masked,
        )


def _rollouts(samples: Samples, rows: Sequence[Sample], known: Sequence[Detail]) -> Rollouts:
    """Returns the same samples with the other known fields."""
    keys = next((detail.numbers.keys() for detail in known if detail.numbers), ())
    contents = [detail.content for detail in known if detail.content is not None]
    return Rollouts.of(
        samples,
        is_truncated=np.array([row.is_truncated for row in rows], dtype=np.bool_),
        has_reward=np.array([row.reward is not None for row in rows], dtype=np.bool_),
        response_lengths=np.array([row.response_length for row in rows], dtype=np.int64),
        numbers={key: _numbers(key, known) for key in keys},
        contents=contents if len(contents) == len(rows) else (),
    )


def _numbers(key: str, known: Iterable[Detail]) -> FloatVector:
    return np.array([detail.numbers.get(key, np.nan) for detail in known], dtype=np.float64)


def _steps(groups_N: IntVector, runs_N: IntVector) -> IntVector:
    """Returns the index of each sample within its run, [N]."""
    begins_N = np.ones(len(runs_N), dtype=np.bool_)
    begins_N[1:] = (groups_N[1:] != groups_N[:-1]) | (runs_N[1:] != runs_N[:-1])
    return places_within(np.cumsum(begins_N))


def _numbered(states: Iterable[str]) -> IntVector:
    """Returns equal numbers for equal texts and -1 for empty ones, [N]."""
    numbers: dict[str, int] = {"": -1}
    listed = [numbers.setdefault(state, len(numbers)) for state in states]
    return np.array(listed, dtype=np.int64)
