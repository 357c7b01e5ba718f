"""Walks a script's syntax tree and collects the commands that it would start."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from trinity.errors import UserError
from trinity.verl.shell.conditions import evaluate_condition, file_beside
from trinity.verl.shell.expansion import Expander, evaluate_arithmetic
from trinity.verl.shell.parser import (
    AndOrList,
    CaseCommand,
    CommandList,
    FunctionDefinition,
    IfCommand,
    LoopCommand,
    Negation,
    Node,
    SimpleCommand,
    parse,
)
from trinity.verl.shell.substitution import Substitution
from trinity.verl.shell.tokens import Token
from trinity.verl.shell.variables import ARGUMENTS, ExpandedField, ScriptNote, Variables

_ASSIGNMENT = re.compile(
    r"(?P<name>[A-Za-z_]\w*)(?:\[(?P<key>[^\]]+)\])?(?P<sign>\+?=)(?P<value>.*)", re.DOTALL
)
_ELEMENT = re.compile(r"\[(?P<key>[^\]]+)\]=(?P<value>.*)", re.DOTALL)
_COMPUTED = re.compile(
    r"\s*(?P<before>\+\+|--)?\s*(?P<name>[A-Za-z_]\w*)\s*"
    r"(?(before)|(?:(?P<step>\+\+|--)\s*|(?P<sign>[-+*/%]?)=(?!=)(?P<value>.+)))",
    re.DOTALL,
)
"""Arithmetic that sets a variable."""
_OF_FUNCTIONS = {"local", "declare", "typeset"}
_MAX_DEPTH = 20
"""Calls of functions within one another that are followed."""
_QUIET = {"set", "exit", "return", "break", "continue", "wait", "trap", "shopt", ":"}
_INTERPRETERS = {"bash", "sbatch", "sh", "zsh"}
_SHELLS = _INTERPRETERS | {"apptainer", "docker", "eval", "podman", "screen"}
_SHELLS |= {"singularity", "srun", "ssh", "tmux"}
"""Commands among whose words may be one that is a script."""
_WRAP = "--wrap="
"""The option of `sbatch` that holds a script."""
_STARTS = re.compile(r"\b(python\d?|torchrun|accelerate|deepspeed)\b.*=|\.sh\b", re.DOTALL)
"""A script in a word, as far as it could start veRL."""
_MAX_ITERATIONS = 32
_COUNTED = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?\}|\{([^{}$]+,[^{}$]+)\}")
"""`{1..3}`, `{1..9..2}` and `{1,3}`."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command that the script would start, word by word."""

    words: tuple[ExpandedField, ...]

    @property
    def line(self) -> int:
        """Line of its first word."""
        return self.words[0].line


@dataclass(frozen=True, slots=True)
class Script:
    """Commands and notes found in a script."""

    commands: tuple[Command, ...]
    notes: tuple[ScriptNote, ...]
    defaulted: tuple[str, ...]
    """Variables whose defaults were taken, which the environment could set."""
    exported: tuple[str, ...]
    """Variables that the script exports."""


def read_script(text: str, name: str, given: Mapping[str, str] | None = None) -> Script:
    """Returns the commands of the script `text`; `given` holds its environment variables.

    Conditions that the texts do not decide count as false; commands count as succeeding, in
    conditions as failing. Each such guess is a note.
    Raises: UserError naming the line that is not valid shell.
    """
    walk = _Interpreter(Variables({"0": name, "BASH_SOURCE": name, **(given or {})}), name)
    walk.run(parse(text, name))
    variables = walk.variables
    return Script(
        tuple(walk.commands),
        tuple(variables.notes),
        tuple(sorted(variables.defaulted)),
        tuple(sorted(variables.exported)),
    )


class _Returned(Exception):
    """Ends the function that is read."""

    def __init__(self, succeeded: bool) -> None:
        super().__init__()
        self.succeeded = succeeded


class _LeftLoop(Exception):
    """Ends the loop that is read, or its iteration."""

    def __init__(self, *, is_over: bool) -> None:
        super().__init__()
        self.is_over = is_over


