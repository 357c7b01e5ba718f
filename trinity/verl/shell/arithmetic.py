"""Evaluates the integer arithmetic of `$((...))`."""

import ast
import operator
import re
from collections.abc import Callable

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
_COMPARISONS: dict[type[ast.AST], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_LARGEST_EXPONENT = 64


def _quotient(dividend: int, divisor: int) -> int:
    """Quotient rounded towards zero, as in the shell."""
    whole = abs(dividend) // abs(divisor)
    return whole if (dividend < 0) == (divisor < 0) else -whole


def evaluate(text: str, value_of: Callable[[str], str]) -> int:
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
