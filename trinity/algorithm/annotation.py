"""Argument annotations: the values that they allow, and a description of these in words."""

import ast

from trinity.json_values import JsonValue

_KINDS: dict[str, tuple[type, ...]] = {
    "float": (int, float),
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
}
_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "a text",
}


def fits(annotation: str, value: JsonValue) -> bool:
    """Checks a value against `float | None`, `Literal["a"]`...; unknown annotations allow all."""
    return _fits(ast.parse(annotation, mode="eval").body, value)


def demand_of(annotation: str) -> str:
    """Describes the allowed values in words."""
    return " or ".join(_demands(ast.parse(annotation, mode="eval").body))


def _fits(annotation: ast.expr, value: JsonValue) -> bool:
    match annotation:
        case ast.BinOp(left=left, right=right, op=ast.BitOr()):
            return _fits(left, value) or _fits(right, value)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return value is None or _fits(inner, value)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=choices)):
            return any(_fits(choice, value) for choice in choices)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choice):
            return _fits(choice, value)
        case ast.Constant(value=constant):
            return type(value) is type(constant) and value == constant
        case ast.Name(id=name) if name in _KINDS:
            return isinstance(value, _KINDS[name]) and isinstance(value, bool) == (name == "bool")
    return True


def _demands(annotation: ast.expr) -> list[str]:
    match annotation:
        case ast.BinOp(left=left, right=right, op=ast.BitOr()):
            return [*_demands(left), *_demands(right)]
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return [*_demands(inner), "null"]
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=choices)):
            return [demand for choice in choices for demand in _demands(choice)]
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choice):
            return _demands(choice)
        case ast.Constant(value=None):
            return ["null"]
        case ast.Constant(value=constant):
            return [f"`{constant!s}`"]
        case ast.Name(id=name) if name in _WORDS:
            return [_WORDS[name]]
    return [f"`{ast.unparse(annotation)}`"]