class _Interpreter:
    def __init__(self, variables: Variables, name: str) -> None:
        self.variables = variables
        self.commands: list[Command] = []
        self._name = name
        self._expander = Expander(variables, Substitution(variables, name).output)
        self._functions: dict[str, Node] = {}
        self._replaced: list[dict[str, tuple[ExpandedField, ...] | None]] = []
        """For each function that is being read, the values that its local variables hide."""
        self._num_loops = 0
        self._files: list[Path] = []
        """Loops and files that are being read."""

    def run(self, node: Node) -> bool:
        """Walks a node; returns True if it succeeds, as far as that is known."""
        match node:
            case CommandList(nodes):
                return [self.run(inner) for inner in nodes][-1] if nodes else True
            case SimpleCommand(words):
                return self._simple(words)
            case AndOrList(first, rest):
                return self._chain(first, rest)
            case Negation(inner):
                return not self.run(inner)
            case IfCommand():
                self._if(node)
            case CaseCommand():
                self._case(node)
            case LoopCommand():
                self._loop(node)
            case FunctionDefinition(_, name, body):
                self._functions[name] = body
        return True

    def _chain(self, first: Node, rest: tuple[tuple[str, Node], ...]) -> bool:
        succeeded = self.run(first)
        for operator, node in rest:
            if succeeded == (operator == "&&"):
                succeeded = self.run(node)
        return succeeded

    def _if(self, node: IfCommand) -> None:
        for condition, body in node.branches:
            if self.decide(condition):
                self.run(body)
                return
        self.run(node.otherwise)

    def decide(self, condition: Node) -> bool:
        """Walks a condition like `run`, but unknown commands fail."""
        match condition:
            case CommandList(nodes) if nodes:
                return [self.decide(inner) for inner in nodes][-1]
            case AndOrList(first, rest):
                value = self.decide(first)
                for operator, node in rest:
                    if value == (operator == "&&"):
                        value = self.decide(node)
                return value
            case Negation(inner):
                return not self.decide(inner)
            case SimpleCommand(words):
                return self._condition(words)
        return False

    def _condition(self, words: tuple[Token, ...]) -> bool:
        first = words[0].text
        if first in ("[", "[[", "test"):
            return self._test(words)
        if first.startswith("((") and first.endswith("))"):
            return self.arithmetic(first[2:-2], words[0].line)
        if first in ("true", ":", "false"):
            return first != "false"
        self.variables.note_guess(words)
        if _STARTS.search(" ".join(word.text for word in words)):
            self._keep(words, ())
        return False

    def _test(self, words: tuple[Token, ...]) -> bool:
        result = self.result(words)
        if result is None:
            shown = " ".join(word.text for word in words)
            self.variables.note(words[0].line, f"`{shown}` cannot be decided and counts as false")
        return bool(result)

    def result(self, words: tuple[Token, ...]) -> bool | None:
        """The result of a test; None if its texts do not decide it."""
        inside = words[1:] if words[0].text == "test" else words[1:-1]
        texts = [self._expander.text(word, unset_is_empty=True) for word in inside]
        return evaluate_condition([text for text in texts if text != "\n"], Path(self._name))

    def arithmetic(self, written: str, line: int) -> bool:
        """Decides a condition of arithmetic."""
        try:
            return bool(self.compute(written, line))
        except ValueError:
            self.variables.note(line, f"`(({written}))` cannot be decided and counts as false")
            return False

    def compute(self, written: str, line: int) -> int:
        """Returns the value of arithmetic, which may set a variable.

        Raises: ValueError if the text is not integer arithmetic.
        """
        inside = " ".join(self._expander.expand(written, line, unset_is_empty=True).split())
        found, value_of = _COMPUTED.fullmatch(inside), self._value_of(line)
        if found is None:
            return evaluate_arithmetic(inside, value_of)
        before, name = f"{found['name']} ", found["name"]
        if step := found["before"] or found["step"]:
            written = f"{before}{step[0]} 1"
        else:
            written = (
                f"{before}{found['sign']} ({found['value']})" if found["sign"] else found["value"]
            )
        value = evaluate_arithmetic(written, value_of)
        self.variables.put(name, (ExpandedField(str(value), line),))
        return value

    def _value_of(self, line: int) -> Callable[[str], str]:
        return lambda name: self._expander.expand(f"${name}", line, unset_is_empty=True)

    def _case(self, node: CaseCommand) -> None:
        subject = self._expander.text(node.subject, unset_is_empty=True)
        for patterns, body in node.branches:
            texts = (self._expander.text(pattern) for pattern in patterns)
            if any(fnmatchcase(subject, text) for text in texts):
                self.run(body)
                return

    def _loop(self, node: LoopCommand) -> None:
        if node.condition is not None:
            _repeat(self, node, node.condition)
            return
        values = [field for word in node.words for field in _values(word, self._expander)]
        if node.variable and not node.variable.startswith("((") and values:
            self._iterate(node, node.variable, values)
            return
        if node.variable is not None and node.variable.startswith("(("):
            _count(self, node, node.variable[2:].removesuffix("))"))
            return
        self.variables.note(node.line, "only the first iteration of the loop is read")
        self.iteration(node)

    def _iterate(self, node: LoopCommand, name: str, values: list[ExpandedField]) -> None:
        for value in values[:_MAX_ITERATIONS]:
            self.variables.put(name, (value,))
            if not self.iteration(node):
                return
        if len(values) > _MAX_ITERATIONS:
            self.note_limit(node)

    def note_limit(self, node: LoopCommand) -> None:
        """Notes that later iterations are left out."""
        self.variables.note(node.line, f"only {_MAX_ITERATIONS} iterations of the loop are read")

    def iteration(self, node: LoopCommand) -> bool:
        """Reads a loop's body; returns False if it ends the loop."""
        self._num_loops += 1
        try:
            self.run(node.body)
        except _LeftLoop as left:
            return not left.is_over
        finally:
            self._num_loops -= 1
        return True

    def let(self, written: str, line: int) -> None:
        """Computes what sets a variable; notes what cannot be computed."""
        try:
            self.compute(written, line)
        except ValueError:
            self.variables.note(line, f"`{written.strip()}` cannot be computed and is ignored")

    def _simple(self, words: tuple[Token, ...]) -> bool:
        position = 0
        while position < len(words) and _ASSIGNMENT.match(words[position].text):
            position += 1
        if position == len(words):
            for word in words:
                self.assign(word)
            return True
        command, name = words[position:], words[position].text
        if name in self._functions and len(self._replaced) < _MAX_DEPTH:
            return self._call(self._functions[name], command)
        if name in ("[", "[[", "test", "true", "false") or name.startswith("(("):
            return self._condition(command)
        if not self._is_built_in(name, command) and name not in _QUIET:
            self._keep(command, words[:position])
        return True

    def _is_built_in(self, name: str, command: tuple[Token, ...]) -> bool:
        """Runs a shell built-in that affects variables; returns False for other commands."""
        arguments = command[1:]
        match name:
            case "export" | "readonly" | "local" | "declare" | "typeset":
                for word in arguments:
                    self.assign(word, is_local=name in _OF_FUNCTIONS)
                    if name == "export" and (found := _ASSIGNMENT.match(word.text)):
                        self.variables.exported.add(found["name"])
            case "unset":
                for word in arguments:
                    self.variables.remove(word.text)
            case "let":
                for word in arguments:
                    self.let(self._expander.text(word), word.line)
            case "shift":
                self._shift(self._expander.text(arguments[0]) if arguments else "1")
            case "set" if "--" in (texts := [word.text for word in arguments]):
                after = arguments[texts.index("--") + 1 :]
                fields = (field for word in after for field in self._expander.fields(word))
                self.variables.put_arguments(tuple(fields))
            case "return" if self._replaced:
                raise _Returned(not arguments or self._expander.text(arguments[0]) == "0")
            case "break" | "continue" if self._num_loops:
                raise _LeftLoop(is_over=name == "break")
            case "." | "source":
                self._source(command)
            case _:
                return False
        return True

    def _source(self, command: tuple[Token, ...]) -> None:
        """Reads a file of the same repository, whose lines count as the command's."""
        line = command[0].line
        wanted = self._expander.text(command[1]) if len(command) > 1 else ""
        if not self.read_file(wanted, line):
            self.variables.note(line, f"`{command[0].text} {wanted}` is not followed")

    def read_file(self, wanted: str, line: int) -> bool:
        """Reads another script; returns False if it is none of the repository's."""
        file = file_beside(wanted, Path(self._name))
        if file is None or file in self._files:
            return False
        self._files.append(file)
        try:
            self.run(parse(file.read_text("utf-8", "replace"), file.name, line, on_one_line=True))
        except UserError as error:
            self.variables.note(line, f"{file.name} is not followed: {error}")
        finally:
            self._files.pop()
        return True

    def _call(self, body: Node, command: tuple[Token, ...]) -> bool:
        """Reads a function with the arguments of a call; its local variables end with it."""
        fields = [field for word in command for field in self._expander.fields(word)]
        outer = self.variables.get(ARGUMENTS) or ()
        self.variables.put_arguments(tuple(fields[1:]))
        self._replaced.append({})
        try:
            succeeded = self.run(body)
        except _Returned as returned:
            succeeded = returned.succeeded
        for name, before in self._replaced.pop().items():
            if before is None:
                self.variables.remove(name)
            else:
                self.variables.put(name, before)
        self.variables.put_arguments(outer)
        return succeeded

    def _shift(self, number: str) -> None:
        arguments = self.variables.get(ARGUMENTS)
        if arguments is not None and number.isdigit():
            self.variables.put_arguments(arguments[int(number) :])

    def _keep(self, words: tuple[Token, ...], given: tuple[Token, ...]) -> None:
        fields = tuple(field for word in words for field in self._expander.fields(word))
        if not fields:
            return
        self.commands.append(Command(fields))
        names = [field.text.rpartition("/")[2] for field in fields]
        for field in fields if _SHELLS.intersection(names) else ():
            self._follow(field)
        at = next((i for i, name in enumerate(names) if name.endswith(".sh")), len(names))
        if fields[at:] and (at == 0 or _INTERPRETERS.intersection(names[:at])):
            _run_script(self, fields[at:], given)

    def _follow(self, field: ExpandedField) -> None:
        """Reads a script that is one word of a command such as `tmux` or `bash -c`."""
        text = field.text.removeprefix(_WRAP)
        if not any(blank in text for blank in " \n") or not _STARTS.search(text):
            return
        try:
            self.run(parse(text, self._name, field.line))
        except UserError as error:
            self.variables.note(field.line, f"a script within a word is not read: {error}")

    def assign(self, word: Token, *, is_local: bool = False) -> None:
        """Sets the variable of an assignment."""
        found = _ASSIGNMENT.match(word.text)
        if found is None:
            return
        name, appends = found["name"], found["sign"] == "+="
        if is_local and self._replaced:
            self._replaced[-1].setdefault(name, self.variables.get(name))
        if word.kind == "array":
            _assign_array(self.variables, self._expander, name, word, appends=appends)
            return
        value = ExpandedField(self._expander.expand(found["value"], word.line), word.line)
        if found["key"]:
            key = self._expander.expand(found["key"], word.line)
            self.variables.put_element(name, key, value)
            return
        before = self.variables.get(name) if appends else None
        text = (before[0].text if before else "") + value.text
        self.variables.put(name, (ExpandedField(text, word.line),))


