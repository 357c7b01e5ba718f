"""User-extensible parts by name: a registry per kind, plugin folders, dotted paths.

# my_rewards.py, in the current folder or in one given as plugin folder
@REWARDS.register_module("short_answer")
class ShortAnswer(RewardFn): ...

REWARDS.get("short_answer")           # by name, once its file is loaded
REWARDS.get("my_rewards.ShortAnswer") # by dotted path, in a plugin folder or where Python looks
"""

import difflib
import hashlib
import importlib
import importlib.util
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

from trinity.errors import UserError
from trinity.runtime.logs import own_package

if TYPE_CHECKING:
    from trinity.rewards.reward import RewardSource
    from trinity.workflows.workflow import Workflow

ValueT = TypeVar("ValueT")
_SEPARATOR = re.compile(r"[/\\\0]")
_PATH = re.compile(r"[\w-]+(\.[\w-]+)+")
"""A module and one of its parts: nothing in it leads to another folder."""
PLUGIN_DIRS_VARIABLE = "TRINITY_PLUGIN_DIRS"
ADOPTED_VARIABLE = "TRINITY_ADOPTED"
"""Names the file of `trinity adopt`, whose parts are loaded with the plugins."""
ADOPTED_AS_VARIABLE = "TRINITY_ADOPTED_AS"
"""`outlines` in processes that check a file, which run nothing of a fork."""
PLUGINS_ONLY_VARIABLE = "TRINITY_PLUGINS_ONLY"
"""Set for processes that run functions which a tenant names: other modules than those of plugin
folders are then not imported."""
PLUGIN_PACKAGE = "trinity.plugins"
"""The package of all files of plugin folders, so that `from .my_file import Own` works in them."""
__path__: list[str] = []
"""Makes `trinity.plugins.my_file` an import path, which the import hook looks up."""
_PLUGIN_MODULE = re.compile(rf"^{re.escape(PLUGIN_PACKAGE)}\._[0-9a-f]{{8}}_")
CLOSED_FOLDERS: list[str] = []
"""Checkouts with adopted files."""
ADOPTED_MODULES: set[str] = set()
"""The names by which adopted files are imported."""
_WORKFLOW_MODULES = "trinity.common.workflows."
_OURS = str(Path(__file__).parent) + os.sep
"""The folder of files that may lie between a user's file and what it imports."""

