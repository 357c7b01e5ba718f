"""Expands the words of a script: parameters, arithmetic, quotes."""

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from functools import partial
from typing import NamedTuple

from trinity.verl.shell.tokens import CONTINUATIONS, Token, scan_piece
from trinity.verl.shell.variables import UNKNOWN, ExpandedField, Variables

_PARAMETER = re.compile(
    r"(?P<prefix>[#!]?)(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$!-])"
    r"(?:\[(?P<subscript>[^\]]*)\])?"
    r"(?P<operator>:[-=+?]|[-=+?]|##?|%%?|//?|,,?|\^\^?|:)?(?P<rest>.*)",
    re.DOTALL,
)

_COMPARISONS: dict[type[ast.AST], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_LARGEST_EXPONENT = 64
_NAME = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])")
_ESCAPABLE = '"\\$`'
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\", "\\'": "'", '\\"': '"'}
"""Escapes in `$'...'`."""
_ALL = ("@", "*")
_JOB = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME")
"""Variables that a scheduler sets, for names alone: they have a default elsewhere."""
_WITH_DEFAULT = (":-", ":=", ":+", ":?", "-", "=", "+", "?")
Substitute = Callable[[str, int], str | None]
"""Returns the output of a command on a line; None if it would have to be run."""


_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: lambda a, b: a - b * _quotient(a, b),
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.FloorDiv: lambda a, b: _quotient(a, b),
}


class Parameter(NamedTuple):
    """The parts of the text in the braces."""

    prefix: str
    name: str
    subscript: str
    operator: str
    rest: str


def split_parameter(written: str) -> Parameter | None:
    """Splits a parameter into its parts; None if the text is not one."""
    found = _PARAMETER.fullmatch(written)
    if found is None:
        return None
    return Parameter(*(found[part] or "" for part in Parameter._fields))


def _all_of(piece: str) -> str:
    """The `@` or `*` of an expansion of all elements; empty for any other piece."""
    if piece in ("$@", "$*"):
        return piece[1]
    parameter = split_parameter(piece[2:-1]) if piece.startswith("${") else None
    which = (parameter.subscript or parameter.name) if parameter is not None else ""
    return which if which in _ALL else ""


def parameter_value(
    written: str,
    variables: Variables,
    piece: ExpandedField,
    *,
    expand: Callable[[str], str],
    unset_is_empty: bool,
) -> ExpandedField:
    """Expands `written`, the text within `piece`.

    An unset name becomes an interpolation of the environment, except in a condition.
    """
    parameter = _meant(split_parameter(written), variables)
    if parameter is None:
        variables.note(piece.line, f"`{piece.text}` is not understood, {UNKNOWN} stands for it")
        return ExpandedField(UNKNOWN, piece.line)
    parameter = parameter._replace(subscript=_key(parameter, variables, expand))
    held = variables.get(parameter.name)
    if parameter.prefix == "#":
        return ExpandedField(_length(parameter, variables), piece.line)
    value = _chosen(parameter, variables)
    if _uses_default(parameter.operator, value):
        return _default(parameter, variables, piece, expand)
    if parameter.operator in ("+", ":+"):
        if value is None:
            variables.optional.add(parameter.name)
            variables.defaulted.add(parameter.name)
        stands = value is not None and (bool(value.text) or parameter.operator == "+")
        return ExpandedField(expand(parameter.rest) if stands else "", piece.line)
    if held == ():
        return ExpandedField("", piece.line)
    if value is None:
        empty = unset_is_empty or parameter.name in variables.optional
        return ExpandedField(_unset(parameter.name, variables, piece, empty=empty), piece.line)
    return ExpandedField(_changed(value.text, parameter, expand), value.line)


def _meant(parameter: Parameter | None, variables: Variables) -> Parameter | None:
    """Resolves `${!name}` to the parameter that the value of `name` names; None if unset."""
    if parameter is None or parameter.prefix != "!":
        return parameter
    held = variables.get(parameter.name)
    if not held or parameter.subscript or not held[0].text.isidentifier():
        return None
    return parameter._replace(prefix="", name=held[0].text)


