"""Finds the functions of a copy of veRL that no version of veRL has, among those that train.

Functions are compared by their syntax trees without texts that document, types, messages and
statements that only compute metrics, so that a copy may log what it likes.
"""

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

FILES = (
    "verl/trainer/ppo/core_algos.py",
    "verl/trainer/ppo/ray_trainer.py",
    "verl/workers/actor/dp_actor.py",
)
"""Files with veRL's loop, advantages and losses."""
_ID_DIGITS = 8
_WITHOUT_EFFECT = re.compile(
    r"_?(validate|maybe_log|dump|log|init_logger|save|load|report|print|count|monitor|timer)"
    r"|.*(metrics?|statistics|distribution|checkpoint)(_|$)|(init_workers|__init__|__post_init__)$"
)
"""Names of functions that evaluate, log, save or build, and so do not decide an update."""
_OF_METRICS = re.compile(r"(\w*(metrics?|timing|timer)\w*|logger|logging|warnings|wandb|pbar)$")
_MESSAGES = ("print", "pprint", "log_gpu_memory_usage")
_OF_ESTIMATOR = re.compile(r"compute_(?P<name>\w+?)(_outcome)?(_advantage|_advantage_return)")
_OF_LOSS = re.compile(r"compute_policy_loss_(?P<name>\w+)")
_PLAIN = ("vanilla", "dual_clip", "None")


_COUNTERPARTS = (
    (_OF_LOSS, "`algorithm.policy_loss_fn`"),
    (re.compile(r"compute_policy_loss|agg_loss"), "`algorithm.policy_loss_fn`"),
    (re.compile(r".*kl_penalty"), "`algorithm.kl_penalty_fn`"),
    (re.compile(r"compute_\w*advantage\w*"), "`algorithm.advantage_fn`"),
    (re.compile(r"_create_dataloader"), "the taskset's `data_selector`"),
    (re.compile(r"fit"), "operators and the workflow"),
)
"""Functions, each with the part here at their place."""


@dataclass(frozen=True, slots=True)
class OwnFunction:
    """A function that differs from every version in veRL."""

    name: str
    where: str
    """`verl/trainer/ppo/core_algos.py:210`."""

    @property
    def text(self) -> str:
        """The function, and the part here that is used for it."""
        found = (part for names, part in _COUNTERPARTS if names.fullmatch(self.name))
        return (
            f"`{self.name}` ({self.where}): here it is {next(found, 'the update of the trainer')}"
        )


@cache
def own_functions(folder: Path) -> tuple[OwnFunction, ...]:
    """veRL's functions that a copy has changed, as far as they decide an update."""
    known = _ids_of_verl()
    found: list[OwnFunction] = []
    for file in FILES:
        for name, (line, number) in functions_of(_text(folder / file)).items():
            short = name.rpartition(".")[2]
            ids = known.get((Path(file).name, name))
            if ids is not None and number not in ids and not _WITHOUT_EFFECT.match(short):
                found.append(OwnFunction(short, f"{file}:{line}"))
    return tuple(found)


def functions_that_act(folder: Path, estimator: str, loss: str) -> list[OwnFunction]:
    """The changed functions that run with an estimator and a loss."""
    return [own for own in own_functions(folder) if _acts(own.name, estimator, loss)]


def _acts(name: str, estimator: str, loss: str) -> bool:
    if name == "compute_advantage":
        return True
    if found := _OF_ESTIMATOR.match(name):
        return found["name"] == estimator
    if found := _OF_LOSS.match(name):
        return found["name"] == loss or (found["name"] in _PLAIN and loss == "vanilla")
    return name != "compute_value_loss" or estimator == "gae"


def functions_of(text: str) -> dict[str, tuple[int, str]]:
    """The functions of a file by name, with their lines and ids; empty if it cannot be parsed."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return {name: (node.lineno, _id_of(node)) for name, node in _functions(tree.body, "")}


def _functions(nodes: list[ast.stmt], above: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{above}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{above}{node.name}", node


def _id_of(node: ast.FunctionDef) -> str:
    plain = ast.unparse(_Normalized().visit(node))
    return hashlib.sha256(plain.encode()).hexdigest()[:_ID_DIGITS]


class _Normalized(ast.NodeTransformer):
    """Leaves out all that does not decide what a function computes."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns, node.decorator_list = None, []
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) or _is_message(node.value):
            return None
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        return None if all(map(_is_metric, node.targets)) else self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | None:
        return None if _is_metric(node.target) else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None or _is_metric(node.target):
            return None
        return self.generic_visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_If(self, node: ast.If) -> ast.AST | None:
        self.generic_visit(node)
        if not node.body and not node.orelse:
            return None
        node.body = node.body or [ast.Pass()]
        return node

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if all(_is_message(item.context_expr) for item in node.items):
            return node.body
        node.body = node.body or [ast.Pass()]
        return node

    def visit_For(self, node: ast.For) -> ast.AST | None:
        self.generic_visit(node)
        return node if node.body else None


def _is_message(node: ast.expr) -> bool:
    """True for a call that prints, logs, times or adds to metrics."""
    if not isinstance(node, ast.Call):
        return False
    first = ast.unparse(node.func).removeprefix("self.").partition(".")[0]
    return first in _MESSAGES or _OF_METRICS.match(first) is not None


def _is_metric(node: ast.expr) -> bool:
    """True for a variable that holds metrics, or an entry of one."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Tuple):
        return all(map(_is_metric, node.elts))
    return isinstance(node, ast.Name) and _OF_METRICS.match(node.id) is not None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


@cache
def _ids_of_verl() -> dict[tuple[str, str], frozenset[str]]:
    """Ids of all versions by file and function: `core_algos.py agg_loss 1a2b3c4d`."""
    text = files("trinity.verl").joinpath("function_ids.txt").read_text(encoding="ascii")
    rows = (line.split() for line in text.splitlines())
    return {(file, name): frozenset(ids) for file, name, *ids in rows}
