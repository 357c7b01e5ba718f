"""Finds an advantage or a loss that a copy of veRL has changed, with all that its code needs.

Nothing of the copy is imported. A function is taken with the arguments that the copy's own trainer
gives to it, as expressions of the configuration.
"""

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trinity.user_code.adopt.checkout import bound_names
from trinity.verl.fork_code import words_of
from trinity.verl.fork_rewards import digest, tree_of

_TRAINER = "verl/trainer/ppo/ray_trainer.py"
_ALGORITHMS = "verl/trainer/ppo/core_algos.py"
_ACTOR = "verl/workers/actor/dp_actor.py"
_TENSORS = {
    "log_prob": "logprob",
    "old_log_prob": "old_logprob",
    "advantages": "advantages",
    "eos_mask": "action_mask",
    "response_mask": "action_mask",
}
"""Parameters of a loss that are tensors, with Trinity-RFT's names."""
COLUMNS = frozenset(
    {
        "advantages",
        "attention_mask",
        "old_log_probs",
        "response_mask",
        "responses",
        "returns",
        "rollout_log_probs",
        "token_level_rewards",
        "token_level_scores",
        "uid",
    }
)
"""Columns of a batch that an advantage may read or write here; of `responses` the shape alone."""
_NOT_LOADED = ("verl/workers/", "verl/single_controller/", "verl/protocol.py", "verl/models/")
"""Parts of a trainer, which become stubs."""
_CONFIG = ast.parse("config", mode="eval").body
_ACTORS_CONFIG = ast.parse("config.actor_rollout_ref.actor", mode="eval").body


@dataclass(frozen=True, slots=True)
class ForkFunction:
    """A function of a copy, and its arguments."""

    file: str
    name: str
    line: int
    keep: dict[str, tuple[str, ...]]
    """The names that it needs of each file."""
    files: dict[str, str]
    """The same files, each with its SHA-256."""
    arguments: dict[str, str]
    """Expressions of `config` by parameter."""
    tensors: dict[str, str]
    """Parameters that take tensors."""
    reads: dict[str, frozenset[str]]
    """The words that the code reads, by file."""

    @property
    def where(self) -> str:
        """`verl/trainer/ppo/core_algos.py:210`."""
        return f"{self.file}:{self.line}"


class NotTaken(Exception):
    """Says why a function cannot be called outside of its trainer."""


def find_advantage(folder: Path, estimator: str) -> ForkFunction:
    """The trainer's `compute_advantage`, for an estimator. Raises: NotTaken."""
    name = "compute_advantage"
    nodes = [each for each in tree_of(folder / _TRAINER).body if name in bound_names(each)]
    if absent := sorted({word for node in nodes for word in _columns(node, estimator)} - COLUMNS):
        raise NotTaken(f"it reads {', '.join(f'`{word}`' for word in absent)} of the batch")
    for above, call in _calls(folder, _TRAINER, (name,)):
        return _found(folder, _TRAINER, name, above, call, _CONFIG)
    raise NotTaken(f"{_TRAINER} calls no `{name}`")


def _columns(node: ast.AST, estimator: str) -> Iterator[str]:
    """The columns of the batch that code reads or writes, in the branch of an estimator."""
    if isinstance(node, ast.If) and "adv_estimator" in ast.unparse(node.test):
        asked = ast.unparse(node.test).lower()
        is_branch = re.search(rf"\b{re.escape(estimator)}\b", asked) is not None
        yield from (
            name
            for each in (node.body if is_branch else node.orelse)
            for name in _columns(each, estimator)
        )
        return
    match node:
        case ast.Subscript(value=value, slice=ast.Constant(value=str(name))) if ast.unparse(
            value
        ).endswith("batch"):
            yield name
        case ast.Call(func=called, args=args, keywords=words):
            given = [*args, *(word.value for word in words)]
            is_whole = any(isinstance(each, ast.Name) and each.id == "data" for each in given)
            if is_whole and not ast.unparse(called).endswith("compute_response_mask"):
                raise NotTaken(f"it gives the whole batch to `{ast.unparse(called)}`")
    for child in ast.iter_child_nodes(node):
        yield from _columns(child, estimator)


def find_loss(folder: Path, mode: str) -> ForkFunction:
    """The policy loss of a mode, `vanilla` for the plain one. Raises: NotTaken."""
    registered = {
        text: node.name
        for node in tree_of(folder / _ALGORITHMS).body
        if isinstance(node, ast.FunctionDef)
        for each in node.decorator_list
        if isinstance(each, ast.Call) and "policy_loss" in ast.unparse(each.func)
        for text in (str(ast.literal_eval(word)) for word in each.args[:1])
    }
    name = registered.get(mode, "compute_policy_loss" if mode == "vanilla" else "")
    called = ("policy_loss_fn", name) if mode in registered else (name,)
    calls = [each for each in _calls(folder, _ACTOR, called) if name]
    if len(calls) != 1:
        raise NotTaken(f"{_ACTOR} calls the loss of `{mode}` in {len(calls)} places")
    return _found(folder, _ALGORITHMS, name, *calls[0], _ACTORS_CONFIG)


def _calls(
    folder: Path, file: str, names: tuple[str, ...]
) -> Iterator[tuple[ast.FunctionDef, ast.Call]]:
    for above in ast.walk(tree_of(folder / file)):
        if isinstance(above, ast.FunctionDef):
            calls = (node for node in ast.walk(above) if isinstance(node, ast.Call))
            for call in calls:
                if ast.unparse(call.func).rpartition(".")[2] in names:
                    yield above, call