def _key(parameter: Parameter, variables: Variables, expand: Callable[[str], str]) -> str:
    """The key or number in a subscript, which may be computed."""
    if parameter.subscript in ("", *_ALL):
        return parameter.subscript
    key = expand(parameter.subscript)
    if variables.has_keys(parameter.name) and not key.isdigit():
        return key
    try:
        return str(evaluate_arithmetic(key, lambda name: expand(f"${name}")))
    except ValueError:
        return key


def _chosen(parameter: Parameter, variables: Variables) -> ExpandedField | None:
    held = variables.get(parameter.name)
    if not held:
        return None
    if (parameter.subscript or parameter.name) in _ALL:
        return ExpandedField(" ".join(element.text for element in held), held[0].line)
    return variables.element(parameter.name, parameter.subscript or "0")


def _length(parameter: Parameter, variables: Variables) -> str:
    if (parameter.subscript or parameter.name) in _ALL:
        return str(len(variables.get(parameter.name) or ()))
    value = _chosen(parameter, variables)
    return str(len(value.text) if value else 0)


def _uses_default(operator: str, value: ExpandedField | None) -> bool:
    if operator in (":-", ":="):
        return value is None or not value.text
    return operator in ("-", "=") and value is None


def _default(
    parameter: Parameter, variables: Variables, piece: ExpandedField, expand: Callable[[str], str]
) -> ExpandedField:
    variables.defaulted.add(parameter.name)
    value = ExpandedField(expand(parameter.rest), piece.line)
    if parameter.operator.endswith("="):
        variables.put(parameter.name, (value,))
    return value


def _unset(name: str, variables: Variables, piece: ExpandedField, *, empty: bool) -> str:
    if name == "#":
        return "0"
    if name in ("@", "*") or empty:
        return ""
    if not name[0].isalpha() and name[0] != "_":
        variables.note(piece.line, f"`{piece.text}` is not given, {UNKNOWN} stands for it")
        return UNKNOWN
    default = ",job" if name in _JOB else ""
    return f"${{oc.env:{name}{default}}}"


def _changed(text: str, parameter: Parameter, expand: Callable[[str], str]) -> str:
    match parameter.operator:
        case "," | ",,":
            return text.lower() if parameter.operator == ",," else text[:1].lower() + text[1:]
        case "^" | "^^":
            return text.upper() if parameter.operator == "^^" else text[:1].upper() + text[1:]
        case "#" | "##":
            return _without_prefix(text, expand(parameter.rest), longest=parameter.operator == "##")
        case "%" | "%%":
            return _without_suffix(text, expand(parameter.rest), longest=parameter.operator == "%%")
        case "/" | "//":
            return _replaced(text, parameter, expand)
        case ":":
            return text[_range(parameter.rest, expand)]
    return text


def _replaced(text: str, parameter: Parameter, expand: Callable[[str], str]) -> str:
    """Replaces the first match of a pattern, all with `//`, or one at an end with `/#`, `/%`."""
    old, new = _split_at_slash(parameter.rest)
    is_first, replacement = parameter.operator == "/", expand(new)
    if is_first and old[:1] in ("#", "%"):
        at_start, matched = old[0] == "#", expand(old[1:])
        cut = _without_prefix if at_start else _without_suffix
        rest = cut(text, matched, longest=True)
        if matched and rest == text:
            return text
        return replacement + rest if at_start else rest + replacement
    pattern = translate(expand(old)).removesuffix(r"\Z").removesuffix(r"\z")
    return re.sub(pattern, lambda _: replacement, text, count=1 if is_first else 0)


def _split_at_slash(written: str) -> tuple[str, str]:
    """The pattern and the text after the first slash that is not escaped."""
    found = re.match(r"((?:\\.|[^/\\])*)/?(.*)", written, re.DOTALL)
    return (found[1], found[2]) if found else (written, "")


def _without_prefix(text: str, pattern: str, *, longest: bool) -> str:
    ends = range(len(text), -1, -1) if longest else range(len(text) + 1)
    return next((text[end:] for end in ends if fnmatchcase(text[:end], pattern)), text)


def _without_suffix(text: str, pattern: str, *, longest: bool) -> str:
    starts = range(len(text) + 1) if longest else range(len(text), -1, -1)
    return next((text[:start] for start in starts if fnmatchcase(text[start:], pattern)), text)


