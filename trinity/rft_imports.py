"""Import paths of Trinity-RFT, for plugin files that were written for it.

    from trinity.common.workflows import WORKFLOWS, Workflow  # returns our classes

A name that exists here under another path is returned; any other raises an ImportError that says
what to use instead. Nothing is emulated: the result is our class, and docs/workflows.md lists the
differences.
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
"""Names that exist here under another path; Trinity-RFT's module does not matter."""

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
"""Advice for names that do not exist here."""


def get_logger(name: str | None = None, **_: object) -> object:
    """Returns a logger of the standard library, which the explorer's log includes."""
    import logging

    return logging.getLogger(name or "trinity.plugin")


class _Module(ModuleType):
    """A module that resolves names on access."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if (path := NAMES.get(name)) is not None:
            module, _, own = path.rpartition(".")
            return vars(importlib.import_module(module))[own]
        instead = INSTEAD.get(name, "docs/workflows.md lists what workflows and rewards may use")
        raise ImportError(f"{self.__name__}.{name} is of Trinity-RFT and not here: {instead}")


class _Finder(MetaPathFinder, Loader):
    """Finds the modules that only Trinity-RFT has; all other imports are unaffected."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        is_theirs = any(name == root or name.startswith(f"{root}.") for root in _ROOTS)
        return ModuleSpec(name, self, is_package=True) if is_theirs else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: names are resolved on access."""


_FINDER = _Finder()


def offer() -> None:
    """Makes such imports work from now on; called before the first file of a user is loaded."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)
