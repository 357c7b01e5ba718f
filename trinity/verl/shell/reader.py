"""Walks a script's syntax tree and collects the commands that it would start."""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

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
from trinity.verl.shell.tokens import Token
from trinity.verl.shell.variables import ARGUMENTS, ExpandedField, ScriptNote, Variables

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}

_ASSIGNMENT = re.compile(
    r"(?P<name>[A-Za-z_]\w*)(?:\[(?P<key>[^\]]+)\])?(?P<sign>\+?=)(?P<value>.*)", re.DOTALL
)
_ELEMENT = re.compile(r"\[(?P<key>[^\]]+)\]=(?P<value>.*)", re.DOTALL)
_COMPUTED = re.compile(
    r"\s*(?P<name>[A-Za-z_]\w*)\s*"
    r"(?:(?P<step>\+\+|--)\s*|(?P<sign>[-+*/%]?)=(?!=)(?P<value>.+))",
    re.DOTALL,
)
"""Arithmetic that sets a variable."""
_OF_FUNCTIONS = {"local", "declare", "typeset"}
_MAX_DEPTH = 20
"""Calls of functions within one another that are followed."""
_QUIET = {"set", "exit", "return", "break", "continue", "wait", "trap", "shopt", ":"}


def evaluate_condition(words: Sequence[str]) -> bool | None:
    """True if a condition holds; None if the texts alone do not decide it."""
    return _Condition(list(words)).result()


class _Condition:
    """Parser of a disjunction of conjunctions of comparisons, from left to right."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def result(self) -> bool | None:
        """The condition's value; None if it is undecided, or if words are left over."""
        value = self._any()
        return value if not self._words else None

    def _any(self) -> bool | None:
        value = self._all()
        while self._take("-o", "||"):
            other = self._all()
            value = True if value or other else None if None in (value, other) else False
        return value

    def _all(self) -> bool | None:
        value = self._one()
        while self._take("-a", "&&"):
            other = self._one()
            value = False if False in (value, other) else None if None in (value, other) else True
        return value

    def _one(self) -> bool | None:
        words = self._words
        if len(words) > 1 and words[0] == "!":
            words.pop(0)
            inner = self._one()
            return None if inner is None else not inner
        if len(words) > 2 and words[0] == "(":
            words.pop(0)
            inner = self._any()
            return inner if self._take(")") else None
        if len(words) >= 3 and _is_comparison(words[1]):
            left, operator, right = words[:3]
            del words[:3]
            return _compare(left, operator, right)
        if len(words) >= 2 and words[0].startswith("-"):
            operator, text = words[:2]
            del words[:2]
            return _ask(operator, text)
        return bool(words.pop(0)) if words else False

    def _take(self, *operators: str) -> bool:
        if self._words and self._words[0] in operators:
            self._words.pop(0)
            return True
        return False


def _is_comparison(word: str) -> bool:
    return word in _NUMBERS or word in ("=", "==", "!=")


def _compare(left: str, operator: str, right: str) -> bool | None:
    if operator in _NUMBERS:
        try:
            return _NUMBERS[operator](int(left), int(right))
        except ValueError:
            return None
    return fnmatchcase(left, right) == (operator != "!=")


def _ask(operator: str, text: str) -> bool | None:
    if operator in ("-z", "-n"):
        return (not text) == (operator == "-z")
    return None


class Substitution:
    """Command substitution of one script."""

    def __init__(self, variables: Variables, name: str) -> None:
        self._variables = variables
        self._name = name
        self._expander = Expander(variables, self.output)

    def output(self, text: str, line: int) -> str | None:
        """The output of the command `text` on `line`; None if it would have to be run."""
        printed = self._of(parse(text, self._name, line), in_chain=False)
        return None if printed is None else printed.strip()

    def _of(self, node: Node, *, in_chain: bool) -> str | None:
        """Output of a node; in a chain, a command that would have to be run counts as failed."""
        match node:
            case CommandList(()):  # a comment, as in `# why`
                return ""
            case CommandList((only,)):
                return self._of(only, in_chain=in_chain)
            case AndOrList(first, rest):
                output = self._of(first, in_chain=True)
                for operator, other in rest:
                    if (output is not None) == (operator == "&&"):
                        output = self._of(other, in_chain=True)
                return output
            case SimpleCommand(words):
                return self._of_command(words, in_chain=in_chain)
        return None

    def _of_command(self, words: tuple[Token, ...], *, in_chain: bool) -> str | None:
        texts = [field.text for word in words for field in self._expander.fields(word)]
        printed = _printed([text for text in texts if text != "--"])
        if printed is None and in_chain:
            self._variables.note_guess(words)
        return printed