_OWN = "trinity.workflows"
_RFT = "trinity.rft.workflows"
YIELDING = {"agent", "clients", "openenv", "verifiers"}  # older files may have taken these names
_WITH_ASYNC_ALIAS: Mapping[str, str] = {
    "simple_mm_workflow": f"{_OWN}.math_boxed_workflow.SimpleMmWorkflow",
    "simple_workflow": f"{_OWN}.simple_workflow.SimpleWorkflow",
    "math_workflow": f"{_OWN}.math_workflow.MathWorkflow",
    "math_boxed_workflow": f"{_OWN}.math_boxed_workflow.MathBoxedWorkflow",
    "math_eval_workflow": f"{_OWN}.math_eval_workflow.MathEvalWorkflow",
    "math_rm_workflow": f"{_OWN}.math_rm_workflow.MathRMWorkflow",
}
"""These names with the prefix `async_` are the same classes: they all run on the event loop."""
WORKFLOW_PATHS: Mapping[str, str] = {
    **_WITH_ASYNC_ALIAS,
    **{f"async_{name}": path for name, path in _WITH_ASYNC_ALIAS.items()},
    "frozen_lake_workflow": f"{_OWN}.frozen_lake_workflow.FrozenLakeWorkflow",
    "greedy_baseline_workflow": f"{_OWN}.greedy_baseline_workflow.GreedyBaselineWorkflow",
    "math_ruler_workflow": f"{_RFT}.ruler.MathRULERWorkflow",
    "async_math_ruler_workflow": f"{_RFT}.ruler.MathRULERWorkflow",
    "math_trainable_ruler_workflow": f"{_RFT}.ruler.MathTrainableRULERWorkflow",
    "on_policy_distill_workflow": f"{_OWN}.on_policy_distill_workflow.OnPolicyDistillWorkflow",
    "on_policy_distill_math_workflow": (
        f"{_OWN}.on_policy_distill_math_workflow.OnPolicyDistillMathWorkflow"
    ),
    "rubric_judge_openai_workflow": (
        f"{_OWN}.rubric_judge_openai_workflow.RubricJudgeOpenAIWorkflow"
    ),
    "rubric_judge_workflow": f"{_OWN}.rubric_judge_workflow.RubricJudgeWorkflow",
    "self_distill_workflow": f"{_OWN}.self_distill_workflow.SelfDistillWorkflow",
    "agent": f"{_OWN}.agent_workflow.AgentWorkflow",
    "clients": f"{_OWN}.agent_workflow.ClientsWorkflow",
    "sudoku_workflow": f"{_OWN}.sudoku_workflow.SudokuWorkflow",
    "tool_call_workflow": f"{_OWN}.tool_call_workflow.ToolCallWorkflow",
    "toolcall_workflow": f"{_OWN}.tool_call_workflow.ToolCallWorkflow",
    "verl_agent_workflow": f"{_OWN}.verl_agent_workflow.VerlAgentWorkflow",
    "openenv": f"{_OWN}.openenv_workflow.OpenEnvWorkflow",
    "verifiers": f"{_OWN}.verifiers_workflow.VerifiersWorkflow",
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
    file.stem: f"trinity.rewards.{file.stem}.{''.join(map(str.capitalize, file.stem.split('_')))}"
    for file in sorted((Path(__file__).parent / "rewards").glob("*_reward.py"))
}
"""A file of `trinity/rewards` is a reward by its name: `math_reward.py` has MathReward."""


class Absent(NamedTuple):
    """A known part that does not exist here: why, with advice, and its path in Trinity-RFT."""

    why: str
    path: str = ""
    """The part is there once a plugin folder has the file."""

    @property
    def is_in_plugin_folder(self) -> bool:
        module = self.path.rpartition(".")[0]
        return bool(module) and file_in_place_of(module) is not None


