"""From the rows of groups to the arrays that an advantage function takes, and back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from services.buffer.domain.answer import Answer
from services.buffer.domain.group import Detail, Group, LeftOut, NewRow, Outcome
from services.buffer.domain.lots import draw_lots
from trinity.algorithm.advantage.order import places_within
from trinity.algorithm.advantage.samples import Advantages, IntVector, Samples

UNKNOWN = Detail()
COPIED = "; a copy of another sample stands in for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Groups beside the arrays made of them; number g in the arrays is `groups[g]`.

    A group none of whose samples is compared has a number too, and no entry in the arrays.
    """

    groups: Sequence[Group]
    samples: Samples
    ids: Sequence[str]
    """The experience of each entry."""

    @classmethod
    def of(cls, groups: Sequence[Group], details: Mapping[str, Detail], seed: int) -> "Comparison":
        """Lay out the samples that are compared; `details` are by experience, as far as read."""
        rows = [(number, one) for number, group in enumerate(groups) for one in group.compared]
        known = [details.get(one.experience_id, UNKNOWN) for _, one in rows]
        numbers_N = np.array([number for number, _ in rows], dtype=np.int64)
        runs_N = np.array([one.run for _, one in rows], dtype=np.int64)
        steps_N = _steps(numbers_N, runs_N)
        explore_steps_G = np.array([group.explore_step for group in groups], dtype=np.int64)
        positions_G = np.array([group.position for group in groups], dtype=np.int64)
        places = (explore_steps_G[numbers_N], positions_G[numbers_N], runs_N, steps_N)
        samples = Samples(
            rewards=np.array([one.score for _, one in rows], dtype=np.float64),
            groups=numbers_N,
            runs=runs_N,
            steps=steps_N,
            lots=draw_lots(seed, *places),
            mean_logprobs=np.array([one.mean_logprob for one in known], dtype=np.float64),
            step_rewards=np.array([one.step_reward for one in known], dtype=np.float64),
            states=_numbered(one.state for one in known),
        )
        return cls(groups=groups, samples=samples, ids=[one.experience_id for _, one in rows])

    def outcomes(self, advantages: Advantages) -> list[Outcome]:
        """What comes of each group.

        Raises: ValueError for arrays that are no answer; numbers that are none fail their group.
        """
        answer = Answer.of(self.samples, advantages)
        outcomes = [Outcome.begun(group) for group in self.groups]
        for i, number in enumerate(self.samples.groups.tolist()):
            self._add(outcomes[number], answer, i)
        for number in set(self.samples.groups.tolist()):
            outcomes[number].metrics |= answer.metrics_of(number)
        for number, reason in answer.failures.items():
            outcomes[number] = Outcome(error=reason)
        return [outcome.counted() for outcome in outcomes]

    def _add(self, outcome: Outcome, answer: Answer, i: int) -> None:
        if not answer.is_left_out[i]:
            row = NewRow(parent_id=self.ids[i], ordinal=0, advantage=answer.values[i])
            outcome.rows.append(row)
            return
        source = answer.copies_of[i]
        reason = answer.reason + (COPIED if source >= 0 else "")
        outcome.left_out.append(LeftOut(experience_id=self.ids[i], reason=reason))
        if source >= 0:
            row = NewRow(
                parent_id=self.ids[source],
                ordinal=answer.ordinals[i],
                advantage=answer.values[source],
            )
            outcome.rows.append(row)


def _steps(groups_N: IntVector, runs_N: IntVector) -> IntVector:
    """Place of each sample within its run, [N]."""
    begins_N = np.ones(len(runs_N), dtype=np.bool_)
    begins_N[1:] = (groups_N[1:] != groups_N[:-1]) | (runs_N[1:] != runs_N[:-1])
    return places_within(np.cumsum(begins_N))


def _numbered(states: Iterable[str]) -> IntVector:
    """Equal numbers for equal texts, -1 for none, [N]."""
    numbers: dict[str, int] = {"": -1}
    listed = [numbers.setdefault(state, len(numbers)) for state in states]
    return np.array(listed, dtype=np.int64)
