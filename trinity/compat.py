"""Import paths of Trinity-RFT, for files that were written for it.

    from trinity.common.workflows import WORKFLOWS, Workflow

The modules that most files import are packages here (`trinity.common`); names in any other module
of Trinity-RFT are found by the tables below, and a name that is not here raises an ImportError that
says what to use instead. `trinity.plugins.my_file` is `my_file.py` of a plugin folder.
"""

import importlib
import logging
import sys
from collections.abc import Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_ROOTS = (
    "trinity.common",
    "trinity.utils",
    "trinity.explorer",
    "trinity.trainer",
    "trinity.manager",
    "trinity.buffer",
    "trinity.service",
)
_PLUGINS = "trinity.plugins."
_WORKFLOW_MODULES = "trinity.common.workflows."
_RFT = "trinity.workflows.trinity_rft"
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
    "AsyncMathBoxedWorkflow": f"{_RFT}.math.AsyncMathBoxedWorkflow",
    "AsyncMathEvalWorkflow": f"{_RFT}.math.AsyncMathEvalWorkflow",
    "AsyncMathRMWorkflow": f"{_RFT}.math.AsyncMathRMWorkflow",
    "AsyncMathRULERWorkflow": f"{_RFT}.ruler.AsyncMathRULERWorkflow",
    "AsyncMathWorkflow": f"{_RFT}.workflow.AsyncMathWorkflow",
    "AsyncRewardPropagationWorkflow": f"{_RFT}.step_wise.AsyncRewardPropagationWorkflow",
    "AsyncSimpleWorkflow": f"{_RFT}.workflow.AsyncSimpleWorkflow",
    "AsyncStepWiseRewardWorkflow": f"{_RFT}.step_wise.AsyncStepWiseRewardWorkflow",
    "BaseSimpleWorkflow": f"{_RFT}.workflow.BaseSimpleWorkflow",
    "CustomField": f"{_RFT}.experience.CustomField",
    "EID": f"{_RFT}.experience.EID",
    "Experience": f"{_RFT}.experience.Experience",
    "FormatConfig": f"{_RFT}.task.FormatConfig",
    "GenerationConfig": f"{_RFT}.task.GenerationConfig",
    "MathBoxedWorkflow": f"{_RFT}.math.MathBoxedWorkflow",
    "MathEvalWorkflow": f"{_RFT}.math.MathEvalWorkflow",
    "MathRMWorkflow": f"{_RFT}.math.MathRMWorkflow",
    "MathRULERWorkflow": f"{_RFT}.ruler.MathRULERWorkflow",
    "MathTrainableRULERWorkflow": f"{_RFT}.ruler.MathTrainableRULERWorkflow",
    "MathWorkflow": f"{_RFT}.workflow.MathWorkflow",
    "ModelWrapper": f"{_RFT}.model.ModelWrapper",
    "MultiTurnWorkflow": f"{_RFT}.workflow.MultiTurnWorkflow",
    "OnPolicyDistillMathWorkflow": f"{_RFT}.distill.OnPolicyDistillMathWorkflow",
    "OnPolicyDistillWorkflow": f"{_RFT}.distill.OnPolicyDistillWorkflow",
    "REWARD_FUNCTIONS": "trinity.plugins.REWARDS",
    "Registry": "trinity.utils.registry.Registry",
    "RewardFn": "trinity.common.rewards.RewardFn",
    "RewardPropagationWorkflow": f"{_RFT}.step_wise.RewardPropagationWorkflow",
    "SimpleWorkflow": f"{_RFT}.workflow.SimpleWorkflow",
    "StepWiseRewardWorkflow": f"{_RFT}.step_wise.StepWiseRewardWorkflow",
    "Task": f"{_RFT}.task.Task",
    "WORKFLOWS": "trinity.plugins.WORKFLOWS",
    "Workflow": f"{_RFT}.workflow.Workflow",
    "get_logger": "trinity.compat.get_logger",
    "load_plugins": "trinity.compat.load_plugins",
    "verify_math_answer": f"{_RFT}.math.verify_math_answer",
}
"""Names that are given from any of Trinity-RFT's modules, by what is given."""

