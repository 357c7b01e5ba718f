"""Words of a script with their quotes removed and their variables filled in."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from trinity.verl.shell.arithmetic import evaluate
from trinity.verl.shell.parameters import parameter_value, split_parameter
from trinity.verl.shell.scanning import CONTINUATIONS, end_of_piece
from trinity.verl.shell.tokens import Token
from trinity.verl.shell.variables import UNKNOWN, Field, Variables

_NAME = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])")
_ESCAPABLE = '"\\$`'

Substitute = Callable[[str, int], str | None]
"""Returns the output of a command on a line; None if it would have to be run."""


@dataclass(slots=True)
class _Growing:
    """The fields of one word, as its pieces are added."""

    line: int
    fields: list[Field]
    current: Field | None = None

    def add(self, text: str, line: int | None = None) -> None:
        """Adds text that is not split."""
        before = self.current
        where = (line or self.line) if before is None else before.line
        self.current = Field((before.text if before else "") + text, where)

    def add_split(self, text: str, line: int | None) -> None:
        """Adds text that is split at blanks, like an expansion outside of quotes."""
        for position, part in enumerate(re.split(r"\s+", text)):
            if position:
                self.close()
            if part:
                self.add(part, line)

    def close(self) -> None:
        """Ends the current field."""
        if self.current is not None:
            self.fields.append(self.current)
        self.current = None


class Expander:
    """Expands words against the variables of a script.

    fields = Expander(variables, substitute).fields(token)
    """

    def __init__(self, variables: Variables, substitute: Substitute) -> None:
        self._variables = variables
        self._substitute = substitute

    def fields(self, token: Token) -> list[Field]:
        """Expands a word to the fields of a command line: none, one or several."""
        growing = _Growing(token.line, [])
        self._grow(growing, token.text, splits=True, unset_is_empty=False)
        growing.close()
        return growing.fields

    def text(self, token: Token, *, unset_is_empty: bool = False) -> str:
        """Expands a word to one text, as in an assignment or a condition."""
        return self.expand(token.text, token.line, unset_is_empty=unset_is_empty)

    def expand(self, written: str, line: int, *, unset_is_empty: bool = False) -> str:
        """Expands a part of a word in the same way."""
        growing = _Growing(line, [])
        self._grow(growing, written, splits=False, unset_is_empty=unset_is_empty)
        growing.close()
        return " ".join(field.text for field in growing.fields)

    def _grow(self, into: _Growing, written: str, *, splits: bool, unset_is_empty: bool) -> None:
        position = 0
        while position < len(written):
            end = end_of_piece(written, position)
            if name := _NAME.match(written, position):
                end = name.end()
            piece, position = written[position:end], end
            if piece in CONTINUATIONS:
                continue
            if piece[0] == "'":
                into.add(piece[1:-1])
            elif piece.startswith("$'"):
                into.add(piece[2:-1])
            elif piece[0] == '"':
                self._grow_quoted(into, piece[1:-1], unset_is_empty)
                if into.current is None and not piece.endswith('[@]}"'):
                    into.add("")
            elif piece[0] == "\\":
                into.add(piece[1:])
            elif piece[0] in "$`" and len(piece) > 1:
                self._add_expansion(into, piece, splits=splits, unset_is_empty=unset_is_empty)
            else:
                into.add(piece)

    def _grow_quoted(self, into: _Growing, written: str, unset_is_empty: bool) -> None:
        position = 0
        while position < len(written):
            sign = written[position]
            end = position + 1 if sign in "'\"" else end_of_piece(written, position)
            if written.startswith("$'", position):
                end = position + 1
            if name := _NAME.match(written, position):
                end = name.end()
            piece, position = written[position:end], end
            if piece in CONTINUATIONS:
                continue
            if piece[0] == "\\":
                into.add(piece[1:] if piece[1:] in _ESCAPABLE else piece)
            elif piece[0] in "$`" and len(piece) > 1:
                self._add_expansion(into, piece, splits=False, unset_is_empty=unset_is_empty)
            else:
                into.add(piece)

    def _add_expansion(
        self, into: _Growing, piece: str, *, splits: bool, unset_is_empty: bool
    ) -> None:
        """Adds a piece that begins with `$` or a backquote."""
        elements = self._elements(piece)
        if elements is not None:
            for position, element in enumerate(elements):
                if position:
                    into.close()
                into.add(element.text, element.line)
            return
        line = into.line
        value = self._value(piece, line, unset_is_empty)
        if splits and not piece.endswith('"}'):  # quotes within the braces prevent splitting, too
            into.add_split(value.text, value.line or None)
        else:
            into.add(value.text, value.line or None)

    def _elements(self, piece: str) -> tuple[Field, ...] | None:
        """The elements of `${name[@]}`, possibly none; None for any other expansion."""
        if not piece.startswith("${"):
            return None
        parameter = split_parameter(piece[2:-1])
        if parameter is None or parameter.subscript not in ("@", "*") or parameter.operator:
            return None
        return self._variables.get(parameter.name)

    def _value(self, piece: str, line: int, unset_is_empty: bool) -> Field:
        if piece.startswith("$((") and piece.endswith("))"):
            return Field(self._arithmetic(piece, line), line)
        if piece[0] == "`" or piece.startswith("$("):
            command = piece[1:-1] if piece[0] == "`" else piece[2:-1]
            output = self._substitute(command, line)
            if output is None:
                self._variables.note(line, f"`{piece}` is not run, {UNKNOWN} stands for its output")
            return Field(UNKNOWN if output is None else output, line)
        written = piece[2:-1] if piece.startswith("${") else piece[1:]
        return parameter_value(
            written,
            self._variables,
            Field(piece, line),
            expand=lambda text: self.expand(text, line, unset_is_empty=unset_is_empty),
            unset_is_empty=unset_is_empty,
        )

    def _arithmetic(self, piece: str, line: int) -> str:
        inside = self.expand(piece[3:-2], line, unset_is_empty=True)
        try:
            return str(evaluate(inside, lambda name: self.expand(f"${name}", line)))
        except ValueError:
            self._variables.note(line, f"`{piece}` cannot be computed, {UNKNOWN} stands for it")
            return UNKNOWN
