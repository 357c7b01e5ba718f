"""Finds the functions of a copy of veRL that no version of veRL has, among those that train.

Functions are compared by their syntax trees without texts that document, types, messages and
statements that only compute metrics, so that a copy may log what it likes.
"""

import ast
import hashlib
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path

from trinity.verl.fork_rewards import tree_of

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
_OF_METRICS = re.compile(
    r"(\w*(metrics?|timing|timer)\w*|logger|logging|warnings|wandb|pbar|progress_bar)$"
)
_READING = re.compile(r"(self\.)?config(\.\w+)*\.get")
_MESSAGES = ("print", "pprint", "log_gpu_memory_usage")
_OF_ESTIMATOR = re.compile(r"compute_(?P<name>\w+?)(_outcome)?(_advantage|_advantage_return)")
_OF_LOSS = re.compile(r"compute_policy_loss_(?P<name>\w+)")
_PLAIN = ("vanilla", "dual_clip", "None")
_CHOICES = ("adv_estimator", "loss_agg_mode", "loss_mode", "kl_penalty")
_NAMES = frozenset(
    (
        "gae",
        "grpo",
        "grpo_vectorized",
        "grpo_passk",
        "rloo",
        "rloo_vectorized",
        "reinforce_plus_plus",
        "remax",
        "opo",
        "gpg",
        "reinforce_plus_plus_baseline",
        "gdpo",
        "optimal_token_baseline",
        "tir_optimal_token_baseline",
        "vanilla",
        "token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
        "kl",
        "mse",
        "abs",
        "k1",
        "k2",
        "k3",
        "low_var_kl",
        "full",
    )
)
"""Names that some version of veRL compares with one of these choices."""
ValueOf = Callable[[str], object]


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
    node: ast.FunctionDef = field(repr=False)
    known: frozenset[str] = field(repr=False)
    """The ids of veRL's versions."""

    def acts_as_verls(self, value_of: ValueOf) -> bool:
        """True if it is veRL's without the branches that a script leaves by keys of the copy."""
        return _id_of(_Decided(value_of).visit(deepcopy(self.node))) in self.known

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
        for name, node in _functions(tree_of(folder / file).body, ""):
            short = name.rpartition(".")[2]
            ids = known.get((Path(file).name, name))
            if ids is None or _WITHOUT_EFFECT.match(short) or _id_of(deepcopy(node)) in ids:
                continue
            found.append(OwnFunction(short, f"{file}:{node.lineno}", node, ids))
    return tuple(found)


def functions_that_act(
    folder: Path, estimator: str, loss: str, value_of: ValueOf
) -> list[OwnFunction]:
    """The changed functions that run with an estimator and a loss.

    `value_of` gives the value of the copy's own key that ends so; it raises KeyError for others.
    """
    return [
        own
        for own in own_functions(folder)
        if _acts(own.name, estimator, loss) and not own.acts_as_verls(value_of)
    ]


def _acts(name: str, estimator: str, loss: str) -> bool:
    if name == "compute_advantage":
        return True
    if found := _OF_ESTIMATOR.match(name):
        return found["name"] == estimator
    if found := _OF_LOSS.match(name):
        return found["name"] == loss or (found["name"] in _PLAIN and loss == "vanilla")
    return name != "compute_value_loss" or estimator == "gae"