MOVED: Mapping[str, str] = {"trinity.utils.eval_utils": "trinity.common.rewards.eval_utils"}
"""Modules that had another place before Trinity-RFT 0.5."""

REPLACEMENT_ADVICE: Mapping[str, str] = {
    "AccuracyReward": "name `accuracy_reward`, or use trinity.rewards.accuracy_reward",
    "FormatReward": "name `format_reward`, or use trinity.rewards.format_reward",
    "MathRewardFn": "name `math_reward`, or use trinity.rewards.math_reward",
    "AgentScopeModelWrapper": "an agent takes the client of `model.get_openai_async_client()`",
    "build_mm_message": "prompts are text: leave images and videos out",
    "TaskSelectorConfig": "the section is DataSelectorConfig",
    "Explorer": "`trinity run` starts the explorer",
    "Experiences": "a batch is the trainer's: write an advantage or a policy loss",
    "InferenceModel": "workflows see trinity.workflows.model.ModelWrapper",
    "Monitor": "metrics of an experience reach every monitor: set `experience.metrics`",
    "RubricJudgeWorkflow": "name `rubric_judge_workflow`, or write on MathRULERWorkflow",
    "Status": "raise an exception: its text is the reason why the run failed",
    "Trainer": "`trinity run` starts the trainer",
    "WorkflowRunner": "`trinity run --max-steps 1` runs a workflow; tests call it on a model",
    "tokenize_and_mask_messages_default": "use `model.convert_messages_to_experience`",
    "tokenize_and_mask_messages_hf": "use `model.convert_messages_to_experience`",
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
    "greedy_baseline_workflow": f"{_WORKFLOWS}.greedy_baseline_workflow.GreedyBaselineWorkflow",
    "math_ruler_workflow": f"{_RFT}.ruler.MathRULERWorkflow",
    "async_math_ruler_workflow": f"{_RFT}.ruler.MathRULERWorkflow",
    "math_trainable_ruler_workflow": f"{_RFT}.ruler.MathTrainableRULERWorkflow",
    "on_policy_distill_workflow": (
        f"{_WORKFLOWS}.on_policy_distill_workflow.OnPolicyDistillWorkflow"
    ),
    "on_policy_distill_math_workflow": (
        f"{_WORKFLOWS}.on_policy_distill_math_workflow.OnPolicyDistillMathWorkflow"
    ),
    "rubric_judge_openai_workflow": (
        f"{_WORKFLOWS}.rubric_judge_openai_workflow.RubricJudgeOpenAIWorkflow"
    ),
    "rubric_judge_workflow": f"{_WORKFLOWS}.rubric_judge_workflow.RubricJudgeWorkflow",
    "self_distill_workflow": f"{_WORKFLOWS}.self_distill_workflow.SelfDistillWorkflow",
    "sudoku_workflow": f"{_WORKFLOWS}.sudoku_workflow.SudokuWorkflow",
    "tool_call_workflow": f"{_WORKFLOWS}.tool_call_workflow.ToolCallWorkflow",
    "toolcall_workflow": f"{_WORKFLOWS}.tool_call_workflow.ToolCallWorkflow",
    "verl_agent_workflow": f"{_WORKFLOWS}.verl_agent_workflow.VerlAgentWorkflow",
}
DISTILLATION_WORKFLOWS = frozenset(
    {"on_policy_distill_workflow", "on_policy_distill_math_workflow"}
)
"""They ask the first auxiliary model for the log-probabilities of the policy's tokens."""
SELF_DISTILLATION_WORKFLOWS = frozenset({"self_distill_workflow"})
"""They ask the policy itself, with a hint in its prompt."""
BASELINE_WORKFLOWS = frozenset({"greedy_baseline_workflow"})
"""They bring the reward of a greedy answer."""
REWARD_PATHS: Mapping[str, str] = {
    "accuracy_reward": "trinity.rewards.accuracy_reward.AccuracyReward",
    "countdown_reward": "trinity.rewards.countdown_reward.CountdownReward",
    "exact_match_reward": "trinity.rewards.exact_match_reward.ExactMatchReward",
    "format_reward": "trinity.rewards.format_reward.FormatReward",
    "gsm8k_reward": "trinity.rewards.gsm8k_reward.Gsm8kReward",
    "math_boxed_reward": "trinity.rewards.math_boxed_reward.MathBoxedReward",
    "math_dapo_reward": "trinity.rewards.math_dapo_reward.MathDapoReward",
    "math_reward": "trinity.rewards.math_reward.MathReward",
    "search_answer_reward": "trinity.rewards.search_answer_reward.SearchAnswerReward",
}
UNSUPPORTED_REWARDS: Mapping[str, str] = {
    "rm_gallery_reward": (
        "it asks models of the package rm-gallery, which no service installs: name `math_reward` "
        "or another of docs/workflows.md, or write a RewardFn that calls the package"
    )
}
"""The reason why each is missing, and what to do instead."""
_ALFWORLD = "it plays in ALFWorld, an environment that no service installs"
_READERS = "trinity.buffer.reader"
_READS_ROWS = (
    "the buffer reads rows itself, so that a reader of your own is not called: take its file out "
    "of the plugin folder, and write the rows that it makes to a file that the taskset names"
)
_IMAGES = (
    "it asks about images or videos, and prompts are text alone: leave them out, or "
    "run the taskset elsewhere"
)


