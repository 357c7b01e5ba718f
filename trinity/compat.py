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

_ROOTS = ("trinity.common", "trinity.utils", "trinity.manager", "trinity.buffer")
_PACKAGES = (
    "trinity.algorithm.advantage_fn",
    "trinity.algorithm.entropy_loss_fn",
    "trinity.algorithm.kl_fn",
    "trinity.algorithm.policy_loss_fn",
    "trinity.algorithm.sample_strategy",
    "trinity.buffer.operators",
    "trinity.buffer.selector",
    "trinity.buffer.storage",
    "trinity.common.rewards",
)
"""Packages here; each module of Trinity-RFT below one of them has the names of the package."""

RENAMED: Mapping[str, str] = {
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
    "get_logger": "trinity.compat.get_logger",
}
"""Names that exist here under another path; Trinity-RFT's module does not matter."""

REPLACEMENT_ADVICE: Mapping[str, str] = {
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
_WORKFLOWS = "trinity.workflows"
_WITH_ASYNC_ALIAS: Mapping[str, str] = {
    "simple_workflow": f"{_WORKFLOWS}.simple_workflow.SimpleWorkflow",
    "math_workflow": f"{_WORKFLOWS}.math_workflow.MathWorkflow",
    "math_boxed_workflow": f"{_WORKFLOWS}.math_boxed_workflow.MathBoxedWorkflow",
    "math_eval_workflow": f"{_WORKFLOWS}.math_eval_workflow.MathEvalWorkflow",
    "math_rm_workflow": f"{_WORKFLOWS}.math_rm_workflow.MathRMWorkflow",
}
"""These names with the prefix `async_` are the same classes: they all run on the event loop."""
WORKFLOW_PATHS: Mapping[str, str] = {
    **_WITH_ASYNC_ALIAS,
    **{f"async_{name}": path for name, path in _WITH_ASYNC_ALIAS.items()},
    "frozen_lake_workflow": f"{_WORKFLOWS}.frozen_lake_workflow.FrozenLakeWorkflow",
    "on_policy_distill_workflow": (
        f"{_WORKFLOWS}.on_policy_distill_workflow.OnPolicyDistillWorkflow"
    ),
    "on_policy_distill_math_workflow": (
        f"{_WORKFLOWS}.on_policy_distill_math_workflow.OnPolicyDistillMathWorkflow"
    ),
    "rubric_judge_workflow": f"{_WORKFLOWS}.rubric_judge_workflow.RubricJudgeWorkflow",
    "sudoku_workflow": f"{_WORKFLOWS}.sudoku_workflow.SudokuWorkflow",
    "tool_call_workflow": f"{_WORKFLOWS}.tool_call_workflow.ToolCallWorkflow",
}
DISTILLATION_WORKFLOWS = frozenset(
    {"on_policy_distill_workflow", "on_policy_distill_math_workflow"}
)
"""They ask the first auxiliary model for the log-probabilities of the policy's tokens."""
REWARD_PATHS: Mapping[str, str] = {
    "accuracy_reward": "trinity.rewards.accuracy_reward.AccuracyReward",
    "countdown_reward": "trinity.rewards.countdown_reward.CountdownReward",
    "exact_match_reward": "trinity.rewards.exact_match_reward.ExactMatchReward",
    "format_reward": "trinity.rewards.format_reward.FormatReward",
    "math_boxed_reward": "trinity.rewards.math_boxed_reward.MathBoxedReward",
    "math_dapo_reward": "trinity.rewards.math_dapo_reward.MathDapoReward",
    "math_reward": "trinity.rewards.math_reward.MathReward",
}
_ALFWORLD = "it plays in ALFWorld, an environment that no service installs"
_IMAGES = (
    "it asks about images or videos, and prompts are text alone: leave them out, or "
    "run the taskset elsewhere"
)


def get_logger(name: str | None = None, **_: object) -> object:
    """Returns a logger of the standard library, which the explorer's log includes."""
    import logging

    return logging.getLogger(name or "trinity.plugin")


class _Module(ModuleType):
    """A module that resolves names on access."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if (package := _package_of(self.__name__)) is not None:
            return _from_package(package, name, self.__name__)
        if (path := RENAMED.get(name)) is not None:
            module, _, own = path.rpartition(".")
            return vars(importlib.import_module(module))[own]
        instead = REPLACEMENT_ADVICE.get(
            name, "docs/workflows.md lists what workflows and rewards may use"
        )
        raise ImportError(f"{self.__name__}.{name} is of Trinity-RFT and not here: {instead}")


def _package_of(module: str) -> str | None:
    """Returns the package whose names such a module has; None for other modules."""
    return next((package for package in _PACKAGES if module.startswith(f"{package}.")), None)


def _from_package(package: str, name: str, module: str) -> object:
    try:
        return getattr(importlib.import_module(package), name)
    except AttributeError:
        raise ImportError(
            f"{module}.{name} is of Trinity-RFT and not here: plugins derive from {package}"
        ) from None


class _Finder(MetaPathFinder, Loader):
    """Finds the modules that only Trinity-RFT has; all other imports are unaffected."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        is_theirs = _package_of(name) is not None or any(
            name == root or name.startswith(f"{root}.") for root in _ROOTS
        )
        return ModuleSpec(name, self, is_package=True) if is_theirs else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: names are resolved on access."""


_FINDER = _Finder()


def install_import_hook() -> None:
    """Makes such imports work from now on; called before the first file of a user is loaded."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)