def functions_of(text: str) -> dict[str, str]:
    """The ids of a file's functions by name; empty if it cannot be parsed."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return {name: _id_of(node) for name, node in _functions(tree.body, "")}


def _functions(nodes: list[ast.stmt], above: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{above}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{above}{node.name}", node


class _Decided(ast.NodeTransformer):
    """Leaves out branches that the copy has added and that the script does not enter."""

    def __init__(self, value_of: ValueOf) -> None:
        self._value_of = value_of

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        decided = self._decide(node.test)
        if decided is None:
            return node
        return (node.body if decided else node.orelse) or ast.Pass()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.body = [each for each in node.body if not isinstance(each, ast.Pass)]
        return node

    def _decide(self, test: ast.expr) -> bool | None:
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                decided = self._decide(inner)
                return None if decided is None else not decided
            case ast.BoolOp(op=op, values=values):
                ends = isinstance(op, ast.Or)
                return ends if ends in map(self._decide, values) else None
            case ast.Compare(
                left=ast.Name() | ast.Attribute() as left, ops=[ast.Eq()], comparators=[right]
            ):
                word = ast.unparse(right).rpartition(".")[2].strip("'").lower()
                key = ast.unparse(left).rpartition(".")[2]
                return self._is(key, word) if key in _CHOICES and word not in _NAMES else None
            case ast.Attribute() | ast.Call(func=ast.Attribute(attr="get")):
                key = _key(test)
                return self._is(key, None) if "." in key else None
        return None

    def _is(self, key: str, word: str | None) -> bool | None:
        try:
            value = self._value_of(key)
        except KeyError:
            return None
        return bool(value) if word is None else str(value) == word


def _key(node: ast.expr) -> str:
    """`trainer.save_only` of `self.config.trainer.save_only` or of `get`; empty for others."""
    match node:
        case ast.Call(func=ast.Attribute(value=above), args=[ast.Constant(value=str(name)), *_]):
            text = f"{ast.unparse(above)}.{name}"
        case _:
            text = ast.unparse(node)
    found = re.fullmatch(r"(?:self\.)?config((?:\.\w+)+)", text)
    return found[1] if found else ""


def _id_of(node: ast.FunctionDef) -> str:
    plain = ast.unparse(_Normalized().visit(node))
    return hashlib.sha256(plain.encode()).hexdigest()[:_ID_DIGITS]


class _Normalized(ast.NodeTransformer):
    """Leaves out all that does not decide what a function computes."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns, node.decorator_list = None, []
        self.generic_visit(node)
        while _leave_out_unread(node):
            pass
        _leave_out_unused(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) or _is_message(node.value):
            return None
        return None if _is_without_effect(node.value) else self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        del node

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        del node
        return ast.Raise()  # its text only tells the user what went wrong

    def visit_BinOp(self, node: ast.BinOp) -> ast.BinOp:
        if isinstance(node.op, ast.Sub) and ast.unparse(node.right).startswith("kl_loss *"):
            node.op = ast.Add()  # `subtracts_kl` tells the two apart
        self.generic_visit(node)
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.keyword | None:
        if node.arg == "config" and ast.unparse(node.value).startswith(("self.config", "config")):
            return None  # the function that is called decides by it
        self.generic_visit(node)
        return node

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


def _leave_out_unread(node: ast.FunctionDef) -> bool:
    """Leaves out values that no line reads and that are computed without effect; True if some."""
    collected = {id(_collecting(each)) for each in ast.walk(node)}
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    read = {
        each.id for each in names if isinstance(each.ctx, ast.Load) and id(each) not in collected
    }
    is_changed = False
    for above in ast.walk(node):
        for field_name in ("body", "orelse"):
            lines = getattr(above, field_name, None)
            if isinstance(lines, list) and isinstance(above, ast.stmt):
                kept = [line for line in lines if not _is_unread(line, read)]
                is_changed |= len(kept) < len(lines)
                needs_one = field_name == "body" and not isinstance(above, ast.FunctionDef)
                setattr(above, field_name, kept or ([ast.Pass()] if needs_one else []))
    return is_changed


def _collecting(node: ast.AST) -> ast.Name | None:
    """The list that a line adds to."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name() as name, attr=attr))):
            return name if attr in ("append", "extend") else None
    return None


def _is_unread(line: ast.stmt, read: set[str]) -> bool:
    """True for an assignment to such a name, or for a line that adds to one."""
    if (collected := _collecting(line)) is not None:
        return collected.id not in read
    if isinstance(line, ast.For | ast.If) and not line.orelse:
        asked = line.iter if isinstance(line, ast.For) else line.test
        return all(isinstance(each, ast.Pass) for each in line.body) and _is_pure(asked)
    if isinstance(line, ast.Import | ast.ImportFrom):
        return all((each.asname or each.name).partition(".")[0] not in read for each in line.names)
    if not isinstance(line, ast.Assign) or not _is_pure(line.value):
        return False
    return all(isinstance(name, ast.Name) and name.id not in read for name in line.targets)


def _is_pure(node: ast.expr) -> bool:
    """True if every call is one of a plain function, or reads a configuration."""
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
    names = (ast.unparse(each.func) for each in calls)
    return all("." not in name or _READING.fullmatch(name) for name in names)


def _leave_out_unused(node: ast.FunctionDef) -> None:
    """Leaves out parameters that have a default and that no line of a function reads."""
    read = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    given = node.args
    while given.defaults and given.args[-1].arg not in read:
        given.args.pop()
        given.defaults.pop()


def subtracts_kl(folder: Path) -> bool:
    """True for an actor that subtracts the KL loss, as veRL did until February 2025."""
    actor = folder / FILES[-1]
    return actor.is_file() and "policy_loss - kl_loss *" in ast.unparse(tree_of(actor))


def _is_without_effect(node: ast.expr) -> bool:
    """True for a call of a method that saves, logs or evaluates."""
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).startswith("self._")
        and _WITHOUT_EFFECT.match(ast.unparse(node.func).removeprefix("self.")) is not None
    )


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


@cache
def _ids_of_verl() -> dict[tuple[str, str], frozenset[str]]:
    """Ids of all versions by file and function: `core_algos.py agg_loss 1a2b3c4d`."""
    text = files("trinity.verl").joinpath("function_ids.txt").read_text(encoding="ascii")
    rows = (line.split() for line in text.splitlines())
    return {(file, name): frozenset(ids) for file, name, *ids in rows}
