"""Output of `$(...)` for the few commands whose output is known without running them."""

import posixpath

from trinity.verl.shell.expansion import Expander
from trinity.verl.shell.parser import parse
from trinity.verl.shell.syntax import Block, Chain, Node, Simple
from trinity.verl.shell.tokens import Token
from trinity.verl.shell.variables import Variables


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
            case Block((only,)):
                return self._of(only, in_chain=in_chain)
            case Chain(first, rest):
                output = self._of(first, in_chain=True)
                for operator, other in rest:
                    if (output is not None) == (operator == "&&"):
                        output = self._of(other, in_chain=True)
                return output
            case Simple(words):
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
