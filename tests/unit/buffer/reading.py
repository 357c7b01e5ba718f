"""Users' classes that read all that was recorded of samples."""

from typing import Any

import torch

from trinity.rft.algorithm.advantage_fn import GroupAdvantage
from trinity.rft.buffer.operators import ExperienceOperator


def total(exps: list[Any]) -> float:
    assert all(exp.tokens.shape == (5,) and exp.prompt_length == 2 for exp in exps)
    assert all(exp.action_mask.tolist() == [True] * 3 for exp in exps)
    return sum(float(exp.logprobs.sum()) for exp in exps)


class OperatorReads(ExperienceOperator):
    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        return exps, {"sum": total(exps)}


class AdvantageReads(GroupAdvantage):
    def group_experiences(self, exps: list[Any]) -> dict[str, list[Any]]:
        return {"": exps}

    def calculate_group_advantage(
        self, group_id: str, exps: list[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        for exp in exps:
            exp.advantages = torch.ones(3) * exp.action_mask
        return exps, {"sum": total(exps)}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {}


class Endless(ExperienceOperator):
    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        while True:
            _ = exps[0].tokens


class Persistent(ExperienceOperator):
    """Goes on without what could not be read."""

    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        try:
            first = float(exps[0].logprobs[0])
        except KeyError:
            first = -99.0
        return exps, {"first": first}
