"""Advantages as Trinity-RFT has them: of groups of experiences, or of a trainer's batch.

@ADVANTAGE_FN.register_module("centred")
class Centred(GroupAdvantage):
    def group_experiences(self, exps): return group_by(exps, id_type="task")

    def calculate_group_advantage(self, group_id, exps):
        mean = sum(exp.reward for exp in exps) / len(exps)
        for exp in exps:
            exp.advantages = (exp.reward - mean) * exp.action_mask
        return exps, {"reward_mean": mean}
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
from trinity.rft.buffer.operators import ExperienceOperator
from trinity.rft.utils.metrics import aggregate_metrics

_OF_GROUPS: Mapping[str, str] = {
    "ASYMREGroupAdvantage": "asymre",
    "GRPOGroupedAdvantage": "grpo",
    "GiGPOAdvantageFn": "gigpo",
    "OPMDGroupAdvantage": "opmd",
    "RECGroupedAdvantage": "rec",
    "REINFORCEGroupAdvantage": "reinforce",
    "StepWiseGRPOAdvantageFn": "step_wise_grpo",
}
_OF_TOKENS: Mapping[str, str] = {
    "ASYMREAdvantageFn": "asymre_verl",
    "ClipBAdvantageFn": "clipb",
    "ClipVAdvantageFn": "clipv",
    "GRPOAdvantageFn": "grpo_verl",
    "JSDAdvantage": "jsd",
    "OPMDAdvantageFn": "opmd_verl",
    "OnPolicyDistillAdvantage": "on_policy_distill",
    "PPOAdvantageFn": "ppo_unmasked",
    "REINFORCEPLUSPLUSAdvantageFn": "reinforceplusplus_unmasked",
    "REMAXAdvantageFn": "remax",
    "RLOOAdvantageFn": "rloo",
}


class AdvantageFn(ABC):
    """Base of advantages that were written for Trinity-RFT."""

    @abstractmethod
    def __call__(self, exps: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the experiences, or the batch, with advantages, and metrics."""

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the defaults of the constructor's arguments."""
        return {}

    @classmethod
    def compute_in_trainer(cls) -> bool:
        """Returns True if it takes the trainer's batch, False if it takes experiences."""
        return True


class GroupAdvantage(AdvantageFn, ExperienceOperator):
    """Base of advantages within groups of experiences."""

    @abstractmethod
    def group_experiences(self, exps: list[Any]) -> dict[str, list[Any]]:
        """Returns the groups by name."""

    @abstractmethod
    def calculate_group_advantage(
        self, group_id: str, exps: list[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Returns a group with advantages, and metrics."""

    def __call__(self, exps: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Returns what `process` returns."""
        del kwargs
        return self.process(exps)

    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Returns the experiences of all groups, with the mean, max and min of each metric."""
        listed: list[Any] = []
        metrics: list[Mapping[str, Any]] = []
        for group_id, group in self.group_experiences(exps).items():
            changed, own = self.calculate_group_advantage(group_id, group)
            listed.extend(changed)
            metrics.append(own)
        return listed, aggregate_metrics(metrics, "group_advantages")

    @classmethod
    def compute_in_trainer(cls) -> bool:
        """Returns False: it takes experiences."""
        return False


class _AdvantageRegistry:
    """Registers a class where advantages of its kind are: the buffer's or the trainer's."""

    def register_module(
        self, module_name: str, module_cls: Any = None, *, force: bool = False
    ) -> Callable[[Any], Any] | Any:
        """Registers a class or function; without one, returns a decorator that does."""

        def decorate(part: Any) -> Any:
            of_tokens = isinstance(part, type) and part.compute_in_trainer()  # type: ignore[attr-defined]
            registry: Any = TOKEN_ADVANTAGES if of_tokens else ADVANTAGES
            registry.register(module_name, part, force=force)
            return part

        return decorate if module_cls is None else decorate(module_cls)

    def get(self, module_key: str) -> type[AdvantageFn]:
        """Returns the class with this name; of a built-in one, as Trinity-RFT has it.

        Raises: UserError when there is no such class.
        """
        for own, function in (*_OF_GROUPS.items(), *_OF_TOKENS.items()):
            if function == module_key:
                built_in: type[AdvantageFn] = __getattr__(own)
                return built_in
        registry: Any = TOKEN_ADVANTAGES if TOKEN_ADVANTAGES.is_own(module_key) else ADVANTAGES
        source: type[AdvantageFn] = registry.get(module_key).source
        return source


ADVANTAGE_FN = _AdvantageRegistry()


def __getattr__(name: str) -> Any:
    """Returns a class of Trinity-RFT's own, made on demand."""
    if name not in _OF_GROUPS and name not in _OF_TOKENS:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from trinity.rft.algorithm.advantage_fn.adapting import group_class, token_class

    if name in _OF_GROUPS:
        return group_class(name, _OF_GROUPS[name])
    return token_class(name, _OF_TOKENS[name])
