"""Checks the files of agent loops and tools that a taskset names, without importing veRL."""

import ast
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from trinity.config.checks.data import sample_rows
from trinity.config.plan.parts import ResolvedTaskset
from trinity.errors import UserError
from trinity.plugins import plugin_dirs_from_environment
from trinity.user_code.columns import optional_column

WORKFLOW = "verl_agent_workflow"
TOOL_LOOP = "tool_agent"
"""The only loop of veRL that reads `multi_turn.format`."""
_LOOPS = "verl.experimental.agent_loop"
_REGISTERED = re.compile(r"^@register\(\s*[\"']([\w-]+)[\"']", re.MULTILINE)
_PARSERS = re.compile(r"^@ToolParser\.register\(\s*[\"']([\w-]+)[\"']", re.MULTILINE)


def check_agents(taskset: ResolvedTaskset) -> None:
    """Checks files, the classes that they name, and the loops that the first rows name.

    Raises: UserError for the first thing that no run would find.
    """
    if taskset.workflow != WORKFLOW:
        return
    from trinity.workflows.verl_agents import AGENT, MULTI_TURN, read_section

    tools = read_section(taskset.workflow_args, "multi_turn", MULTI_TURN)
    agent = read_section(taskset.workflow_args, "agent", AGENT)
    sources: list[Path] = []
    if file := _named_file(tools, "multi_turn.tool_config_path"):
        sources += _check_tools(file)
    if file := _named_file(tools, "multi_turn.function_tool_path"):
        _parsed(file)
        sources.append(file)
    own: set[str] = set()
    if file := _named_file(agent, "agent.agent_loop_config_path"):
        for name, places in _check_loops(file):
            own.add(name)
            sources += places
    default = str(agent["default_agent_loop"])
    used = _used_loops(taskset, default)
    _check_names(used, own)
    if TOOL_LOOP in (used or [default]):
        _check_format(str(tools["format"]), sources)


def _named_file(section: dict[str, Any], key: str) -> Path | None:
    """Returns a file that a section names: searched here, then next to veRL's package."""
    named = section[key.partition(".")[2]]
    if not named:
        return None
    package = _package_folder("verl")
    places = [Path.cwd(), *([package.parent, package] if package else [])]
    found = next((place / str(named) for place in places if (place / str(named)).is_file()), None)
    if found is None:
        raise UserError(f"`{key}: {named}` is no file, from {Path.cwd()} on: correct it")
    return found


def _check_format(name: str, sources: Iterable[Path]) -> None:
    """Checks a format of tool calls, unless one of the user's files may register it."""
    known = _names_in_verl(_PARSERS)
    loaded = sys.modules.get(f"{_LOOPS}.tool_parser")
    registered = set(loaded.ToolParser._registry) if loaded is not None else set()  # noqa: SLF001
    if not known or name in known | registered:
        return
    if any("ToolParser" in file.read_text(encoding="utf-8") for file in sources):
        return
    raise UserError(
        f"`multi_turn.format: {name}` is none of veRL's formats of tool calls: give "
        f"{', '.join(sorted(known | registered))}"
    )


def _check_tools(file: Path) -> Iterator[Path]:
    """Checks the classes of a file of tools; yields the files that hold them."""
    entries = _yaml(file)
    listed = entries.get("tools") if isinstance(entries, dict) else None
    if not isinstance(listed, list):
        raise UserError(
            f"{file} has no list `tools`: write a `class_name`, `config` and schema each"
        )
    for number, entry in enumerate(listed):
        where = f"{file}, tools[{number}]"
        named = entry.get("class_name") if isinstance(entry, dict) else None
        config = entry.get("config") if isinstance(entry, dict) else None
        if not isinstance(named, str) or not isinstance(config, dict):
            raise UserError(f"{where} has no `class_name` or no `config`: write both")
        if config.get("type") != "native":
            raise UserError(
                f"{where}: `config.type: {config.get('type')}` is none that veRL's loops run: they "
                "run `native`"
            )
        yield from _check_class(named, where)


