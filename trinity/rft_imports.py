"""Import paths of Trinity-RFT, for plugin files that were written for it.

    from trinity.common.workflows import WORKFLOWS, Workflow  # gives ours

A name that is here under another path is given; one that is not says so where it is imported, with
what to use instead. Nothing is imitated: what is given is our class, and docs/workflows.md says in
what it differs.
"""

import importlib
import sys
from collections.abc import Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_ROOTS = ("trinity.common", "trinity.utils")

NAMES: Mapping[str, str] = {
    "AsyncRewardPropagationWorkflow": (
        "trinity.workflows.reward_propagation.AsyncRewardPropagationWorkflow"
    ),
    "AsyncSimpleWorkflow": "trinity.workflows.simple_workflow.SimpleWorkflow",
    "AsyncStepWiseRewardWorkflow": "trinity.workflows.step_wise.AsyncStepWiseRewardWorkflow",
    "BaseSimpleWorkflow": "trinity.workflows.simple_workflow.SimpleWorkflow",
    "EID": "trinity.types.EID",
    "Experience": "trinity.types.Experience",
    "ModelWrapper": "trinity.workflows.model.ModelWrapper",
    "MultiTurnWorkflow": "trinity.workflows.multi_turn.MultiTurnWorkflow",
    "REWARD_FUNCTIONS": "trinity.plugins.REWARDS",
    "RewardFn": "trinity.rewards.reward.RewardFn",
    "RewardPropagationWorkflow": "trinity.workflows.reward_propagation.RewardPropagationWorkflow",
    "SimpleWorkflow": "trinity.workflows.simple_workflow.SimpleWorkflow",
    "StepWiseRewardWorkflow": "trinity.workflows.step_wise.StepWiseRewardWorkflow",
    "Task": "trinity.workflows.task.Task",
    "WORKFLOWS": "trinity.plugins.WORKFLOWS",
    "Workflow": "trinity.workflows.workflow.Workflow",
    "get_logger": "trinity.rft_imports.get_logger",
}
"""What there is under another path, whichever module of Trinity-RFT it is asked of."""

INSTEAD: Mapping[str, str] = {
    "AccuracyReward": "name `accuracy_reward`, or use trinity.rewards.accuracy_reward",
    "FormatReward": "name `format_reward`, or use trinity.rewards.format_reward",
    "MathRewardFn": "name `math_reward`, or use trinity.rewards.math_reward",
    "MathWorkflow": "use trinity.workflows.math_workflow",
    "CustomField": "put arrays into `Experience.arrays`, which reach the trainer as they are",
    "Status": "raise an exception: its text is the reason why the run failed",
    "InferenceModel": "workflows see trinity.workflows.model.ModelWrapper",
    "AgentScopeModelWrapper": "an agent takes the client of `model.get_openai_async_client()`",
}
"""What to do about names that there are not."""


def get_logger(name: str | None = None, **_: object) -> object:
    """A logger of the standard library, which the explorer's log takes in."""
    import logging

    return logging.getLogger(name or "trinity.plugin")


class _Module(ModuleType):
    """Gives a name when it is asked for."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if (path := NAMES.get(name)) is not None:
            module, _, own = path.rpartition(".")
            return vars(importlib.import_module(module))[own]
        instead = INSTEAD.get(name, "docs/workflows.md lists what workflows and rewards may use")
        raise ImportError(f"{self.__name__}.{name} is of Trinity-RFT and not here: {instead}")


class _Finder(MetaPathFinder, Loader):
    """Finds the modules that only Trinity-RFT has; every other import goes on as before."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        is_theirs = any(name == root or name.startswith(f"{root}.") for root in _ROOTS)
        return ModuleSpec(name, self, is_package=True) if is_theirs else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Names come when they are asked for."""


_FINDER = _Finder()


def offer() -> None:
    """From now on such imports work; done before the first file of a user is loaded."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)
