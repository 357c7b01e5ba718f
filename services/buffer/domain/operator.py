"""Which functions shape the groups of a stage: its operators in order, then its advantage."""

from collections.abc import Mapping
from dataclasses import dataclass

from trinity.algorithm.advantage.needs import NOTHING, Needs
from trinity.config.plan import StagePlan
from trinity.config.plan_parts import ResolvedAlgorithm
from trinity.operators.kinds import KINDS, KindName
from trinity.types import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A function by name, its arguments, and what it needs."""

    name: str
    arguments: Mapping[str, JsonValue]
    kind: KindName = "advantage"
    needs: Needs = NOTHING

    @property
    def is_built_in(self) -> bool:
        """Whether it comes with the system; else it is a user's."""
        return self.name in KINDS[self.kind].registry.builtins

    @property
    def title(self) -> str:
        """What people know it by."""
        return f"operator {self.name}" if self.kind == "operator" else f"advantage_fn {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Operators in order, each of which sees what those before it left, and the advantage."""

    operators: tuple[Operator, ...]
    advantage: Operator

    @classmethod
    def of(cls, plan: StagePlan) -> "Chain":
        """The functions of a plan."""
        operators = tuple(
            Operator(kind="operator", name=one.name, arguments=one.args) for one in plan.operators
        )
        return cls(operators=operators, advantage=_advantage_of(plan.algorithm))

    @property
    def steps(self) -> tuple[Operator, ...]:
        """All of them."""
        return (*self.operators, self.advantage)

    @property
    def needs(self) -> Needs:
        """What any of them needs."""
        needs = self.advantage.needs
        for operator in self.operators:
            needs = needs.also(operator.needs)
        return needs

    @property
    def takes_many_groups(self) -> bool:
        """Whether one call may compute many groups; a user's function sees one, or asks for all."""
        if self.needs.whole_step:
            return True
        return not self.needs.one_group and all(one.is_built_in for one in self.steps)


def _advantage_of(algorithm: ResolvedAlgorithm) -> Operator:
    """What the trainer computes itself is not computed here: groups pass with advantage 0."""
    if algorithm.advantage_in_trainer:
        return Operator(name="none", arguments={})
    return Operator(name=algorithm.advantage_fn, arguments=algorithm.advantage_fn_args)