def _check_loops(file: Path) -> Iterator[tuple[str, list[Path]]]:
    """Checks the classes of a file of loops; yields names with the files that hold them."""
    entries = _yaml(file)
    if not isinstance(entries, list):
        raise UserError(f"{file} is no list of loops: write a `name` and a `_target_` each")
    for number, entry in enumerate(entries):
        where = f"{file}, entry {number}"
        if not isinstance(entry, dict) or not {"name", "_target_"} <= entry.keys():
            raise UserError(f"{where} has no `name` or no `_target_`: write both")
        yield str(entry["name"]), _check_class(str(entry["_target_"]), where)


def _used_loops(taskset: ResolvedTaskset, default: str) -> list[str]:
    """Returns the loops of the first rows; empty if the rows are not known here."""
    rows = () if taskset.task_pipeline is not None else sample_rows(taskset)
    names = (str(optional_column(row, "agent_name") or default) for row in rows)
    return list(dict.fromkeys(names))


def _check_names(used: Iterable[str], own: set[str]) -> None:
    known = own | _registered_loops()
    if not known - own:  # veRL is not here, and explorers may run elsewhere
        return
    for name in used:
        if name not in known:
            raise UserError(
                f"there is no agent loop {name!r}, which a row (`agent_name`) or "
                f"`agent.default_agent_loop` names: there are {', '.join(sorted(known))}; give "
                "your own in `agent.agent_loop_config_path`"
            )


def _registered_loops() -> set[str]:
    """Returns the names of veRL loops and of loops registered by plugins."""
    loaded = sys.modules.get(f"{_LOOPS}.agent_loop")
    names = set(loaded._agent_loop_registry) if loaded is not None else set()  # noqa: SLF001
    return names | _names_in_verl(_REGISTERED)


def _names_in_verl(pattern: re.Pattern[str]) -> set[str]:
    package = _package_folder("verl")
    files = package.glob("experimental/agent_loop/*.py") if package else ()
    return {name for file in files for name in pattern.findall(file.read_text(encoding="utf-8"))}


def _check_class(dotted: str, where: str) -> list[Path]:
    """Returns the files that may hold a class.

    Raises: UserError if no module of this name is found, or the class is missing.
    """
    module, _, name = dotted.rpartition(".")
    if not module:
        raise UserError(f"{where}: `{dotted}` names no module: write it as my_file.{dotted}")
    first, *rest = module.split(".")
    folders = [Path.cwd(), *plugin_dirs_from_environment()]
    found = [_below(folder, [first, *rest]) for folder in folders]
    found += [_below(package, rest) for package in _package_folders(first)]
    places = [place for place in found if place is not None]
    if not places:
        if _is_importable(first) and not rest:
            return []
        file = f"{first}/{'/'.join(rest)}.py" if rest else f"{first}.py"
        raise UserError(
            f"{where}: there is no module {module} among Python's packages, in the current folder "
            f"or in plugin folders: put the file with {name} there, as {file}"
        )
    files = [place for place in places if place.suffix == ".py"]
    if len(files) == len(places) and not any(_may_define(file, name) for file in files):
        raise UserError(f"{where}: {files[0]} defines no {name}: correct `{dotted}`")
    return files


def _below(folder: Path, parts: list[str]) -> Path | None:
    """Returns the file of a module, or the folder of one that is no Python source."""
    place = folder.joinpath(*parts)
    options = (place.with_name(f"{place.name}.py") if parts else place, place / "__init__.py")
    if (found := next((file for file in options if file.is_file()), None)) is not None:
        return found
    return place if place.is_dir() or any(place.parent.glob(f"{place.name}.*.so")) else None


def _package_folders(name: str) -> list[Path]:
    """Returns the folders of an installed package, without importing it."""
    spec = importlib.util.find_spec(name) if _is_importable(name) else None
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def _package_folder(name: str) -> Path | None:
    return next(iter(_package_folders(name)), None)


def _is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # imported by other means, without a specification
        return False


def _may_define(file: Path, name: str) -> bool:
    """Returns true if a module defines or imports a name, or may take it from elsewhere."""
    return not {name, "*", "__getattr__"}.isdisjoint(_defined(file))


def _defined(file: Path) -> set[str]:
    """Returns the names that a module defines or imports at its top, or anywhere below a branch."""
    names: set[str] = set()
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    except (OSError, ValueError, SyntaxError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UserError(f"{file}{line} cannot be read as Python: {error}") from error


def _yaml(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{file} cannot be read as YAML: {' '.join(str(error).split())}") from error