class Registry(Generic[ValueT]):
    """Parts of one kind by name; those in `default_mapping` are imported on first use.

    `absent` is the dotted path of a table of Absent by name; a plugin may take such a name.
    `adapter` is the dotted path of a function that makes a part of a class that was
    written for Trinity-RFT; such a class may also take the name of a built-in part. It is called
    on first use of the part: a class that cannot be used here does not keep its file from loading.
    """

    def __init__(
        self,
        name: str,
        default_mapping: Mapping[str, str] | None = None,
        absent: str = "",
        adapter: str = "",
    ) -> None:
        self.name = name
        self._builtins = dict(default_mapping or {})
        self._absent = absent
        self._adapter = adapter
        self._sources: dict[str, ValueT] = {}
        self._made: dict[str, ValueT] = {}
        """Registered parts as they are called, once they were looked up."""
        self.left_out: dict[str, str] = {}
        """Names of adopted parts whose files do not load, with the reason."""
        self._resolved: dict[str, ValueT] = {}

    @property
    def logger(self) -> logging.Logger:
        """The logger of all registries."""
        return get_logger("registry")

    @property
    def builtins(self) -> Mapping[str, str]:
        """Dotted paths of the built-in parts whose names no plugin has taken, in their order."""
        own = self._sources.keys() | self.left_out.keys()
        return {name: path for name, path in self._builtins.items() if name not in own}

    @property
    def absent(self) -> Mapping[str, Absent]:
        """Known parts that do not exist here, by name."""
        return value_at(self._absent) if self._absent else {}

    def register(self, name: str, part: ValueT, *, force: bool = False) -> None:
        """Registers `part` under a name; ignores it if its file runs again, by another path.

        Raises: UserError when the name is taken by another part.
        """
        taken, may_replace = self._sources.get(name), force or self._needs_adapter(part)
        if taken is not None and not force and _ran_again(taken, part):
            return
        is_taken = taken is not None and taken is not part and not force
        if is_taken or (name in self._builtins.keys() - YIELDING and not may_replace):
            raise UserError(f"the {self.name} {name!r} is registered already; choose another name")
        if taken is not part:
            self._sources[name] = part
            self._made.pop(name, None)

    @overload
    def register_module(
        self, module_name: str | None, *, force: bool = False, lazy: bool = False
    ) -> Callable[[ValueT], ValueT]: ...

    @overload
    def register_module(
        self, module_name: str | None, module_cls: ValueT, force: bool = False, lazy: bool = False
    ) -> ValueT: ...

    def register_module(
        self,
        module_name: str | None,
        module_cls: ValueT | None = None,
        force: bool = False,
        lazy: bool = False,
    ) -> ValueT | Callable[[ValueT], ValueT]:
        """Registers a class or function; without one, returns a decorator that does.

        The default name is its `__name__`. `lazy` is ignored, as in Trinity-RFT.
        """
        del lazy

        def decorate(part: ValueT) -> ValueT:
            self.register(module_name or part.__name__, part, force=force)  # type: ignore[attr-defined]
            return part

        return decorate if module_cls is None else decorate(module_cls)

    def built_in(self, name: str) -> ValueT:
        """Returns the built-in part with this name, also where a plugin has taken it."""
        return self._resolve(self.path_of(name))

    def path_of(self, name: str) -> str:
        """Returns the dotted path of the built-in part with this name."""
        return self._builtins[name]

    def is_own(self, name: str) -> bool:
        """True for a part that a plugin has registered."""
        return name in self._sources

    def plan_name(self, name: str) -> str:
        """Returns the name by which processes without the plugin know that the part is a user's.

        It is a dotted path for a user's part that has the name of a built-in one.
        """
        if name not in self._sources or name not in self._builtins:
            return name
        source = self._sources[name]
        module, own = getattr(source, "__module__", ""), getattr(source, "__qualname__", "")
        return f"{_PLUGIN_MODULE.sub('', module)}.{own}"

    def _needs_adapter(self, part: object) -> bool:
        return bool(self._adapter) and isinstance(part, type)

    def _adapted(self, name: str, part: ValueT) -> ValueT:
        if not self._needs_adapter(part):
            return part
        adapted: ValueT = value_at(self._adapter)(name, part)
        return adapted

    @property
    def modules(self) -> Mapping[str, ValueT]:
        """The parts that files have registered, by name; Trinity-RFT calls them so."""
        return dict(self._sources)

    def names(self) -> list[str]:
        """Returns every registered name, sorted."""
        return sorted(self._sources.keys() | self._builtins.keys())

    def is_registered(self, key: str) -> bool:
        """Returns true for a registered name, and false for a dotted path."""
        return key in self._sources or key in self._builtins

    def get(self, key: str) -> ValueT:
        """Returns the part with this name or at this dotted path.

        Raises: UserError, with similar names, when there is no such part.
        """
        if key in self._sources:
            return self._of_user(key)
        if key in self.left_out:
            raise UserError(f"the {self.name} {key!r} does not load: {self.left_out[key]}")
        if path := self._builtins.get(key):
            return self._resolve(path)
        if (absent := self.absent.get(key)) is not None:
            if absent.is_in_plugin_folder:
                return self._resolve(absent.path)
            raise UserError(f"the {self.name} {key!r} does not come with Trinity: {absent.why}")
        if _SEPARATOR.search(key) or ("." in key and not _PATH.fullmatch(key)):
            raise UserError(
                f"{key!r} cannot be the name of a {self.name}: give a registered name, or "
                "module.Name, with letters, digits, `_`, `-` and single dots alone"
            )
        if "." in key:
            return (
                self._of_plugin(key)
                if os.environ.get(PLUGINS_ONLY_VARIABLE)
                else self._resolve(key)
            )
        known = [*self.names(), *self.absent]
        close = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
        named = (
            f"close to it: {', '.join(close)}" if close else f"there are {', '.join(self.names())}"
        )
        raise UserError(
            f"there is no {self.name} {key!r}; {named}; one of your own "
            "is given as module.Name, or by its name once its folder is given as a plugin folder"
        )

    def check_name(self, key: str) -> None:
        """Raises the errors of `get`, without importing a built-in part."""
        if key not in self.builtins:
            self.get(key)

    def _of_user(self, name: str) -> ValueT:
        if name not in self._made:
            try:
                self._made[name] = self._adapted(name, self._sources[name])
            except UserError as error:
                raise UserError(f"{self.name} {name!r}: {error}") from error
        return self._made[name]

    def _resolve(self, path: str) -> ValueT:
        """Imports a path once: every run calls this."""
        if path not in self._resolved:
            self._resolved[path] = self._import(path)
        return self._resolved[path]

    def _of_plugin(self, path: str) -> ValueT:
        """Returns a part that is defined in a plugin folder."""
        module_name, _, name = path.rpartition(".")
        wanted = f"{self.name} {path!r}"
        if (file := plugin_file(module_name)) is not None:
            found = vars(load_file(file))
        elif _is_below_plugin_folder(module_name):
            found = vars(import_module(f"{PLUGIN_PACKAGE}.{module_name}", wanted))
        else:
            found = {}
        if not str(getattr(found.get(name), "__module__", "")).startswith(f"{PLUGIN_PACKAGE}."):
            raise UserError(
                f"{wanted} is defined in no plugin folder of this machine, and nothing else is "
                "called here: use what they define or register, or have the operator add it there"
            )
        return self._adapted(name, found[name])

    def _import(self, path: str) -> ValueT:
        module_name, _, name = path.rpartition(".")
        wanted = f"{self.name} {path!r}"
        module = import_module(module_name, wanted=wanted)
        if type(module) is not ModuleType:  # of the import hook: it says what to use instead
            try:
                theirs: ValueT = getattr(module, name)
            except (ImportError, AttributeError) as error:
                raise UserError(f"{wanted}: {error}") from error
            return theirs
        if name not in vars(module):
            close = difflib.get_close_matches(name, vars(module), n=3)
            hint = f"; close to it: {', '.join(close)}" if close else ""
            file = module.__file__ or module.__name__
            raise UserError(f"{self.name} {path!r}: {file} defines no {name!r}{hint}")
        try:
            return self._adapted(name, vars(module)[name])
        except UserError as error:
            raise UserError(f"{self.name} {path!r}: {error}") from error


