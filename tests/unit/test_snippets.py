"""Every snippet of every page is read by what it is meant for: Python, the schema, the parser."""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
import yaml
from typer.core import TyperGroup

from trinity.cli.main import make_app
from trinity.config.docs.catalog import all_keys
from trinity.plugins import REWARDS, WORKFLOWS

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
DECLARED = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
OTHER_FILES = ("apiVersion", "services", "scrape_configs", "tools", "process", "resources")
"""First keys of files that are not ours: Kubernetes, compose, Prometheus, veRL, Data-Juicer."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block between fences."""

    page: str
    language: str
    text: str
    line: int

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def snippets() -> Iterator[Snippet]:
    for page in PAGES:
        text = page.read_text()
        for found in FENCE.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield Snippet(str(page.relative_to(ROOT)), found[1], found[2], line)


ALL = list(snippets())
PYTHON = [snippet for snippet in ALL if snippet.language == "python"]
YAML = [snippet for snippet in ALL if snippet.language == "yaml"]


def commands() -> Iterator[tuple[str, str]]:
    """Each command line of the shell's blocks, and of texts in backquotes that begin as one."""
    for snippet in ALL:
        if snippet.language in ("", "sh", "bash", "console"):
            joined = snippet.text.replace("\\\n", " ")
            for line in joined.splitlines():
                yield str(snippet), line.strip().removeprefix("$ ")
    for page in PAGES:
        plain = FENCE.sub("", page.read_text())
        for found in re.findall(r"`(trinity [^`]*)`", plain):
            yield str(page.relative_to(ROOT)), " ".join(found.split())


COMMANDS = sorted(
    {
        (place, line.partition("   #")[0].partition("  #")[0].strip())
        for place, line in commands()
        if re.match(r"(\S*/)?trinity [a-z-]", line)
    }
)


@pytest.mark.parametrize("page", sorted({snippet.page for snippet in PYTHON}))
def test_python_runs_as_far_as_it_needs_no_service(
    page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Imports, classes and functions are run, in the page's order; the rest must be Python."""
    monkeypatch.chdir(tmp_path)
    for registry in (WORKFLOWS, REWARDS):
        for part in ("_sources", "_made"):
            monkeypatch.setattr(registry, part, {})
    names: dict[str, object] = {"__name__": "snippet"}
    for snippet in (snippet for snippet in PYTHON if snippet.page == page):
        compile(snippet.text, str(snippet), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        runs: list[ast.stmt] = [
            node for node in ast.parse(snippet.text).body if isinstance(node, DECLARED)
        ]
        exec(compile(ast.Module(runs, []), str(snippet), "exec"), names)


KEYS = {key.path for key in all_keys()}
NAMES = {part for path in KEYS for part in re.sub(r"\[\]", "", path).split(".")}


@pytest.mark.parametrize("snippet", YAML, ids=str)
def test_yaml_has_no_key_that_is_not_known(snippet: Snippet) -> None:
    for document in yaml.safe_load_all(snippet.text):
        if isinstance(document, dict) and not set(document) & set(OTHER_FILES):
            assert not [name for name in document if name not in NAMES]


@pytest.mark.parametrize(("place", "line"), COMMANDS)
def test_a_command_has_the_words_and_options_that_it_is_shown_with(place: str, line: str) -> None:
    try:
        words = shlex.split(line.partition(" | ")[0].partition(" > ")[0].partition(" &")[0])[1:]
    except ValueError:
        pytest.skip("half a command")
    words = [word for word in words if word not in ("...", "…")]
    command = typer.main.get_command(make_app(words))
    while isinstance(command, TyperGroup) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    assert not isinstance(command, TyperGroup) or not words or words[0].startswith("-"), words
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"}
    assert given <= known | {"--help"}, f"{place}: {sorted(given - known)}"