def _printed(words: list[str]) -> str | None:
    match words:
        case ["echo", *rest]:
            return " ".join(word for word in rest if word not in ("-n", "-e"))
        case ["pwd"]:
            return "."
        case ["basename", path, *suffix]:
            base = posixpath.basename(path.rstrip("/"))
            return base.removesuffix(suffix[0]) if suffix else base
        case ["dirname", path]:
            return posixpath.dirname(path) or "."
        case ["cd", *_]:
            return ""
    return None


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


class _Interpreter:
    def __init__(self, variables: Variables, name: str) -> None:
        self.variables = variables
        self.commands: list[Command] = []
        self._name = name
        self._expander = Expander(variables, Substitution(variables, name).output)
        self._functions: dict[str, Node] = {}
        self._replaced: list[dict[str, tuple[ExpandedField, ...] | None]] = []
        """For each function that is being read, the values that its local variables hide."""

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
            if self._decide(condition):
                self.run(body)
                return
        self.run(node.otherwise)

    def _decide(self, condition: Node) -> bool:
        """Walks a condition like `run`, but unknown commands fail."""
        match condition:
            case CommandList(nodes) if nodes:
                return [self._decide(inner) for inner in nodes][-1]
            case AndOrList(first, rest):
                value = self._decide(first)
                for operator, node in rest:
                    if value == (operator == "&&"):
                        value = self._decide(node)
                return value
            case Negation(inner):
                return not self._decide(inner)
            case SimpleCommand(words):
                return self._condition(words)
        return False

    def _condition(self, words: tuple[Token, ...]) -> bool:
        first = words[0].text
        if first in ("[", "[[", "test"):
            return self._test(words)
        if first.startswith("((") and first.endswith("))"):
            return self._arithmetic(words[0])
        if first in ("true", ":", "false"):
            return first != "false"
        self.variables.note_guess(words)
        return False

    def _test(self, words: tuple[Token, ...]) -> bool:
        result = self._result(words)
        if result is None:
            shown = " ".join(word.text for word in words)
            self.variables.note(words[0].line, f"`{shown}` cannot be decided and counts as false")
        return bool(result)

    def _result(self, words: tuple[Token, ...]) -> bool | None:
        """The result of a test; None if its texts do not decide it."""
        inside = words[1:] if words[0].text == "test" else words[1:-1]
        return evaluate_condition(
            [self._expander.text(word, unset_is_empty=True) for word in inside if word.text != "\n"]
        )

    def _arithmetic(self, word: Token) -> bool:
        try:
            return bool(self._compute(word.text[2:-2], word.line))
        except ValueError:
            self.variables.note(word.line, f"`{word.text}` cannot be decided and counts as false")
            return False

    def _compute(self, written: str, line: int) -> int:
        """Returns the value of arithmetic, which may set a variable.

        Raises: ValueError if the text is not integer arithmetic.
        """
        inside = " ".join(self._expander.expand(written, line, unset_is_empty=True).split())
        found, value_of = _COMPUTED.fullmatch(inside), self._value_of(line)
        if found is None:
            return evaluate_arithmetic(inside, value_of)
        before, name = f"{found['name']} ", found["name"]
        if found["step"]:
            written = f"{before}{found['step'][0]} 1"
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
        if node.condition is not None and self._known(node.condition) is node.ends_when:
            return
        values = [field for word in node.words for field in self._expander.fields(word)]
        if node.variable is not None and node.variable.startswith("(("):
            self._let(node.variable[2:].split(";")[0], node.line)
        elif node.variable and values:
            self.variables.put(node.variable, (values[0],))
        self.variables.note(node.line, "only the first iteration of the loop is read")
        self.run(node.body)

    def _known(self, condition: CommandList) -> bool | None:
        """The value of a condition that is one test; None if only running could tell."""
        match condition.nodes:
            case (SimpleCommand(words),) if words[0].text in ("[", "[[", "test"):
                return self._result(words)
        return None

    def _let(self, written: str, line: int) -> None:
        try:
            self._compute(written, line)
        except ValueError:
            self.variables.note(line, f"`{written.strip()}` cannot be computed and is ignored")

    def _simple(self, words: tuple[Token, ...]) -> bool:
        position = 0
        while position < len(words) and _ASSIGNMENT.match(words[position].text):
            position += 1
        if position == len(words):
            for word in words:
                self._assign(word)
            return True
        command = words[position:]
        name = command[0].text
        if name in self._functions and len(self._replaced) < _MAX_DEPTH:
            return self._call(self._functions[name], command)
        if name in ("[", "[[", "test", "true", "false") or name.startswith("(("):
            return self._condition(command)
        if not self._is_built_in(name, command) and name not in _QUIET:
            self._keep(command)
        return True

    def _is_built_in(self, name: str, command: tuple[Token, ...]) -> bool:
        """Runs a shell built-in that affects variables; returns False for other commands."""
        arguments = command[1:]
        match name:
            case "export" | "readonly" | "local" | "declare" | "typeset":
                for word in arguments:
                    self._assign(word, is_local=name in _OF_FUNCTIONS)
                    if name == "export" and (found := _ASSIGNMENT.match(word.text)):
                        self.variables.exported.add(found["name"])
            case "unset":
                for word in arguments:
                    self.variables.remove(word.text)
            case "let":
                for word in arguments:
                    self._let(self._expander.text(word), word.line)
            case "shift":
                self._shift(self._expander.text(arguments[0]) if arguments else "1")
            case "set" if "--" in (texts := [word.text for word in arguments]):
                after = arguments[texts.index("--") + 1 :]
                fields = (field for word in after for field in self._expander.fields(word))
                self.variables.put_arguments(tuple(fields))
            case "return" if self._replaced:
                raise _Returned(not arguments or self._expander.text(arguments[0]) == "0")
            case "." | "source":
                shown = " ".join(word.text for word in command)
                self.variables.note(command[0].line, f"`{shown}` is not followed")
            case _:
                return False
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

    def _keep(self, words: tuple[Token, ...]) -> None:
        fields = tuple(field for word in words for field in self._expander.fields(word))
        if fields:
            self.commands.append(Command(fields))

    def _assign(self, word: Token, *, is_local: bool = False) -> None:
        found = _ASSIGNMENT.match(word.text)
        if found is None:
            return
        name, appends = found["name"], found["sign"] == "+="
        if is_local and self._replaced:
            self._replaced[-1].setdefault(name, self.variables.get(name))
        if word.kind == "array":
            self._assign_array(name, word.elements, appends=appends)
            return
        value = ExpandedField(self._expander.expand(found["value"], word.line), word.line)
        if found["key"]:
            key = self._expander.expand(found["key"], word.line)
            self.variables.put_element(name, key, value)
            return
        before = self.variables.get(name) if appends else None
        text = (before[0].text if before else "") + value.text
        self.variables.put(name, (ExpandedField(text, word.line),))

    def _assign_array(self, name: str, elements: tuple[Token, ...], *, appends: bool) -> None:
        keyed = [_ELEMENT.fullmatch(token.text) for token in elements]
        if not appends:
            self.variables.put(name, ())
        if not any(keyed):
            fields = (field for token in elements for field in self._expander.fields(token))
            self.variables.put(name, tuple(fields), appended=True)
            return
        for token, found in zip(elements, keyed, strict=True):
            if found is not None:
                key, value = (self._expander.expand(found[part], token.line) for part in (1, 2))
                self.variables.put_element(name, key, ExpandedField(value, token.line))