def _range(written: str, expand: Callable[[str], str]) -> slice:
    """The part that `:start:length` means; numbers below 0 count from the end."""
    start, _, length = (part.strip() for part in expand(written).partition(":"))
    try:
        first, size = int(start or "0"), int(length) if length else None
    except ValueError:
        return slice(None)
    if size is None or size < 0:
        return slice(first, size)
    return slice(first, None if first < 0 <= first + size else first + size)


def _quotient(dividend: int, divisor: int) -> int:
    """Quotient rounded towards zero, as in the shell."""
    whole = abs(dividend) // abs(divisor)
    return whole if (dividend < 0) == (divisor < 0) else -whole


def evaluate_arithmetic(text: str, value_of: Callable[[str], str]) -> int:
    """The value of an expression; `value_of` returns the value of a name.

    Raises: ValueError if the text is not integer arithmetic.
    """
    written = re.sub(r"/", "//", text.replace("&&", " and ").replace("||", " or ")).strip()
    written = re.sub(r"!(?!=)", " not ", written)
    try:
        return _value(ast.parse(written, mode="eval").body, value_of)
    except (SyntaxError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(f"{text.strip()} is not arithmetic") from error


def _value(node: ast.expr, value_of: Callable[[str], str]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return int(value_of(name) or "0")
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, value_of)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return int(not _value(inner, value_of))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            exponent = _value(right, value_of)
            if isinstance(sign, ast.Pow | ast.LShift) and exponent > _LARGEST_EXPONENT:
                raise ValueError(f"{exponent} is too large an exponent")
            return _OPERATORS[type(sign)](_value(left, value_of), exponent)
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _COMPARISONS:
            return int(_COMPARISONS[type(sign)](_value(left, value_of), _value(right, value_of)))
        case ast.BoolOp(op=sign, values=values):
            results = (bool(_value(value, value_of)) for value in values)
            return int(all(results) if isinstance(sign, ast.And) else any(results))
    raise ValueError(f"{ast.unparse(node)} is not arithmetic")


@dataclass(slots=True)
class _FieldBuilder:
    """The fields of one word, as its pieces are added."""

    line: int
    fields: list[ExpandedField]
    current: ExpandedField | None = None

    def add(self, text: str, line: int | None = None) -> None:
        """Adds text that is not split."""
        before = self.current
        where = (line or self.line) if before is None else before.line
        self.current = ExpandedField((before.text if before else "") + text, where)

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

    def fields(self, token: Token) -> list[ExpandedField]:
        """Expands a word to zero or more fields of a command line."""
        growing = _FieldBuilder(token.line, [])
        self._grow(growing, token.text, splits=True, unset_is_empty=False)
        growing.close()
        return growing.fields

    def text(self, token: Token, *, unset_is_empty: bool = False) -> str:
        """Expands a word to one text, as in an assignment or a condition."""
        return self.expand(token.text, token.line, unset_is_empty=unset_is_empty)

    def expand(self, written: str, line: int, *, unset_is_empty: bool = False) -> str:
        """Expands a part of a word in the same way."""
        growing = _FieldBuilder(line, [])
        self._grow(growing, written, splits=False, unset_is_empty=unset_is_empty)
        growing.close()
        return " ".join(field.text for field in growing.fields)

    def _grow(
        self, into: _FieldBuilder, written: str, *, splits: bool, unset_is_empty: bool
    ) -> None:
        position = 0
        while position < len(written):
            end = scan_piece(written, position)
            if name := _NAME.match(written, position):
                end = name.end()
            piece, position = written[position:end], end
            if piece in CONTINUATIONS:
                continue
            if piece[0] == "'":
                into.add(piece[1:-1])
            elif piece.startswith("$'"):
                into.add(
                    re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), piece[2:-1])
                )
            elif piece[0] == '"':
                self._grow_quoted(into, piece[1:-1], unset_is_empty)
                if into.current is None and "@" not in _all_of(piece[1:-1]):
                    into.add("")
            elif piece[0] == "\\":
                into.add(piece[1:])
            elif piece[0] in "$`" and len(piece) > 1:
                self._add_expansion(into, piece, splits=splits, unset_is_empty=unset_is_empty)
            else:
                into.add(piece)

    def _grow_quoted(self, into: _FieldBuilder, written: str, unset_is_empty: bool) -> None:
        position = 0
        while position < len(written):
            sign = written[position]
            end = position + 1 if sign in "'\"" else scan_piece(written, position)
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
        self, into: _FieldBuilder, piece: str, *, splits: bool, unset_is_empty: bool
    ) -> None:
        """Adds a piece that begins with `$` or a backquote."""
        if (rest := self._alternative(piece)) is not None:
            self._grow(into, rest, splits=splits, unset_is_empty=unset_is_empty)
            return
        line = into.line
        elements = self._elements(piece, line)
        if elements is not None:
            if _all_of(piece) == "*" and not splits:
                elements = self._joined(elements)
            for position, element in enumerate(elements):
                if position:
                    into.close()
                (into.add_split if splits else into.add)(element.text, element.line)
            return
        value = self._value(piece, line, unset_is_empty)
        if not value.text and _all_of(piece) == "@":
            return
        if splits and not piece.endswith('"}'):  # quotes within the braces prevent splitting, too
            into.add_split(value.text, value.line or None)
        else:
            into.add(value.text, value.line or None)

    def _alternative(self, piece: str) -> str | None:
        """The text of `${name+text}` that names all elements of an array, if it stands."""
        parameter = split_parameter(piece[2:-1]) if piece.startswith("${") else None
        if parameter is None or parameter.operator not in ("+", ":+"):
            return None
        is_set = bool(self._variables.get(parameter.name))
        return parameter.rest if is_set and "@" in parameter.rest else None

    def _elements(self, piece: str, line: int) -> tuple[ExpandedField, ...] | None:
        """The elements of `$@` or `${name[@]}`, changed or chosen; None for other expansions."""
        if not _all_of(piece):
            return None
        parameter = split_parameter(piece[2:-1] if piece[1] == "{" else piece[1:])
        if parameter is None or parameter.prefix == "#" or parameter.operator in _WITH_DEFAULT:
            return None
        if parameter.prefix == "!":
            keys = self._variables.keys(parameter.name)
            return tuple(ExpandedField(key, line) for key in keys)
        held = self._variables.get(parameter.name)
        if held is None:
            return () if parameter.name in _ALL else None
        if parameter.operator == ":":
            zeroth = (ExpandedField("", line),) if parameter.name in _ALL else ()
            return (zeroth + held)[_range(parameter.rest, partial(self.expand, line=line))]
        expand = partial(self.expand, line=line)
        return tuple(ExpandedField(_changed(own.text, parameter, expand), own.line) for own in held)

    def _joined(self, elements: tuple[ExpandedField, ...]) -> tuple[ExpandedField, ...]:
        """One text of all elements, with the first character of IFS between them."""
        held = self._variables.get("IFS")
        between = held[0].text[:1] if held else " "
        line = elements[0].line if elements else 0
        return (ExpandedField(between.join(own.text for own in elements), line),)

    def _value(self, piece: str, line: int, unset_is_empty: bool) -> ExpandedField:
        if piece.startswith("$((") and piece.endswith("))"):
            return ExpandedField(self._arithmetic(piece, piece[3:-2], line), line)
        if piece.startswith("$["):
            return ExpandedField(self._arithmetic(piece, piece[2:-1], line), line)
        if piece[0] == "`" or piece.startswith("$("):
            command = piece[1:-1] if piece[0] == "`" else piece[2:-1]
            output = self._substitute(command, line)
            if output is None:
                self._variables.note(line, f"`{piece}` is not run, {UNKNOWN} stands for its output")
            return ExpandedField(UNKNOWN if output is None else output, line)
        written = piece[2:-1] if piece.startswith("${") else piece[1:]
        return parameter_value(
            written,
            self._variables,
            ExpandedField(piece, line),
            expand=lambda text: self.expand(text, line, unset_is_empty=unset_is_empty),
            unset_is_empty=unset_is_empty,
        )

    def _arithmetic(self, piece: str, written: str, line: int) -> str:
        inside = self.expand(written, line, unset_is_empty=True)
        try:
            return str(evaluate_arithmetic(inside, lambda name: self.expand(f"${name}", line)))
        except ValueError:
            self._variables.note(line, f"`{piece}` cannot be computed, {UNKNOWN} stands for it")
            return UNKNOWN
