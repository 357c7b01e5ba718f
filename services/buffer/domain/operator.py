"""Which advantage function shapes the groups of a stage."""

from collections.abc import Mapping
from dataclasses import dataclass

from trinity.algorithm.advantage import BUILT_IN
from trinity.algorithm.advantage.needs import NOTHING, Needs
from trinity.config.plan import ResolvedAlgorithm
from trinity.types import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A function by name, its arguments, and what it needs."""

    name: str
    arguments: Mapping[str, JsonValue]
    needs: Needs = NOTHING

    @classmethod
    def of(cls, algorithm: ResolvedAlgorithm) -> "Operator":
        """What the trainer computes itself is not computed here: groups pass with advantage 0."""
        if algorithm.advantage_in_trainer:
            return cls(name="none", arguments={})
        return cls(name=algorithm.advantage_fn, arguments=algorithm.advantage_fn_args)

    @property
    def takes_many_groups(self) -> bool:
        """Whether one call may compute many groups; a user's function sees one, or asks for all."""
        return self.needs.whole_step or self.name in BUILT_IN