WORKFLOWS: "Registry[type[Workflow]]" = Registry(
    "workflow", WORKFLOW_PATHS, absent="trinity.rft.absent.WORKFLOWS"
)
REWARDS: "Registry[RewardSource]" = Registry(
    "reward", REWARD_PATHS, absent="trinity.rft.absent.REWARDS"
)


def value_at(path: str) -> Any:
    """Returns the value at a dotted path, importing its module if necessary."""
    module, _, name = path.rpartition(".")
    return vars(importlib.import_module(module))[name]


def _ran_again(taken: object, part: object) -> bool:
    """True for what one file defines at one place, imported by two paths."""
    modules = [getattr(own, "__module__", "") for own in (taken, part)]
    files = [getattr(sys.modules.get(str(name)), "__file__", None) for name in modules]
    names = [getattr(own, "__qualname__", None) for own in (taken, part)]
    return (
        modules[0] != modules[1]
        and None not in (*files, *names)
        and names[0] == names[1]
        and os.path.realpath(str(files[0])) == os.path.realpath(str(files[1]))
    )


def import_module(name: str, wanted: str) -> ModuleType:
    """Imports a module, also from the current folder or a plugin folder.

    Raises: UserError when there is no such module or it cannot be imported.
    """
    here = _look_in_current_folder()
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
        own_package(name)
        return module
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            if (path := plugin_file(name)) is not None:
                return load_file(path)
            if _is_below_plugin_folder(name):
                return import_module(f"{PLUGIN_PACKAGE}.{name}", wanted)
            folders = ", ".join([here, *map(str, plugin_dirs_from_environment())])
            raise UserError(
                f"{wanted}: there is no module {error.name!r} in {folders} or among Python's "
                "packages"
            ) from error
        raise UserError(f"{wanted}: {_explain(error)}") from error
    except (Exception, SystemExit) as error:  # whatever a user's file raises at import
        raise UserError(f"{wanted}: {_explain(error)}") from error