def _count(walk: _Interpreter, node: LoopCommand, header: str) -> None:
    """Reads a loop with a header such as `i=0; i<3; i++`."""
    start, test, step = (*header.split(";"), "", "")[:3]
    walk.let(start, node.line)
    if not walk.arithmetic(test, node.line):
        walk.variables.note(node.line, "only the first iteration of the loop is read")
        walk.iteration(node)
        return
    for _ in range(_MAX_ITERATIONS):
        if not walk.arithmetic(test, node.line) or not walk.iteration(node):
            return
        walk.let(step, node.line)
    walk.note_limit(node)


def _repeat(walk: _Interpreter, node: LoopCommand, condition: CommandList) -> None:
    """Reads a loop until its condition ends it, once if only running could tell."""
    for _ in range(_MAX_ITERATIONS):
        value = _known(walk, condition)
        if value is node.ends_when:
            return
        if value is None:
            walk.decide(condition)
            walk.variables.note(node.line, "only the first iteration of the loop is read")
        if not walk.iteration(node) or value is None:
            return
    walk.note_limit(node)


def _known(walk: _Interpreter, condition: CommandList) -> bool | None:
    """The value of a condition that is one test; None if only running could tell."""
    match condition.nodes:
        case (SimpleCommand(words),) if words[0].text in ("[", "[[", "test"):
            return walk.result(words)
        case (SimpleCommand(words),) if words[0].text.startswith("(("):
            with suppress(ValueError):
                return bool(walk.compute(words[0].text[2:-2], words[0].line))
    return None


