"""The functions that process the groups of a stage: operators in order, then the advantage."""

from collections.abc import Mapping
from dataclasses import dataclass

from trinity.algorithm.advantage.needs import NOTHING, Needs
from trinity.config.plan import StagePlan
from trinity.config.plan_parts import ResolvedAlgorithm
from trinity.operators.kinds import KINDS, KindName
from trinity.types import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A function by name, with its arguments and the inputs it needs."""

    name: str
    arguments: Mapping[str, JsonValue]
    kind: KindName = "advantage"
    needs: Needs = NOTHING

    @property
    def is_built_in(self) -> bool:
        """True if it ships with the system; else it is a user's."""
        return self.name in KINDS[self.kind].registry.builtins

    @property
    def title(self) -> str:
        """The name shown to people."""
        return f"operator {self.name}" if self.kind == "operator" else f"advantage_fn {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Operators in order, each seeing the samples that earlier ones left, then the advantage."""

    operators: tuple[Operator, ...]
    advantage: Operator

    @classmethod
    def of(cls, plan: StagePlan) -> "Chain":
        """Returns the functions of a plan."""
        operators = tuple(
            Operator(kind="operator", name=operator.name, arguments=operator.args)
            for operator in plan.operators
        )
        return cls(operators=operators, advantage=_advantage_of(plan.algorithm))

    @property
    def steps(self) -> tuple[Operator, ...]:
        """The operators and the advantage function, in order."""
        return (*self.operators, self.advantage)

    @property
    def needs(self) -> Needs:
        """The union of the inputs that the functions need."""
        needs = self.advantage.needs
        for operator in self.operators:
            needs = needs.also(operator.needs)
        return needs

    @property
    def takes_many_groups(self) -> bool:
        """True if one call may compute many groups; a user's function gets one or asks for all."""
        if self.needs.whole_step:
            return True
        return not self.needs.one_group and all(step.is_built_in for step in self.steps)


def _advantage_of(algorithm: ResolvedAlgorithm) -> Operator:
    """Returns the advantage function; `none` (advantage 0) if the trainer computes advantages."""
    if algorithm.advantage_in_trainer:
        return Operator(name="none", arguments={})
    return Operator(name=algorithm.advantage_fn, arguments=algorithm.advantage_fn_args)
