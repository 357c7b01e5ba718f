"""The functions that process the groups of a stage: operators in order, then the advantage."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from services.buffer.domain.group import (
    DerivedRow,
    FilteredSample,
    GroupOutcome,
    SampleDetail,
    SampleGroup,
    ScoredSample,
)
from services.buffer.domain.task_draws import hash_uniform
from services.buffer.domain.tasks import sanitize_text
from trinity.algorithm.advantage.groups import index_within, ranks_within
from trinity.algorithm.advantage.needs import NOTHING, Needs
from trinity.algorithm.advantage.samples import Advantages, FloatVector, IntVector, Samples
from trinity.config.plan.parts import ResolvedAlgorithm
from trinity.config.plan.stage_plan import StagePlan
from trinity.operators.kinds import USER_FUNCTION_KINDS, UserFunctionKindName
from trinity.operators.rollouts import Changes, Rollouts
from trinity.types import LARGEST_REWARD, JsonValue

UNKNOWN = SampleDetail()
COPIED = "; a copy of another sample stands in for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFunction:
    """A function by name, with its arguments and the inputs it needs."""

    name: str
    arguments: Mapping[str, JsonValue]
    kind: UserFunctionKindName = "advantage"
    needs: Needs = NOTHING

    @property
    def is_built_in(self) -> bool:
        """True if it ships with the system; else it is a user's."""
        return self.name in USER_FUNCTION_KINDS[self.kind].registry.builtins

    @property
    def title(self) -> str:
        """The name shown to people."""
        return f"operator {self.name}" if self.kind == "operator" else f"advantage_fn {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionChain:
    """Operators in order, each seeing the samples that earlier ones left, then the advantage."""

    operators: tuple[PipelineFunction, ...]
    advantage: PipelineFunction

    @classmethod
    def from_plan(cls, plan: StagePlan) -> "FunctionChain":
        """Returns the functions of a plan."""
        operators = tuple(
            PipelineFunction(kind="operator", name=operator.name, arguments=operator.args)
            for operator in plan.operators
        )
        return cls(operators=operators, advantage=_advantage_of(plan.algorithm))

    @property
    def functions(self) -> tuple[PipelineFunction, ...]:
        """The operators and the advantage function, in order."""
        return (*self.operators, self.advantage)

    @property
    def needs(self) -> Needs:
        """The union of the inputs that the functions need."""
        needs = self.advantage.needs
        for operator in self.operators:
            needs = needs.merge(operator.needs)
        return needs

    @property
    def takes_many_groups(self) -> bool:
        """True if one call may compute many groups; a user's function gets one or asks for all."""
        if self.needs.whole_step:
            return True
        return not self.needs.one_group and all(step.is_built_in for step in self.functions)