def _is_below_plugin_folder(name: str) -> bool:
    """Returns true for `shop.workflow` if a plugin folder has a folder `shop`."""
    first, _, rest = name.partition(".")
    is_plain = bool(rest) and re.fullmatch(r"\w+", first) is not None
    return is_plain and any((folder / first).is_dir() for folder in plugin_dirs_from_environment())


def _look_in_current_folder() -> str:
    """Appends the current folder to Python's path, at its end; one of a checkout is left out."""
    here = os.getcwd()
    if here not in sys.path and not any(map(Path(here).is_relative_to, CLOSED_FOLDERS)):
        sys.path.append(here)
    return here


def get_logger(name: str | None = None, level: int | None = None, **_: object) -> logging.Logger:
    """Returns a logger whose lines the service that runs it writes from `log.level` on."""
    name = name or "file"
    logger = logging.getLogger(name if name.startswith("trinity.") else f"trinity.plugin.{name}")
    if level is not None:
        logger.setLevel(level)
    return logger


def load_plugins(directories: Iterable[str | Path]) -> None:
    """Imports every `*.py` of these folders, but those with `__` in front, and adopted files.

    Raises: UserError naming the file and line of a plugin that cannot be imported.
    """
    if os.environ.get(ADOPTED_VARIABLE):
        value_at("trinity.user_code.adopt.loading.load")()
    _look_in_current_folder()
    for directory in map(Path, directories):
        if not directory.is_dir():
            raise UserError(f"the plugin folder {directory} does not exist")
        for path in sorted(directory.glob("*.py")):
            if not path.name.startswith("__"):
                load_file(path.resolve())


def plugin_dirs_from_environment() -> list[Path]:
    """Returns the folders named in TRINITY_PLUGIN_DIRS, separated as in PATH."""
    value = os.environ.get(PLUGIN_DIRS_VARIABLE, "")
    return [Path(part) for part in value.split(os.pathsep) if part]


def plugin_file(name: str) -> Path | None:
    """Returns the module's file in the first plugin folder that has it."""
    if not re.fullmatch(r"[\w-]+", name):
        return None
    paths = (folder / f"{name}.py" for folder in plugin_dirs_from_environment())
    return next((path.resolve() for path in paths if path.is_file()), None)


def file_in_place_of(name: str) -> Path | None:
    """Returns the file of a plugin folder at the place that a module of Trinity-RFT has there."""
    parts = name.split(".")
    places = [Path(*parts).with_suffix(".py")]
    if name.startswith(_WORKFLOW_MODULES):
        places.append(Path(*parts[3:]).with_suffix(".py"))
    folders = plugin_dirs_from_environment()
    paths = (folder / place for folder in folders for place in places)
    return next((path for path in paths if path.is_file()), None)


def load_file(path: Path) -> ModuleType:
    """Imports a file under a unique name: two folders may each hold a `rewards.py`."""
    folder = hashlib.sha256(str(path.parent).encode()).hexdigest()[:8]
    name = f"{PLUGIN_PACKAGE}._{folder}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's file raises at import
        del sys.modules[name]
        raise UserError(f"plugin {path}: {_explain(error)}") from error
    return module


def _explain(error: BaseException) -> str:
    """Describes an error with the innermost line in a user's file that led to it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(_OURS) and "importlib" not in f.filename]
    where = f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
    return f"{where}{type(error).__name__}: {error}{_advice_on_package(error)}"


def _advice_on_package(error: BaseException) -> str:
    """Returns what to do about a package of others that is missing; empty for other errors."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not package or package == "trinity":
        return ""
    return f": install the package that has `{package}` where `trinity` and the explorer run"
