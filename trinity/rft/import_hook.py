"""Import paths of Trinity-RFT, for files that were written for it.

    from trinity.common.workflows import WORKFLOWS, Workflow

`trinity.common.workflows` is `trinity.rft.common.workflows` here: one module under two names. Names
in any other module of Trinity-RFT are found by the tables below, and a name that is not here raises
an ImportError that says what to use instead. `trinity.plugins.my_file` is `my_file.py` of a plugin
folder. `trinity/__init__.py` asks FINDER for them.
"""

import importlib
from collections.abc import Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from trinity import ROOTS_OF_TRINITY_RFT, plugins

_PLUGINS = "trinity.plugins."
_RFT = "trinity.rft.workflows"
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
_HERE = Path(__file__).parent

RENAMED: Mapping[str, str] = {
    "AsyncMathBoxedWorkflow": f"{_RFT}.math.AsyncMathBoxedWorkflow",
    "AsyncMathEvalWorkflow": f"{_RFT}.math.AsyncMathEvalWorkflow",
    "AsyncMathRMWorkflow": f"{_RFT}.math.AsyncMathRMWorkflow",
    "AsyncMathRULERWorkflow": f"{_RFT}.ruler.AsyncMathRULERWorkflow",
    "AsyncMathWorkflow": f"{_RFT}.workflow.AsyncMathWorkflow",
    "AsyncRewardPropagationWorkflow": "trinity.workflows.step_wise.AsyncRewardPropagationWorkflow",
    "AsyncSimpleWorkflow": f"{_RFT}.workflow.AsyncSimpleWorkflow",
    "AsyncStepWiseRewardWorkflow": "trinity.workflows.step_wise.AsyncStepWiseRewardWorkflow",
    "BaseSimpleWorkflow": f"{_RFT}.workflow.BaseSimpleWorkflow",
    "CONFIG_GENERATORS": "trinity.studio.generator.registry.CONFIG_GENERATORS",
    "CustomField": "trinity.types.CustomField",
    "EID": "trinity.types.EID",
    "Experience": "trinity.types.Experience",
    "FormatConfig": "trinity.config.schema.data.FormatConfig",
    "GenerationConfig": "trinity.workflows.task.GenerationConfig",
    "MathBoxedWorkflow": f"{_RFT}.math.MathBoxedWorkflow",
    "MathEvalWorkflow": f"{_RFT}.math.MathEvalWorkflow",
    "MathRMWorkflow": f"{_RFT}.math.MathRMWorkflow",
    "MathRULERWorkflow": f"{_RFT}.ruler.MathRULERWorkflow",
    "MathTrainableRULERWorkflow": f"{_RFT}.ruler.MathTrainableRULERWorkflow",
    "MathWorkflow": f"{_RFT}.workflow.MathWorkflow",
    "ModelWrapper": "trinity.workflows.model.ModelWrapper",
    "MultiTurnWorkflow": "trinity.workflows.multi_turn.MultiTurnWorkflow",
    "OnPolicyDistillMathWorkflow": f"{_RFT}.distill.OnPolicyDistillMathWorkflow",
    "OnPolicyDistillWorkflow": f"{_RFT}.distill.OnPolicyDistillWorkflow",
    "REWARD_FUNCTIONS": "trinity.plugins.REWARDS",
    "Registry": "trinity.plugins.Registry",
    "RewardFn": "trinity.rewards.reward.RewardFn",
    "RewardPropagationWorkflow": "trinity.workflows.step_wise.RewardPropagationWorkflow",
    "SimpleWorkflow": f"{_RFT}.workflow.SimpleWorkflow",
    "StepWiseRewardWorkflow": "trinity.workflows.step_wise.StepWiseRewardWorkflow",
    "Task": "trinity.workflows.task.Task",
    "WORKFLOWS": "trinity.plugins.WORKFLOWS",
    "Workflow": "trinity.workflows.workflow.Workflow",
    "get_logger": "trinity.plugins.get_logger",
    "load_plugins": "trinity.rft.import_hook.load_plugins",
    "verify_math_answer": f"{_RFT}.math.verify_math_answer",
}
"""Names available from any of Trinity-RFT's modules, with the path of the object."""

