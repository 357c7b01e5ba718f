"""User-extensible parts by name: a registry per kind, plugin folders, dotted paths.

# my_rewards.py, in the current folder or in one given as plugin folder
@REWARDS.register_module("short_answer")
class ShortAnswer(RewardFn): ...

REWARDS.get("short_answer")           # by name, once its file is loaded
REWARDS.get("my_rewards.ShortAnswer") # by dotted path, in a plugin folder or where Python looks
"""

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from trinity import compat
from trinity.compat import (
    REWARD_PATHS,
    UNSUPPORTED_REWARDS,
    UNSUPPORTED_WORKFLOWS,
    WORKFLOW_PATHS,
)
from trinity.errors import UserError
from trinity.runtime.logs import own_package

if TYPE_CHECKING:
    from trinity.rewards.reward import RewardSource
    from trinity.workflows.workflow import Workflow

T = TypeVar("T")
_SEPARATOR = re.compile(r"[/\\\0]")
_PATH = re.compile(r"[\w-]+(\.[\w-]+)+")
"""A module and one of its parts: nothing in it leads to another folder."""
PLUGIN_DIRS_VARIABLE = "TRINITY_PLUGIN_DIRS"
PLUGINS_ONLY_VARIABLE = "TRINITY_PLUGINS_ONLY"
"""Set for processes that run functions which a tenant names: other modules than those of plugin
folders are then not imported."""
PLUGIN_PACKAGE = "trinity.plugins"
"""The package of all files of plugin folders, so that `from .my_file import Own` works in them."""
__path__: list[str] = []
"""Makes `trinity.plugins.my_file` an import path, which `trinity.compat` looks up."""
_PLUGIN_MODULE = re.compile(rf"^{re.escape(PLUGIN_PACKAGE)}\._[0-9a-f]{{8}}_")
_OURS = str(Path(__file__).parent) + os.sep
"""The folder of files that may lie between a user's file and what it imports."""