def _plugin_advice(base: str) -> str:
    return f"write it as a plugin, a subclass of {_WORKFLOWS}.{base} (docs/workflows.md)"


_TRANSCRIPT = _plugin_advice("multi_turn.MultiTurnWorkflow")
_STEPS = _plugin_advice("step_wise.StepWiseRewardWorkflow")
_AGENT = (
    _plugin_advice("Workflow")
    + ", in which the agent has the client of `self.model.get_openai_async_client()`"
)
_JUDGED = _plugin_advice("Workflow") + ", which asks `self.auxiliary_models`"
_AGENTSCOPE = f"it runs agents of the package agentscope, which no service installs: {_AGENT}"

UNSUPPORTED_WORKFLOWS: Mapping[str, str] = {
    "agentscope_react_math_workflow": _AGENTSCOPE,
    "agentscope_react_workflow": _AGENTSCOPE,
    "agentscope_v1_react_search_workflow": _AGENTSCOPE,
    "agentscope_workflow_adapter": _AGENTSCOPE,
    "agentscope_workflow_adapter_v1": _AGENTSCOPE,
    "agentscopev0_react_math_workflow": _AGENTSCOPE,
    "alfworld_workflow": f"{_ALFWORLD}: {_TRANSCRIPT}",
    "as_react_workflow": _AGENTSCOPE,
    "async_math_ruler_workflow": f"it has a judge compare the answers of a group: {_JUDGED}",
    "async_simple_mm_workflow": _IMAGES,
    "email_search_workflow": f"it searches a database of e-mails with agentscope: {_AGENT}",
    "intercode_sql_workflow": f"it runs SQL in containers of InterCode: {_TRANSCRIPT}",
    "math_ruler_workflow": f"it has a judge compare the answers of a group: {_JUDGED}",
    "math_trainable_ruler_workflow": f"it has the policy compare its own answers: {_JUDGED}",
    "RAFT_alfworld_workflow": f"{_ALFWORLD}: {_TRANSCRIPT}",
    "RAFT_reflect_alfworld_workflow": f"{_ALFWORLD}: {_TRANSCRIPT}",
    "rubric_judge_openai_workflow": f"it asks a judge behind an address outside: {_JUDGED}",
    "sciworld_workflow": f"it plays in ScienceWorld, which no service installs: {_TRANSCRIPT}",
    "simple_mm_workflow": _IMAGES,
    "step_wise_alfworld_workflow": f"{_ALFWORLD}: {_STEPS}",
    "webshop_workflow": f"it plays in WebShop, which no service installs: {_TRANSCRIPT}",
}
"""The reason why each is missing, and what to do instead."""