def _found(
    folder: Path, file: str, name: str, above: ast.FunctionDef, call: ast.Call, config: ast.expr
) -> ForkFunction:
    nodes = [each for each in tree_of(folder / file).body if name in bound_names(each)]
    if not nodes or not isinstance(node := nodes[-1], ast.FunctionDef):
        raise NotTaken(f"{file} defines no `{name}`")
    parameters = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
    given = dict(zip(parameters, call.args, strict=False))
    given |= {word.arg: word.value for word in call.keywords if word.arg}
    is_advantage = file == _TRAINER
    tensors = {each: _TENSORS[each] for each in given if each in _TENSORS and not is_advantage}
    left = list(given)[1:] if is_advantage else [each for each in given if each not in tensors]
    arguments = {each: _resolved(given[each], above, call.lineno, config) for each in left}
    needs = _Needs(folder)
    needs.add(file, {name})
    caller = _TRAINER if is_advantage else _ACTOR
    read = {word for text in arguments.values() for word in re.findall(r"\w+", text)}
    needs.words.setdefault(caller, set()).update(read)
    return ForkFunction(
        file=file,
        name=name,
        line=node.lineno,
        keep={each: tuple(sorted(names)) for each, names in sorted(needs.names.items())},
        files={each: digest(folder / each) for each in sorted(needs.names)},
        arguments=arguments,
        tensors=tensors,
        reads={each: frozenset(words) for each, words in needs.words.items()},
    )


def _resolved(node: ast.expr, above: ast.FunctionDef, line: int, config: ast.expr) -> str:
    """Writes an argument in terms of `config`, with the caller's variables put in."""
    made = _Resolver(above, line, config).visit(ast.parse(ast.unparse(node), mode="eval").body)
    return ast.unparse(made)


class _Resolver(ast.NodeTransformer):
    def __init__(self, above: ast.FunctionDef, line: int, config: ast.expr) -> None:
        self._above, self._line, self._config = above, line, config

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if ast.unparse(node) == "self.config":
            return self._config
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            raise NotTaken(f"`{self._above.name}` gives it `{ast.unparse(node)}`")
        node.value = self.visit(node.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if hasattr(builtins, node.id):
            return node
        assigned = {
            ast.unparse(each.value): each
            for each in ast.walk(self._above)
            if isinstance(each, ast.Assign) and each.lineno < self._line
            if [ast.unparse(target) for target in each.targets] == [node.id]
        }
        if len(assigned) != 1:
            raise NotTaken(f"`{self._above.name}` computes its argument `{node.id}`")
        [(text, found)] = assigned.items()
        resolver = _Resolver(self._above, found.lineno, self._config)
        made: ast.expr = resolver.visit(ast.parse(text, mode="eval").body)
        return made


@dataclass(slots=True)
class _Needs:
    """The names that code needs, by file of the copy."""

    folder: Path
    names: dict[str, set[str]] = field(default_factory=dict)
    words: dict[str, set[str]] = field(default_factory=dict)

    def add(self, file: str, wanted: set[str]) -> None:
        """Adds names of a file, with all that they use."""
        new = wanted - self.names.setdefault(file, set())
        if not new:
            return
        self.names[file] |= new
        words = self.words.setdefault(file, set())
        body = tree_of(self.folder / file).body
        for node in body:
            if new.isdisjoint(bound_names(node)) and not self._registers(node, file, new):
                continue
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._add_import(node, file, new)
                continue
            self.add(file, set(bound_names(node)))
            words.update(word for each in ast.walk(node) for word in words_of(each))
            used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            self.add(file, {name for other in body for name in bound_names(other)} & used)
            for each in ast.walk(node):
                if isinstance(each, ast.Import | ast.ImportFrom) and each is not node:
                    self._add_import(each, file, set(bound_names(each)))

    def _registers(self, node: ast.stmt, file: str, new: set[str]) -> bool:
        """True for a function that is added to a table which is needed."""
        if not isinstance(node, ast.FunctionDef) or not node.decorator_list:
            return False
        names = {
            each.id
            for own in node.decorator_list
            for each in ast.walk(own)
            if isinstance(each, ast.Name)
        }
        makers = [
            each
            for each in tree_of(self.folder / file).body
            if isinstance(each, ast.FunctionDef) and each.name in names
        ]
        return any(
            isinstance(each, ast.Name) and each.id in new and each.id.isupper()
            for maker in makers
            for each in ast.walk(maker)
        )

    def _add_import(self, node: ast.Import | ast.ImportFrom, file: str, bound: set[str]) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            if name not in bound:
                continue
            if isinstance(node, ast.Import):
                self._add_module(alias.name, file, name if alias.asname else alias.name)
                continue
            parts = Path(file).parent.parts
            above = parts[: len(parts) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            if not self._add_module(f"{module}.{alias.name}", file, name):
                place = f"{module.replace('.', '/')}.py"
                if self._is_loaded(place):
                    self.add(place, {alias.name})

    def _add_module(self, module: str, file: str, written: str) -> bool:
        """Adds the names that a file reads of a module which it imports."""
        place = f"{module.replace('.', '/')}.py"
        if not self._is_loaded(place):
            return False
        self.names.setdefault(place, set())
        used = {
            each.attr
            for each in ast.walk(tree_of(self.folder / file))
            if isinstance(each, ast.Attribute) and ast.unparse(each.value) == written
        }
        self.add(place, used)
        return True

    def _is_loaded(self, place: str) -> bool:
        is_of_copy = place.startswith("verl/") and not place.startswith(_NOT_LOADED)
        return is_of_copy and (self.folder / place).is_file()
