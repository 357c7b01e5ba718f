"""Outputs of commands that need not be run to be known."""

import posixpath
import re

from trinity.verl.shell.expansion import Expander, evaluate_arithmetic
from trinity.verl.shell.parser import AndOrList, CommandList, Node, SimpleCommand, parse
from trinity.verl.shell.tokens import Token
from trinity.verl.shell.variables import Variables

_INTEGER = re.compile(r"-?\d+")
_MAX_NUMBERS = 1000


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
        case ["seq", *numbers] if 1 <= len(numbers) <= 3 and all(map(_INTEGER.fullmatch, numbers)):
            return "\n".join(map(str, _sequence([int(number) for number in numbers])))
        case ["expr", *terms]:
            try:
                return str(evaluate_arithmetic(" ".join(terms), lambda name: name))
            except ValueError:
                return None
    return None


def _sequence(numbers: list[int]) -> range:
    """The numbers of `seq last`, `seq first last` or `seq first step last`."""
    first = numbers[0] if len(numbers) > 1 else 1
    step = (numbers[1] if len(numbers) == 3 else 1) or 1
    return range(first, numbers[-1] + (1 if step > 0 else -1), step)[:_MAX_NUMBERS]