def _run_script(
    walk: _Interpreter, fields: tuple[ExpandedField, ...], given: tuple[Token, ...]
) -> None:
    """Reads another script of the repository as a process, with its arguments and environment."""
    with walk.variables.of_child():
        for word in given:
            walk.assign(word)
        walk.variables.keep_exported(word.text.partition("=")[0] for word in given)
        walk.variables.put_arguments(fields[1:])
        walk.read_file(fields[0].text, fields[0].line)


def _assign_array(
    variables: Variables, expander: Expander, name: str, word: Token, *, appends: bool
) -> None:
    keyed = [_ELEMENT.fullmatch(token.text) for token in word.elements]
    if not appends:
        variables.put(name, ())
    if not any(keyed):
        fields = (field for token in word.elements for field in expander.fields(token))
        variables.put(name, tuple(fields), appended=True)
        return
    for token, found in zip(word.elements, keyed, strict=True):
        if found is not None:
            key, value = (expander.expand(found[part], token.line) for part in (1, 2))
            variables.put_element(name, key, ExpandedField(value, token.line))


def _values(word: Token, expander: Expander) -> list[ExpandedField]:
    """The fields of a word in the header of a loop, where `{1..3}` are three."""
    if (found := _COUNTED.fullmatch(word.text)) is None:
        return expander.fields(word)
    if found[4]:
        return [ExpandedField(text, word.line) for text in found[4].split(",")]
    first, last = int(found[1]), int(found[2])
    step = (int(found[3] or 1) or 1) * (1 if first <= last else -1)
    numbers = range(first, last + step // abs(step), step)[: _MAX_ITERATIONS + 1]
    return [ExpandedField(str(number), word.line) for number in numbers]