def _advantage_of(algorithm: ResolvedAlgorithm) -> PipelineFunction:
    """Returns the advantage function; `none` (advantage 0) if the trainer computes advantages."""
    if algorithm.advantage_in_trainer:
        return PipelineFunction(name="none", arguments={})
    return PipelineFunction(name=algorithm.advantage_fn, arguments=algorithm.advantage_fn_args)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorEffects:
    """Accumulated effects of operators, keyed by group number or by experience id."""

    left_out: tuple[tuple[int, FilteredSample], ...] = ()
    masked: frozenset[str] = frozenset()
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The rewards that were changed."""
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    failures: Mapping[int, GroupOutcome] = field(default_factory=dict)
    """Groups for which an operator gave non-finite rewards."""

    def merged_with(
        self, operator: str, rollouts: Rollouts, ids: Sequence[str], changes: Changes
    ) -> "OperatorEffects":
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
        return OperatorEffects(
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
            own = {sanitize_text(name): float(values[number]) for name, values in figures.items()}
            merged[number] = {**merged.get(number, {}), **own}
        return merged


def _check(name: str, values: npt.NDArray[np.generic] | None, size: int) -> None:
    if values is not None and values.shape != (size,):
        raise ValueError(f"its {name} has the shape {values.shape} for {size} samples")


def _chosen(ids: Sequence[str], which_N: npt.NDArray[np.bool_] | None) -> frozenset[str]:
    return frozenset() if which_N is None else frozenset(ids[i] for i in np.flatnonzero(which_N))


def _left_out(
    operator: str, rollouts: Rollouts, ids: Sequence[str], changes: Changes
) -> list[tuple[int, FilteredSample]]:
    if changes.left_out is None:
        return []
    reason = changes.reason or f"operator {operator} leaves it out"
    numbers = rollouts.groups.tolist()
    return [
        (numbers[i], FilteredSample(experience_id=ids[i], reason=reason))
        for i in np.flatnonzero(changes.left_out)
    ]


def _new_rewards(rollouts: Rollouts, ids: Sequence[str], changes: Changes) -> dict[str, float]:
    if changes.rewards is None:
        return {}
    is_new_N = changes.rewards != rollouts.rewards
    return {ids[i]: float(changes.rewards[i]) for i in np.flatnonzero(is_new_N)}


def _failures(operator: str, rollouts: Rollouts, changes: Changes) -> dict[int, GroupOutcome]:
    if changes.rewards is None:
        return {}
    is_wrong_N = ~_can_be_trained(changes.rewards)
    if changes.left_out is not None:
        is_wrong_N &= ~changes.left_out
    error = f"it gave rewards that are not finite numbers, of {LARGEST_REWARD:g} at most"
    failed = GroupOutcome(error=error, function=f"operator {operator}")
    return dict.fromkeys(rollouts.groups[is_wrong_N].tolist(), failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageResult:
    """Result lists with one entry per sample, and the groups that the function failed on."""

    values: Sequence[float]
    is_left_out: Sequence[bool]
    reason: str
    copies_of: Sequence[int]
    """Index of the sample that each entry copies; -1 if it is no copy."""
    ordinals: Sequence[int]
    """Number of the copy among copies of the same sample, from 1."""
    metrics: Mapping[str, Sequence[float]]
    failures: Mapping[int, str]
    """Reasons by group number."""

    @classmethod
    def from_advantages(cls, samples: Samples, advantages: Advantages) -> "AdvantageResult":
        """Checks and converts the arrays.

        Raises: ValueError when the arrays do not belong to these samples.
        """
        size = len(samples.rewards)
        if advantages.values.shape != (size,):
            shape = advantages.values.shape
            raise ValueError(f"it gave an array of shape {shape} for {size} rewards")
        left_out_N = advantages.left_out
        if left_out_N is None:
            left_out_N = np.zeros(size, dtype=np.bool_)
        copies_N = advantages.copies_of
        if copies_N is None:
            copies_N = np.full(size, -1, dtype=np.int64)
        _check_copies(left_out_N, copies_N, size)
        return cls(
            values=advantages.values.tolist(),
            is_left_out=left_out_N.tolist(),
            reason=advantages.reason or "the advantage function leaves it out",
            copies_of=copies_N.tolist(),
            ordinals=_ordinals(copies_N).tolist(),
            metrics={name: _listed(values, samples) for name, values in advantages.metrics.items()},
            failures=_not_finite(samples, advantages),
        )

    def metrics_of(self, number: int) -> dict[str, float]:
        """Returns the metrics of one group."""
        return {name: values[number] for name, values in self.metrics.items()}


def _check_copies(left_out_N: np.ndarray, copies_N: IntVector, size: int) -> None:
    if left_out_N.shape != (size,) or copies_N.shape != (size,):
        raise ValueError(f"its left_out and copies_of must have {size} entries, one a reward")
    is_copied_N = copies_N >= 0
    if (copies_N >= size).any() or (is_copied_N & ~left_out_N).any():
        raise ValueError(
            "its copies_of names samples that are not there, or is set in places not left out"
        )
    if left_out_N[copies_N[is_copied_N]].any():
        raise ValueError("its copies_of names samples that are left out themselves")


def _ordinals(copies_N: IntVector) -> IntVector:
    """Returns 1 for the first copy of a sample, 2 for the second, in order, [N]."""
    return ranks_within(copies_N, np.arange(len(copies_N), dtype=np.float64)) + 1


def _listed(figures: np.ndarray, samples: Samples) -> list[float]:
    if figures.shape != (samples.num_groups,):
        raise ValueError(f"its metrics must have {samples.num_groups} entries, one a group")
    listed: list[float] = figures.tolist()
    return listed


def _not_finite(samples: Samples, advantages: Advantages) -> dict[int, str]:
    groups = samples.groups[~_can_be_trained(advantages.values)]
    error = f"it gave values that are not finite numbers, of {LARGEST_REWARD:g} at most"
    return dict.fromkeys(set(groups.tolist()), error)


def _can_be_trained(values_N: FloatVector) -> npt.NDArray[np.bool_]:
    """Returns true for finite numbers with which training can compute, [N]."""
    is_known_N: npt.NDArray[np.bool_] = np.abs(values_N) <= LARGEST_REWARD
    return is_known_N


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupArrays:
    """Groups and the arrays made from them; group number g in the arrays is `groups[g]`.

    A group without compared samples has a number too, but no entries in the arrays.
    """

    groups: Sequence[SampleGroup]
    samples: Rollouts
    """Samples that no operator has left out."""
    ids: Sequence[str]
    """The experience id of each entry."""
    operator_effects: OperatorEffects = field(default_factory=OperatorEffects)
    """Accumulated effect of the operators so far."""

    @classmethod
    def from_groups(
        cls, groups: Sequence[SampleGroup], details: Mapping[str, SampleDetail], seed: int
    ) -> "GroupArrays":
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
            lots=hash_uniform(seed, *places),
            mean_logprobs=np.array([detail.mean_logprob for detail in known], dtype=np.float64),
            step_rewards=np.array([detail.step_reward for detail in known], dtype=np.float64),
            states=_numbered(detail.state for detail in known),
        )
        rollouts = _rollouts(samples, [sample for _, sample in rows], known)
        return cls(
            groups=groups, samples=rollouts, ids=[sample.experience_id for _, sample in rows]
        )

    def with_changes(self, operator: str, changes: Changes) -> "GroupArrays":
        """Returns the comparison after an operator's changes.

        Non-finite numbers fail their group.

        Raises: ValueError for arrays of the wrong shape.
        """
        operated = self.operator_effects.merged_with(operator, self.samples, self.ids, changes)
        stays_N = ~np.isin(self.samples.groups, list(operated.failures))
        if changes.left_out is not None:
            stays_N &= ~changes.left_out
        rewards = self.samples.rewards if changes.rewards is None else changes.rewards
        numbers = {**self.samples.numbers, **changes.numbers}
        return replace(
            self,
            samples=replace(self.samples, rewards=rewards, numbers=numbers).chosen(stays_N),
            ids=[self.ids[i] for i in np.flatnonzero(stays_N)],
            operator_effects=operated,
        )

    def outcomes(self, advantages: Advantages) -> list[GroupOutcome]:
        """Returns the outcome of each group.

        Non-finite numbers fail their group.

        Raises: ValueError for arrays that do not belong to the samples.
        """
        answer = AdvantageResult.from_advantages(self.samples, advantages)
        outcomes = [GroupOutcome.from_group(group) for group in self.groups]
        for number, left_out in self.operator_effects.left_out:
            outcomes[number].left_out.append(left_out)
        for number, figures in self.operator_effects.metrics.items():
            outcomes[number].metrics |= figures
        for i, number in enumerate(self.samples.groups.tolist()):
            self._add(outcomes[number], answer, i)
        for number in set(self.samples.groups.tolist()):
            outcomes[number].metrics |= answer.metrics_of(number)
        for number, reason in answer.failures.items():
            outcomes[number] = GroupOutcome(error=reason)
        for number, failed in self.operator_effects.failures.items():
            outcomes[number] = failed
        return [outcome if outcome.error else outcome.with_counts() for outcome in outcomes]

    def _add(self, outcome: GroupOutcome, answer: AdvantageResult, i: int) -> None:
        if not answer.is_left_out[i]:
            outcome.rows.append(self._row(i, 0, answer.values[i]))
            return
        source = answer.copies_of[i]
        reason = answer.reason + (COPIED if source >= 0 else "")
        outcome.left_out.append(FilteredSample(experience_id=self.ids[i], reason=reason))
        if source >= 0:
            outcome.rows.append(self._row(source, answer.ordinals[i], answer.values[source]))

    def _row(self, i: int, ordinal: int, advantage: float) -> DerivedRow:
        own_id = self.ids[i]
        return DerivedRow(
            parent_id=own_id,
            ordinal=ordinal,
            advantage=advantage,
            reward=self.operator_effects.rewards.get(own_id),
            is_masked=own_id in self.operator_effects.masked,
        )


def _rollouts(
    samples: Samples, rows: Sequence[ScoredSample], known: Sequence[SampleDetail]
) -> Rollouts:
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


def _numbers(key: str, known: Iterable[SampleDetail]) -> FloatVector:
    return np.array([detail.numbers.get(key, np.nan) for detail in known], dtype=np.float64)


def _steps(groups_N: IntVector, runs_N: IntVector) -> IntVector:
    """Returns the index of each sample within its run, [N]."""
    begins_N = np.ones(len(runs_N), dtype=np.bool_)
    begins_N[1:] = (groups_N[1:] != groups_N[:-1]) | (runs_N[1:] != runs_N[:-1])
    return index_within(np.cumsum(begins_N))


def _numbered(states: Iterable[str]) -> IntVector:
    """Returns equal numbers for equal texts and -1 for empty ones, [N]."""
    numbers: dict[str, int] = {"": -1}
    listed = [numbers.setdefault(state, len(numbers)) for state in states]
    return np.array(listed, dtype=np.int64)
