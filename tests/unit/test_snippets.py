"""Every snippet of every page is read by what it is meant for: Python, the schema, the parser.

A block says its language, and each language has a reader here. What needs a GPU, a hub or a cluster
is read and not run: `NOT_RUN` lists the programs. Decisions are left out: they are not typed.
"""

import ast
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
import yaml
from pydantic import JsonValue
from typer.core import TyperGroup

from tests.unit.subtests import as_subtests
from trinity.cli.main import make_app
from trinity.config.check import check_file
from trinity.config.docs.catalog import all_keys
from trinity.config.schema.base import KeyStatus
from trinity.plugins import REWARDS, WORKFLOWS

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?:    \S.*\n)+")
SHELL, PRINTED = ("sh", "console"), ("text",)
LANGUAGES = ("python", "yaml", "json", *SHELL, *PRINTED)
NOT_RUN = {
    "git": "a network",
    "hf": "the hub",
    "curl": "a model that is served",
    "docker": "a container engine",
    "kubectl": "a cluster",
    "nomad": "a cluster",
    "sbatch": "a cluster: `make check-slurm`",
    "scancel": "a cluster: `make check-slurm`",
    "scontrol": "a cluster: `make check-slurm`",
    "jupyter": "a browser",
    "npm": "a registry",
    "node": "Node, whose client `tests/integration` runs where it is there",
    "pip": "a package index: `make check-wheel` types the lines of installation",
    "data-juicer/bin/pip": "a package index: `make check-data-juicer`",
    "psql": "Postgres' own client",
    "trinity-synchronizer": "a database: `tests/integration/deploy` runs it",
    "trinity-buffer": "a database: `tests/integration/deploy` runs it",
}
"""Programs of commands that are looked at and not run, with what they need."""
OF_THE_SHELL = ("cd", "export", "mkdir", "tail", "tee", "source", ".", "#", "cat", "cp")
DECLARED = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
OTHER_FILES = ("apiVersion", "services", "scrape_configs", "tools", "process", "resources")
"""First keys of files that are not ours: Kubernetes, compose, Prometheus, veRL, Data-Juicer."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block between fences; a title is the name of the file that it is."""

    page: str
    language: str
    text: str
    line: int
    title: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def snippets() -> Iterator[Snippet]:
    for page in PAGES:
        text = page.read_text()
        name = str(page.relative_to(ROOT))
        for found in FENCE.finditer(text):
            language, _, title = found[1].partition(" ")
            line = text.count("\n", 0, found.start()) + 1
            yield Snippet(name, language, found[2], line, title.removeprefix("title=").strip('"'))
        if page.parent.parent.name == "examples":
            for found in INDENTED.finditer(FENCE.sub("", text)):
                yield Snippet(name, "sh", found[0], 0)


ALL = list(snippets())
PYTHON = [snippet for snippet in ALL if snippet.language == "python"]
YAML = [snippet for snippet in ALL if snippet.language == "yaml" and not snippet.title]
FILES = [snippet for snippet in ALL if snippet.title]


def typed(snippet: Snippet) -> Iterator[str]:
    """The lines of a shell's block that are typed."""
    for line in snippet.text.replace("\\\n", " ").splitlines():
        if snippet.language == "sh" or line.startswith("$ "):
            yield line.strip().removeprefix("$ ")


def commands() -> Iterator[tuple[str, str]]:
    """Each command line of the shell's blocks, and of texts in backquotes that begin as one."""
    for snippet in ALL:
        if snippet.language in SHELL:
            for line in typed(snippet):
                yield str(snippet), line
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


KEYS = {key.plain_path for key in all_keys() if key.status is KeyStatus.ACTS}
BEGINNINGS = {path[:end] for path in KEYS for end, sign in enumerate(path) if sign == "."} | KEYS
PLACES = ("", "buffer.explorer_input")
"""Sections whose keys the pages show without them."""
WHOLE: dict[str, JsonValue] = {
    **yaml.safe_load(YAML[0].text),
    "cluster": {"node_num": 1, "gpu_per_node": 0},
}
"""The file of the README, which snippets are laid over; on processors, as they count no GPUs."""
WHOLE["buffer"]["explorer_input"]["eval_tasksets"] = [  # type: ignore[index,call-overload]
    {"name": "test", "path": "test.jsonl", "format": {"prompt_key": "q", "response_key": "a"}}
]


def laid_over(base: JsonValue, snippet: JsonValue) -> JsonValue:
    if not isinstance(base, dict) or not isinstance(snippet, dict):
        return snippet
    return {**base, **{name: laid_over(base.get(name), snippet[name]) for name in snippet}}


def checked(document: dict[str, JsonValue], folder: Path) -> list[str]:
    """The errors of a file that has a snippet in its place, and its keys that do not act."""
    for place in PLACES:
        if all(f"{place}.{name}".removeprefix(".") in BEGINNINGS for name in document):
            break
    else:
        return [f"no section has all of {', '.join(document)}"]
    tree: JsonValue = document
    for section in reversed(place.split(".") if place else []):
        tree = {section: tree}
    file = folder / "shown.yaml"
    file.write_text(yaml.safe_dump(laid_over(WHOLE, tree)))
    report = check_file(file)
    return [*report.errors, *map(str, report.notices)]


@pytest.mark.parametrize("snippet", YAML, ids=str)
def test_yaml_is_right_in_a_whole_file(snippet: Snippet, tmp_path: Path) -> None:
    for document in yaml.safe_load_all(snippet.text):
        if not set(document) & set(OTHER_FILES):
            assert checked(document, tmp_path) == []


@pytest.mark.parametrize("page", sorted({file.page for file in FILES}))
def test_the_files_of_a_page_pass_the_check_together(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    files = [file for file in FILES if file.page == page]
    for file in files:
        Path(file.title).write_text(file.text)
    for file in files:
        if file.language == "yaml":
            report = check_file(Path(file.title))
            assert [*report.errors, *map(str, report.notices)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"algorithm": {"algorithm_typ": "grpo"}},
        {"algorithm": {"optimizer": {"lr": "fast"}}},
        {"default_reward_fn": "math_reward"},
        {"buffer": {"default_reward_fn_type": "math_reward"}},
        {"algorithm": {"advantage_fn": "gpro"}},
    ],
    ids=str,
)
def test_wrong_yaml_would_be_noticed(wrong: dict[str, JsonValue], tmp_path: Path) -> None:
    assert checked(wrong, tmp_path)


def unread(snippet: Snippet) -> str:
    """Why nothing reads a block; empty if something does."""
    if snippet.language not in LANGUAGES:
        return f"`{snippet.language}` has no reader: {', '.join(LANGUAGES)} have one"
    if snippet.language in PRINTED and re.search(r"^(\$ |trinity )", snippet.text, re.MULTILINE):
        return "it has commands: `console` reads them"
    if snippet.language == "console" and not list(typed(snippet)):
        return "it has no command: `text` is for what is printed"
    return ""


@as_subtests("snippet", ALL)
def test_a_block_is_read_by_something(snippet: Snippet) -> None:
    assert unread(snippet) == ""
    if snippet.language == "json":
        json.loads(snippet.text)


def test_a_block_that_nothing_reads_would_be_noticed() -> None:
    for language, text in (("", "x"), ("rust", "x"), ("text", "$ ls\n"), ("console", "said\n")):
        assert unread(Snippet("page", language, text, 1))


def programs(line: str) -> Iterator[list[str]]:
    """The commands of a line, without variables and words of the shell before them."""
    words = shlex.shlex(re.sub(r"\$\([^)]*\)", "x", line), posix=True, punctuation_chars=";&|<>")
    words.whitespace_split = True
    command: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set(";&|"):
            if command:
                yield command
            command = []
        elif command or not (re.match(r"\w+=", word) or word in ("do", "done", "for", "...")):
            command.append(word)


def unknown(command: list[str]) -> str:
    """Why a command cannot be typed; empty if it can, or is on the list."""
    program, *words = command
    name = program.removeprefix(".venv/bin/")
    if name == "make":
        targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return ", ".join({word for word in words if "=" not in word} - {*targets})
    if re.fullmatch(r"python3?|.*/bin/python", name):
        module = words[words.index("-m") + 1] if "-m" in words else "venv"
        return "" if importlib.util.find_spec(module) else f"no module {module}"
    if name == "pytest":
        return ", ".join(word for word in words if "/" in word and not (ROOT / word).exists())
    known = {"trinity", *NOT_RUN, *OF_THE_SHELL}
    return "" if name in known else f"{name} is neither ours nor on the list"


SHELL_LINES = sorted(
    {(str(block), line) for block in ALL if block.language in SHELL for line in typed(block)}
)


@as_subtests(("place", "line"), SHELL_LINES)
def test_a_line_of_the_shell_is_ours_or_on_the_list(place: str, line: str) -> None:
    try:
        found = list(programs(re.sub(r"\s+#.*", "", line)))
    except ValueError:
        pytest.skip("half a command")
    reasons = [unknown(command) for command in found if not re.match(r"\w+ in ", " ".join(command))]
    assert [reason for reason in reasons if reason] == [], f"{place}: {line}"


def test_a_wrong_line_would_be_noticed() -> None:
    for line in (
        "make no-such-target",
        "python -m benchmarks.nowhere",
        "trinty run",
        "ls | trl sft",
    ):
        assert any(map(unknown, programs(line))), line


@as_subtests(("place", "line"), COMMANDS)
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