def get_logger(name: str | None = None, level: int | None = None, **_: object) -> logging.Logger:
    """Returns a logger whose lines the service that runs it writes from `log.level` on."""
    name = name or "file"
    logger = logging.getLogger(name if name.startswith("trinity.") else f"trinity.plugin.{name}")
    if level is not None:
        logger.setLevel(level)
    return logger


def load_plugins() -> None:
    """Imports the files of the plugin folders in TRINITY_PLUGIN_DIRS."""
    from trinity import plugins

    plugins.load_plugins(plugins.plugin_dirs_from_environment())


def resolve(module: str, name: str) -> object:
    """Returns what is given for a name of one of Trinity-RFT's modules.

    Raises: ImportError with what to use instead.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    if _is_module(module, name):
        return importlib.import_module(f"{module}.{name}")
    for package in _packages_above(module):
        if (given := _part_of(package, name)) is not None:
            return given
    if (path := RENAMED.get(name)) is not None:
        where, _, own = path.rpartition(".")
        return vars(importlib.import_module(where))[own]
    raise ImportError(f"{module}.{name} is of Trinity-RFT and not here: {_advice(module, name)}")


def _part_of(package: ModuleType, name: str) -> object | None:
    """Returns what a package has under a name; some make their classes on demand."""
    found: object = vars(package).get(name)
    if name not in vars(package) and package.__name__ in _PACKAGES:
        found = getattr(package, name, None)
    return found


def _advice(module: str, name: str) -> str:
    package = _package_of(module)
    general = (
        f"plugins derive from {package}"
        if package is not None
        else "docs/workflows.md lists what workflows and rewards may use"
    )
    if module.startswith(_READERS):
        general = _READS_ROWS
    return REPLACEMENT_ADVICE.get(name, general)


def _is_module(package: str, name: str) -> bool:
    """True for a module that is there; its package is asked for it first."""
    folders = getattr(sys.modules.get(package), "__path__", [])
    own = (Path(folder) / place for folder in folders for place in (f"{name}.py", name))
    return any(path.exists() for path in own) or _file_of_user(f"{package}.{name}") is not None


def _packages_above(module: str) -> Iterator[ModuleType]:
    """Yields our packages that may have what a module that is not here has, the nearest first."""
    if (moved := MOVED.get(module)) is not None:
        yield importlib.import_module(moved)
    parent = module.rpartition(".")[0]
    while parent.count("."):
        found = importlib.import_module(parent)
        if not isinstance(found, _Module):
            yield found
        parent = parent.rpartition(".")[0]


class _Module(ModuleType):
    """A module that resolves names on access."""

    def __getattr__(self, name: str) -> object:
        return resolve(self.__name__, name)


def is_of_theirs(module: ModuleType) -> bool:
    """True for a module that resolves names on access."""
    return isinstance(module, _Module)


def _package_of(module: str) -> str | None:
    """Returns the package whose names such a module has; None for other modules."""
    return next((package for package in _PACKAGES if module.startswith(f"{package}.")), None)


class _Finder(MetaPathFinder, Loader):
    """Finds the modules that only Trinity-RFT has; all other imports are unaffected.

    A file of a plugin folder comes first: `envs/shop/workflow.py` there is
    `trinity.common.workflows.envs.shop.workflow`, as it is in a copy of Trinity-RFT.
    """

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name.startswith(_PLUGINS):
            return self._of_plugin(name)
        is_theirs = any(name == root or name.startswith(f"{root}.") for root in _ROOTS)
        if not is_theirs and _package_of(name) is None:
            return None
        if (path := _file_of_user(name)) is not None:
            return spec_from_file_location(name, path)
        return ModuleSpec(name, self, is_package=True)

    def _of_plugin(self, name: str) -> ModuleSpec | None:
        """Finds a file of a plugin folder, or a folder in one, whose files Python then finds."""
        if _plugin_file(name) is not None:
            return ModuleSpec(name, self)
        folders = _plugin_folders(name)
        spec = ModuleSpec(name, None, is_package=True) if folders else None
        if spec is not None:
            spec.submodule_search_locations = folders
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if (path := _plugin_file(spec.name)) is not None:
            from trinity import plugins

            return plugins.load_file(path)
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: names are resolved on access."""


