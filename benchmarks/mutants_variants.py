"""The changes that mutants make to a node of the syntax."""

import ast
import copy
from collections.abc import Iterator, Mapping
from typing import Any

_BINARY: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Pow: ast.Mult,
}
_COMPARED: Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
_NAMES = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min", "any": "all"}
_NAMES |= {"all": "any", "sum": "mean", "mean": "sum", "abs": "square", "square": "abs"}


def variants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yields the nodes that may stand in a node's place, with a word for each change."""
    match node:
        case ast.BinOp(op=op) if type(op) in _BINARY:
            other = _BINARY[type(op)]
            yield f"{type(op).__name__} to {other.__name__}", _with(node, op=other())
        case ast.Compare(ops=[op]) if type(op) in _COMPARED:
            for compared in _COMPARED[type(op)]:
                words = f"{type(op).__name__} to {compared.__name__}"
                yield words, _with(node, ops=[compared()])
        case ast.BoolOp(op=op):
            swapped: ast.boolop = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "and to or, or back", _with(node, op=swapped)
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
            yield f"without {type(node.op).__name__}", operand
        case ast.IfExp(body=body, orelse=orelse):
            yield "branches swapped", _with(node, body=orelse, orelse=body)
        case ast.Constant(value=bool() as value):
            yield f"{value} to {not value}", _with(node, value=not value)
        case ast.Constant(value=int() | float() as value):
            other_value = value + 1 if isinstance(value, int) else value * 2 or 1.0
            yield f"{value} to {other_value}", _with(node, value=other_value)
        case ast.Call(func=ast.Attribute(attr="where"), args=[_, _, _]):
            condition, first, second = node.args
            yield "arguments of where swapped", _with(node, args=[condition, second, first])
        case ast.Call(func=ast.Attribute(attr=attr)) if attr in _NAMES:
            function = _with(node.func, attr=_NAMES[attr])
            yield f"{attr} to {_NAMES[attr]}", _with(node, func=function)
        case ast.Call(func=ast.Attribute(attr="detach", value=value), args=[]):
            yield "without detach", value


def wide_variants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yields, after the others, those of checks: errors not raised, texts, conditions."""
    yield from variants(node)
    match node:
        case ast.Raise():
            yield "not raised", ast.Pass()
        case ast.If(test=test):
            yield "condition negated", _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=str() as value):
            yield "other text", _with(node, value=f"{value}~")


def _with(node: ast.AST, **changes: Any) -> ast.AST:
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed
