"""Finds the reward manager of a copy of veRL by the code that makes it, without importing it."""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from trinity.verl.fork_code import top_of, words_of

_MAKERS = ("verl/trainer/ppo/reward.py", "verl/trainer/main_ppo.py")
"""Files that make the manager, the newer release's first."""
_MANAGERS = "verl/workers/reward_manager"
_SCORES = "verl/utils/reward_score"
_WHOLE = ("len", "range", "enumerate", "isinstance", "super", "print")
"""Calls that may take the whole batch, as they look at no other answer."""
BESIDE = "../"
"""Begins files of the repository that lie beside the folder with its veRL."""
_GROUPED = ("uid", "index")
"""Columns that tell which answers are of one prompt."""
_ID_DIGITS = 12


@dataclass(frozen=True, slots=True)
class ForkReward:
    """The manager that a copy of veRL makes for a script."""

    place: str
    """Dotted path of the class."""
    where: str
    """`verl/workers/reward_manager/naive.py:12`."""
    arguments: tuple[tuple[str, str], ...]
    """Names and sources of the arguments with which the copy makes it; `**` has no name."""
    files: tuple[tuple[str, str], ...]
    """Files that no version of veRL has, each with its SHA-256."""
    compares: str
    """Says where it looks at other answers than the one that it scores; empty if it does not."""
    reads: dict[str, frozenset[str] | None]
    """The files that it runs with the words that it reads of them; None is all."""


def find_reward(folder: Path, manager: str, program: str) -> ForkReward | None:
    """The manager with this name that a program makes, such as `verl.trainer.main_ppo`.

    None if it is veRL's own, with veRL's rewards, or not found.
    """
    makers = dict.fromkeys((f"{program.replace('.', '/')}.py", *_MAKERS))
    made = next(_calls(folder, makers), None)
    if made is None:
        return None
    maker, call = made
    found = _class_of(folder, maker, call, manager)
    if found is None:
        return None
    file, node = found
    behind = _behind(folder, {file, *({maker} & {*_MAKERS})})
    own = [name for name in behind if not is_verls(folder / name)]
    if not own:
        return None
    reads: dict[str, frozenset[str] | None] = dict.fromkeys(own)
    reads[maker] = frozenset(_words(call)) | (_words(node) if maker == file else frozenset())
    place = f"{file.removesuffix('.py').replace('/', '.')}.{node.name}"
    return ForkReward(
        place=place,
        where=f"{file}:{node.lineno}",
        arguments=tuple((word.arg or "**", ast.unparse(word.value)) for word in call.keywords),
        files=tuple((name, digest(folder / name)) for name in own),
        compares=_comparison(node, file),
        reads=reads,
    )


def _calls(folder: Path, makers: Iterable[str]) -> Iterator[tuple[str, ast.Call]]:
    """Calls with `tokenizer` and `num_examine`, which make managers."""
    for name in makers:
        for node in ast.walk(tree_of(folder / name)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                given = {word.arg for word in node.keywords}
                called = ast.unparse(node.func)
                if {"tokenizer", "num_examine"} <= given and "load_reward_manager" not in called:
                    yield name, node


def _class_of(
    folder: Path, maker: str, call: ast.Call, manager: str
) -> tuple[str, ast.ClassDef] | None:
    """The file and the class that a call makes; a variable's is the one of that name."""
    called = ast.unparse(call.func)
    named = {"", called} | ({_named_in(tree_of(folder / maker), manager)} - {""})
    places = [maker, *sorted(_below(folder, _MANAGERS))]
    for name in places:
        for node in tree_of(folder / name).body:
            if isinstance(node, ast.ClassDef) and (
                node.name in named or manager in _registered(node)
            ):
                return name, node
    return None


def _named_in(tree: ast.Module, manager: str) -> str:
    """The class that `if name == "manager":` imports or assigns; empty without one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and manager in _texts(node.test):
            for inner in node.body:
                if isinstance(inner, ast.ImportFrom):
                    return inner.names[0].name
                if isinstance(inner, ast.Assign):
                    return ast.unparse(inner.value).rpartition(".")[2]
    return ""


def _registered(node: ast.ClassDef) -> list[str]:
    calls = (each for each in node.decorator_list if isinstance(each, ast.Call))
    return [text for call in calls for text in _texts(call)]


def _words(node: ast.AST) -> frozenset[str]:
    return frozenset(word for each in ast.walk(node) for word in words_of(each))


def _texts(node: ast.AST) -> list[str]:
    constants = (each for each in ast.walk(node) if isinstance(each, ast.Constant))
    return [each.value for each in constants if isinstance(each.value, str)]


def _comparison(node: ast.ClassDef, file: str) -> str:
    """The line that passes the whole batch on, or asks which answers are of one prompt."""
    own = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            called = ast.unparse(each.func)
            given = [*each.args, *(word.value for word in each.keywords)]
            is_own = called.removeprefix("self.") in own
            passes = any(isinstance(value, ast.Name) and value.id == "data" for value in given)
            if passes and called not in _WHOLE and not is_own:
                return f"{file}:{each.lineno} gives the whole batch to `{called}`"
        if isinstance(each, ast.Constant) and each.value in _GROUPED:
            return f"{file}:{each.lineno} reads `{each.value}`"
    return ""


def _behind(folder: Path, names: set[str]) -> list[str]:
    """The files, those that they import of the copy and beside it, and all of its rewards."""
    waiting, seen = [*names, *_below(folder, _SCORES)], set[str]()
    is_below = top_of(folder) != folder
    while waiting:
        name = waiting.pop()
        is_outside = name.startswith(BESIDE) and not is_below
        if name in seen or is_outside or not (folder / name).is_file():
            continue
        seen.add(name)
        is_scoring = name.startswith((_SCORES, _MANAGERS)) or not name.startswith("verl/")
        found = _imports(folder, name)
        waiting += (each for each in found if is_scoring or not each.startswith("verl/"))
    return sorted(seen)


def _imports(folder: Path, name: str) -> Iterator[str]:
    above = Path(name).parent
    for node in ast.walk(tree_of(folder / name)):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = [above, *above.parents]
            start = parents[node.level - 1] if 0 < node.level <= len(parents) else Path()
            base = ".".join([*start.parts, *([node.module] if node.module else [])])
            modules = [base, *(f"{base}.{each.name}" for each in node.names)]
        for module in modules:
            path = module.replace(".", "/")
            yield from (f"{path}.py", f"{path}/__init__.py")
            if not path.startswith("verl/"):
                yield from (f"{BESIDE}{path}.py", f"{BESIDE}{path}/__init__.py")


@cache
def _below(folder: Path, name: str) -> list[str]:
    return [str(path.relative_to(folder)) for path in sorted((folder / name).rglob("*.py"))]


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file; an empty one if it is missing or of another Python."""
    try:
        return ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def is_verls(path: Path) -> bool:
    """True if some version of veRL has this file, wherever it lies; empty files count, too."""
    content = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    return not content.strip() or blob[:_ID_DIGITS] in _ids_of_verl()


@cache
def _ids_of_verl() -> frozenset[str]:
    """Git's ids of all versions of the files in which veRL trains and scores."""
    text = files("trinity.verl").joinpath("file_ids.txt").read_text(encoding="ascii")
    return frozenset(text.split())