MOVED: Mapping[str, str] = {"trinity.utils.eval_utils": "trinity.common.rewards.eval_utils"}
"""Modules that had another place before Trinity-RFT 0.5."""

REPLACEMENT_ADVICE: Mapping[str, str] = {
    "AccuracyReward": "name `accuracy_reward`, or use trinity.rewards.accuracy_reward",
    "FormatReward": "name `format_reward`, or use trinity.rewards.format_reward",
    "MathRewardFn": "name `math_reward`, or use trinity.rewards.math_reward",
    "AgentScopeModelWrapper": "an agent takes the client of `model.get_openai_async_client()`",
    "build_mm_message": "name the column in `format.image_key`, or write messages with parts",
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
_READERS = "trinity.buffer.reader"
_READS_ROWS = (
    "the buffer reads rows itself, so that a reader of your own is not called: take its file out "
    "of the plugin folder, and write the rows that it makes to a file that the taskset names"
)


def load_plugins() -> None:
    """Imports the files of the plugin folders in TRINITY_PLUGIN_DIRS."""
    plugins.load_plugins(plugins.plugin_dirs_from_environment())


def resolve(module: str, name: str) -> object:
    """Returns the object for a name in one of Trinity-RFT's modules.

    Raises: ImportError with advice on a replacement.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    module = module.replace("trinity.rft.", "trinity.", 1)
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
    """Returns an attribute of a package; some packages make their classes on demand."""
    found: object = vars(package).get(name)
    if name not in vars(package) and package.__name__.replace(".rft.", ".", 1) in _PACKAGES:
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
    """True for a module that exists here."""
    path = f"{package}.{name}"
    is_adopted = path in plugins.ADOPTED_MODULES
    return is_adopted or _home(path) is not None or plugins.file_in_place_of(path) is not None


def _home(name: str) -> str | None:
    """Returns the name under `trinity.rft` of a module of Trinity-RFT that is here."""
    if not name.startswith((*ROOTS_OF_TRINITY_RFT, "trinity.algorithm.")):
        return None
    parts = name.split(".")[1:]
    place = _HERE.joinpath(*parts)
    is_here = place.with_name(f"{place.name}.py").is_file() or (place / "__init__.py").is_file()
    return ".".join(["trinity.rft", *parts]) if is_here else None


def _packages_above(module: str) -> Iterator[ModuleType]:
    """Yields our packages above a missing module that may have the name, nearest first."""
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


def _package_of(module: str) -> str | None:
    """Returns the package whose names such a module has; None for other modules."""
    return next((package for package in _PACKAGES if module.startswith(f"{package}.")), None)


class _OtherName(Loader):
    """Gives a module of `trinity.rft` under its name in Trinity-RFT."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(str(_home(spec.name)))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leaves the module as its first import made it."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


class _Finder(MetaPathFinder, Loader):
    """Finds the modules that only Trinity-RFT has; all other imports are unaffected.

    A file of a plugin folder comes first: `envs/shop/workflow.py` there is
    `trinity.common.workflows.envs.shop.workflow`, as it is in a copy of Trinity-RFT.
    """

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name.startswith(_PLUGINS):
            return self._of_plugin(name)
        if _home(name) is not None:
            return ModuleSpec(name, _OtherName())
        is_theirs = any(
            name == root or name.startswith(f"{root}.") for root in ROOTS_OF_TRINITY_RFT
        )
        if not is_theirs and _package_of(name) is None:
            return None
        if (path := plugins.file_in_place_of(name)) is not None:
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
            return plugins.load_file(path)
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leaves the module empty: names are resolved on access."""


def _plugin_file(name: str) -> Path | None:
    """Returns the file of a plugin folder that `trinity.plugins.<its name>` means."""
    own = name.removeprefix(_PLUGINS)
    return plugins.plugin_file(own) if name.startswith(_PLUGINS) else None


def _plugin_folders(name: str) -> list[str]:
    places = (
        folder / name.removeprefix(_PLUGINS) for folder in plugins.plugin_dirs_from_environment()
    )
    return [str(place) for place in places if place.is_dir()]


FINDER = _Finder()
