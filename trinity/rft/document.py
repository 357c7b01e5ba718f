"""Writes the tables of workflows and rewards in docs/workflows.md from the code.

python -m trinity.rft.document docs/workflows.md [--check]
"""

import inspect
import json
import sys
from collections.abc import Iterator

from trinity.plugins import REWARD_PATHS, REWARDS, WORKFLOW_PATHS, WORKFLOWS
from trinity.rft.import_hook import RENAMED
from trinity.runtime.doc_tables import fill_tables, write_page


def main() -> None:
    """Writes the tables, or with --check reports that they do not match the code."""
    write_page("Workflows and rewards, as Markdown.", render_page)


def render_page(text: str) -> str:
    """Returns the page with tables generated from the code."""
    tables = {
        "workflows": _workflows,
        "rewards": _rewards,
        "absent workflows": _absent,
        "imports": _imports,
    }
    return fill_tables(text, lambda name: tables[name]())


def _workflows() -> Iterator[str]:
    yield "| Name | What it does | `workflow_args` |"
    yield "| --- | --- | --- |"
    for name in WORKFLOW_PATHS:
        if name.startswith("async_"):
            continue
        workflow = WORKFLOWS.get(name)
        yield f"| {_names(name)} | {_description(workflow)} | {_arguments_of(name)} |"


def _names(name: str) -> str:
    both = [name, f"async_{name}"] if f"async_{name}" in WORKFLOW_PATHS else [name]
    return ", ".join(f"`{variant}`" for variant in both)


def _arguments_of(name: str) -> str:
    workflow = WORKFLOWS.get(name)
    usual = dict(workflow.usual_args)
    known = [*usual, *sorted((workflow.known_args or frozenset()) - usual.keys())]
    return ", ".join(_argument(key, json.dumps(usual.get(key, ""))) for key in known)


def _rewards() -> Iterator[str]:
    yield "| Name | What it gives | `reward_fn_args` |"
    yield "| --- | --- | --- |"
    for name in REWARD_PATHS:
        reward = REWARDS.get(name)
        assert isinstance(reward, type)
        parameters = inspect.signature(reward).parameters.values()
        named = [p for p in parameters if p.kind is not p.VAR_KEYWORD and _is_of_file(p)]
        arguments = ", ".join(_argument(p.name, json.dumps(p.default)) for p in named)
        yield f"| `{name}` | {_description(reward)} | {arguments} |"


def _is_of_file(parameter: inspect.Parameter) -> bool:
    """True for an argument that a file can give, which a function is not."""
    return "Callable" not in str(parameter.annotation)


def _absent() -> Iterator[str]:
    yield "| Name | Why, and what to do instead |"
    yield "| --- | --- |"
    for name, absent in WORKFLOWS.absent.items():
        if name not in WORKFLOW_PATHS:
            yield f"| `{name}` | {absent.why} |"


def _imports() -> Iterator[str]:
    yield "| Name | What is given |"
    yield "| --- | --- |"
    for name, path in RENAMED.items():
        yield f"| `{name}` | `{path}` |"


def _argument(name: str, usual: str) -> str:
    shown = usual.replace("|", "\\|")
    return f"`{name}` `{shown}`"


def _description(part: type) -> str:
    """Returns the first paragraph of the module's docstring, followed by the class's docstring."""
    first = (sys.modules[part.__module__].__doc__ or "").strip().split("\n\n")[0]
    rest = " ".join(inspect.cleandoc(part.__doc__ or "").split())
    return f"{' '.join(first.split())} {rest}".replace("|", "\\|")


if __name__ == "__main__":
    main()