class Registry(Generic[T]):
    """Parts of one kind by name; those in `builtins` are imported on first use.

    `absent` holds known names of parts that do not exist here, each with advice; a plugin may take
    such a name. `adapter` is the dotted path of a function that makes a part of a class that was
    written for Trinity-RFT; such a class may also take the name of a built-in part. It is called
    when the part is asked for: one that cannot be used here does not keep its file from loading.
    """

    def __init__(
        self,
        kind: str,
        builtins: Mapping[str, str] | None = None,
        absent: Mapping[str, str] | None = None,
        adapter: str = "",
    ) -> None:
        self._kind = kind
        self._builtins = dict(builtins or {})
        self._absent = dict(absent or {})
        self._adapter = adapter
        self._sources: dict[str, T] = {}
        self._made: dict[str, T] = {}
        """Registered parts as they are called, once they were asked for."""
        self._resolved: dict[str, T] = {}

    @property
    def builtins(self) -> Mapping[str, str]:
        """Dotted paths of the built-in parts whose names no plugin has taken, in their order."""
        return {name: path for name, path in self._builtins.items() if name not in self._sources}

    def register(self, name: str, part: T, *, force: bool = False) -> None:
        """Registers `part` under a name; a file that runs again, by another path, changes nothing.

        Raises: UserError when the name is taken by another part.
        """
        taken, may_replace = self._sources.get(name), force or self._needs_adapter(part)
        if taken is not None and not force and _ran_again(taken, part):
            return
        is_taken = taken is not None and taken is not part and not force
        if is_taken or (name in self._builtins and not may_replace):
            raise UserError(f"the {self._kind} {name!r} is registered already; choose another name")
        if taken is not part:
            self._sources[name] = part
            self._made.pop(name, None)

    @overload
    def register_module(
        self, module_name: str | None, *, force: bool = False, lazy: bool = False
    ) -> Callable[[T], T]: ...

    @overload
    def register_module(
        self, module_name: str | None, module_cls: T, force: bool = False, lazy: bool = False
    ) -> T: ...

    def register_module(
        self,
        module_name: str | None,
        module_cls: T | None = None,
        force: bool = False,
        lazy: bool = False,
    ) -> T | Callable[[T], T]:
        """Registers a class or function; without one, returns a decorator that does.

        Without a name it has its own. `lazy` changes nothing, as in Trinity-RFT.
        """
        del lazy

        def decorate(part: T) -> T:
            self.register(module_name or part.__name__, part, force=force)  # type: ignore[attr-defined]
            return part

        return decorate if module_cls is None else decorate(module_cls)

    def built_in(self, name: str) -> T:
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

    def _adapted(self, name: str, part: T) -> T:
        if not self._needs_adapter(part):
            return part
        module, _, function = self._adapter.rpartition(".")
        adapted: T = vars(importlib.import_module(module))[function](name, part)
        return adapted

    @property
    def modules(self) -> Mapping[str, T]:
        """The parts that files have registered, by name; Trinity-RFT calls them so."""
        return dict(self._sources)

    def names(self) -> list[str]:
        """Returns every registered name, sorted."""
        return sorted(self._sources.keys() | self._builtins.keys())

    def is_registered(self, key: str) -> bool:
        """Returns true for a registered name; a dotted path is none."""
        return key in self._sources or key in self._builtins

    def get(self, key: str) -> T:
        """Returns the part with this name or at this dotted path.

        Raises: UserError when there is none; it lists the names that are close.
        """
        if key in self._sources:
            return self._of_user(key)
        if path := self._builtins.get(key):
            return self._resolve(path)
        if why := self._absent.get(key):
            if (path := compat.path_in_plugin_folder(key)) is not None:
                return self._resolve(path)
            raise UserError(f"the {self._kind} {key!r} does not come with Trinity: {why}")
        if _SEPARATOR.search(key) or ("." in key and not _PATH.fullmatch(key)):
            raise UserError(
                f"{key!r} cannot be the name of a {self._kind}: give a registered name, or "
                "module.Name, with letters, digits, `_`, `-` and single dots alone"
            )
        if "." in key:
            return (
                self._of_plugin(key)
                if os.environ.get(PLUGINS_ONLY_VARIABLE)
                else self._resolve(key)
            )
        known = [*self.names(), *self._absent]
        close = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
        named = (
            f"close to it: {', '.join(close)}" if close else f"there are {', '.join(self.names())}"
        )
        raise UserError(
            f"there is no {self._kind} {key!r}; {named}; one of your own "
            "is given as module.Name, or by its name once its folder is given as a plugin folder"
        )

    def check_name(self, key: str) -> None:
        """Raises the errors of `get`, without importing a built-in part."""
        if key in self._sources or key not in self._builtins:
            self.get(key)

    def _of_user(self, name: str) -> T:
        if name not in self._made:
            try:
                self._made[name] = self._adapted(name, self._sources[name])
            except UserError as error:
                raise UserError(f"{self._kind} {name!r}: {error}") from error
        return self._made[name]

    def _resolve(self, path: str) -> T:
        """Imports a path once: every run calls this."""
        if path not in self._resolved:
            self._resolved[path] = self._import(path)
        return self._resolved[path]

    def _of_plugin(self, path: str) -> T:
        """Returns what a file of a plugin folder defines itself."""
        module_name, _, name = path.rpartition(".")
        wanted = f"{self._kind} {path!r}"
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

    def _import(self, path: str) -> T:
        module_name, _, name = path.rpartition(".")
        wanted = f"{self._kind} {path!r}"
        module = import_module(module_name, wanted=wanted)
        if compat.is_of_theirs(module):
            try:
                theirs: T = getattr(module, name)
            except (ImportError, AttributeError) as error:
                raise UserError(f"{wanted}: {error}") from error
            return theirs
        if name not in vars(module):
            close = difflib.get_close_matches(name, vars(module), n=3)
            hint = f"; close to it: {', '.join(close)}" if close else ""
            raise UserError(f"{self._kind} {path!r}: {_file(module)} defines no {name!r}{hint}")
        try:
            return self._adapted(name, vars(module)[name])
        except UserError as error:
            raise UserError(f"{self._kind} {path!r}: {error}") from error


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
    compat.install_import_hook()
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
    """Appends the current folder to Python's path: at its end, where it hides no other module."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    return here


def load_plugins(directories: Iterable[str | Path]) -> None:
    """Imports every `*.py` of these folders, so that their parts are registered; none with `__`.

    Raises: UserError naming the file and line of a plugin that cannot be imported.
    """
    _look_in_current_folder()
    for directory in map(Path, directories):
        if not directory.is_dir():
            raise UserError(f"the plugin folder {directory} does not exist")
        compat.install_import_hook()
        for path in sorted(directory.glob("*.py")):
            if not path.name.startswith("__"):
                load_file(path.resolve())


@contextlib.contextmanager
def stage_variables(variables: Mapping[str, object]) -> Iterator[None]:
    """Sets `explorer.env_vars` of a stage for the block: users' files may read them at import."""
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


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
    """Describes an error with the innermost line of a user's file that led to it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith(_OURS) and "importlib" not in frame.filename
    ]
    where = f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
    return f"{where}{type(error).__name__}: {error}{_advice_on_package(error)}"


def _advice_on_package(error: BaseException) -> str:
    """Returns what to do about a package of others that is missing; empty for other errors."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not package or package == "trinity":
        return ""
    return f": install the package that has `{package}` where `trinity` and the explorer run"


def _file(module: ModuleType) -> str:
    return str(module.__file__ or module.__name__)


WORKFLOWS: "Registry[type[Workflow]]" = Registry("workflow", WORKFLOW_PATHS, UNSUPPORTED_WORKFLOWS)
REWARDS: "Registry[RewardSource]" = Registry("reward", REWARD_PATHS, UNSUPPORTED_REWARDS)