def _plugin_file(name: str) -> Path | None:
    """Returns the file of a plugin folder that `trinity.plugins.<its name>` means."""
    from trinity import plugins

    own = name.removeprefix(_PLUGINS)
    return plugins.plugin_file(own) if name.startswith(_PLUGINS) else None


def _plugin_folders(name: str) -> list[str]:
    from trinity import plugins

    places = (
        folder / name.removeprefix(_PLUGINS) for folder in plugins.plugin_dirs_from_environment()
    )
    return [str(place) for place in places if place.is_dir()]


def _file_of_user(name: str) -> Path | None:
    """Returns the file of a plugin folder at the place that a module of Trinity-RFT's has there."""
    from trinity import plugins

    parts = name.split(".")
    places = [Path(*parts).with_suffix(".py")]
    if name.startswith(_WORKFLOW_MODULES):
        places.append(Path(*parts[3:]).with_suffix(".py"))
    found = (
        folder / place
        for folder in plugins.plugin_dirs_from_environment()
        for place in places
        if (folder / place).is_file()
    )
    return next(found, None)


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
_AGENTSCOPE = f"it runs agents of the package agentscope, which no service installs: {_AGENT}"

_REASONS: Mapping[str, str] = {
    "agentscope_react_math_workflow": _AGENTSCOPE,
    "agentscope_react_workflow": _AGENTSCOPE,
    "agentscope_v1_react_search_workflow": _AGENTSCOPE,
    "agentscope_workflow_adapter": _AGENTSCOPE,
    "agentscope_workflow_adapter_v1": _AGENTSCOPE,
    "agentscopev0_react_math_workflow": _AGENTSCOPE,
    "alfworld_workflow": f"{_ALFWORLD}: {_TRANSCRIPT}",
    "as_react_workflow": _AGENTSCOPE,
    "async_simple_mm_workflow": _IMAGES,
    "email_search_workflow": f"it searches a database of e-mails with agentscope: {_AGENT}",
    "intercode_sql_workflow": f"it runs SQL in containers of InterCode: {_TRANSCRIPT}",
    "RAFT_alfworld_workflow": f"{_ALFWORLD}: {_TRANSCRIPT}",
    "RAFT_reflect_alfworld_workflow": f"{_ALFWORLD}: {_TRANSCRIPT}",
    "sciworld_workflow": f"it plays in ScienceWorld, which no service installs: {_TRANSCRIPT}",
    "simple_mm_workflow": _IMAGES,
    "step_wise_alfworld_workflow": f"{_ALFWORLD}: {_STEPS}",
    "webshop_workflow": f"it plays in WebShop, which no service installs: {_TRANSCRIPT}",
}
FILES_OF_THEIRS: Mapping[str, str] = {
    "agentscope_react_math_workflow": (
        "envs.agentscope.agentscopev1_react_workflow.AgentScopeReactMathWorkflow"
    ),
    "agentscope_react_workflow": "agentscope.react.react_workflow.AgentScopeReActWorkflow",
    "agentscope_v1_react_search_workflow": (
        "envs.agentscope.agentscopev1_search_workflow.AgentScopeV1ReactSearchWorkflow"
    ),
    "agentscope_workflow_adapter": "agentscope_workflow.AgentScopeWorkflowAdapter",
    "agentscope_workflow_adapter_v1": "agentscope_workflow.AgentScopeWorkflowAdapterV1",
    "agentscopev0_react_math_workflow": (
        "envs.agentscope.agentscopev0_react_workflow.AgentScopeV0ReactMathWorkflow"
    ),
    "alfworld_workflow": "envs.alfworld.alfworld_workflow.AlfworldWorkflow",
    "as_react_workflow": "agentscope.react.react_workflow.AgentScopeReActWorkflow",
    "email_search_workflow": "envs.email_searcher.workflow.EmailSearchWorkflow",
    "intercode_sql_workflow": "envs.intercode_sql.intercode_sql_workflow.InterCodeSQLWorkflow",
    "RAFT_alfworld_workflow": "envs.alfworld.RAFT_alfworld_workflow.RAFTAlfworldWorkflow",
    "RAFT_reflect_alfworld_workflow": (
        "envs.alfworld.RAFT_reflect_alfworld_workflow.RAFTReflectAlfworldWorkflow"
    ),
    "sciworld_workflow": "envs.sciworld.sciworld_workflow.SciWorldWorkflow",
    "step_wise_alfworld_workflow": "envs.alfworld.alfworld_workflow.StepWiseAlfworldWorkflow",
    "webshop_workflow": "envs.webshop.webshop_workflow.WebShopWorkflow",
}
"""Files and classes below trinity/common/workflows of Trinity-RFT, which run in a plugin folder."""


def _with_file(name: str, reason: str) -> str:
    if name not in FILES_OF_THEIRS:
        return reason
    file = FILES_OF_THEIRS[name].rpartition(".")[0].replace(".", "/")
    return f"{reason}; or put Trinity-RFT's own file into a plugin folder, as {file}.py"


UNSUPPORTED_WORKFLOWS: Mapping[str, str] = {
    name: _with_file(name, reason) for name, reason in _REASONS.items()
}
"""The reason why each is missing, and what to do instead."""


def path_in_plugin_folder(name: str) -> str | None:
    """Returns the dotted path of a workflow of Trinity-RFT whose file a plugin folder has."""
    path = _WORKFLOW_MODULES + FILES_OF_THEIRS.get(name, "")
    is_there = name in FILES_OF_THEIRS and _file_of_user(path.rpartition(".")[0]) is not None
    return path if is_there else None
