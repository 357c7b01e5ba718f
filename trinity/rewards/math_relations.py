r"""Reads inequalities, sets of numbers, matrices and values by name: `x < 1`, `x = 3, y = 4`."""

import re

OPENING, CLOSING = "([{", ")]}"
RELATION = re.compile(r"[<>≤≥]")
FLIPPED = {"<": ">", ">": "<", "≤": "≥", "≥": "≤"}
VARIABLE = re.compile(r"[a-zA-Z]|\\[a-z]+")
_NAME = re.compile(r"(?:[a-zA-Z]|\\[a-z]+)(?:_\{?\w+\}?)?")
_REALS = re.compile(
    r"\\mathbb\s*\{?\s*R\s*\}?|\\R(?![a-zA-Z])|(?:the set of )?all (?:the )?real(?:s| numbers)"
)
_BUILDER = re.compile(
    r"\\\{\s*([a-zA-Z])\s*(?:\\in\s*\\mathbb\s*\{?\s*R\s*\}?\s*)?(?:\\mid|\\vert|[:|])(.+)\\\}"
)
_APPLIED = re.compile(r"([a-zA-Z]\w*)\((.*)\)")
_LETTER = (
    r"(?:[a-zA-Z]|\\(?:alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|(?:var)?theta|kappa|lambda|mu|nu|xi"
    r"|rho|sigma|tau|(?:var)?phi|chi|psi|omega|ell|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega)(?![a-zA-Z]))"
)
_ACCENT = r"\\(?:bar|hat|tilde|vec|dot|overline|overrightarrow|math(?:bf|rm|cal|bb)|boldsymbol)"
_SYMBOL = rf"(?:{_LETTER}|{_ACCENT}\{{?{_LETTER}\}}?)'*(?:_(?:\{{[^{{}}]*\}}|\w|{_LETTER}))?'*"
_FIGURE = r"(?:\\(?:angle|triangle|overline|overrightarrow|widehat))?(?:[A-Z]{2,4}|\{[A-Z]{2,4}\})"
_NAMED = re.compile(
    rf"{_SYMBOL}|{_FIGURE}|\|{_FIGURE}\||\[[A-Z]{{3,6}}\]|\|{_ACCENT}\{{?{_LETTER}\}}?\|"
    rf"|\\det{_LETTER}|\\frac\{{{_FIGURE}\}}\{{{_FIGURE}\}}|\\frac\{{(?:d|\\partial)\^?\d?{_LETTER}\}}\{{(?:d|\\partial){_LETTER}(?:\^\d)?\}}"
)
"""Symbols, segments and figures, and derivatives: what an equation may give a value to."""
_CALL = re.compile(
    rf"({_SYMBOL}|\({_LETTER}\\circ{_LETTER}\)|\\(?:det|Pr)|Var)(?:\^\{{-1\}})?[(\[](.+)[)\]]"
)
_FUNCTION_NAMES = re.compile(r"[fghFGHPE]\b|\(|\\(?:var)?phi|\\Phi|\\mathbb|\\det|\\Pr|Var")
_PLAIN_ARGUMENTS = re.compile(r"(?:-?(?:\d+(?:\.\d+)?|[A-Zxtn]|\\pi)(?:,(?!$)|$))+")
_MATRIX = re.compile(r"(.*?)\\begin\{pmatrix\}(.*)\\end\{pmatrix\}", re.DOTALL)


def as_set_of_numbers(text: str) -> str:
    r"""Returns an interval for all real numbers, and `x > 2` for `\{x \mid x > 2\}`."""
    if _REALS.fullmatch(text):
        return r"(-\infty, \infty)"
    built = _BUILDER.fullmatch(text)
    return built[2].strip() if built and RELATION.search(built[2]) else text


def interval_of(chains: str) -> str | None:
    r"""Returns `[0, 1)` for `0 ≤ x < 1`, and a union for several; None for other relations.

    Returns None for `0 < x < 1`, too, since `(0, 1)` may as well be a point.
    """
    parts = [part for item in split_outside(chains) for part in item.split(r"\cup")]
    found = [_interval_of(part) for part in parts]
    names = {name for part in parts for name in _variables_of(part)}
    intervals = [interval for interval in found if interval is not None]
    if len(intervals) < len(found) or len(names) != 1:
        return None
    return r" \cup ".join(intervals)


def _variables_of(chain: str) -> list[str]:
    terms = (term.strip() for term in RELATION.split(chain))
    return [term for term in terms if VARIABLE.fullmatch(term) and term != r"\infty"]


def _interval_of(chain: str) -> str | None:
    signs, terms = RELATION.findall(chain), [term.strip() for term in RELATION.split(chain)]
    if not signs:
        return None
    if signs[0] in ">≥":
        signs, terms = [FLIPPED[sign] for sign in reversed(signs)], terms[::-1]
    if len(signs) == 1 and VARIABLE.fullmatch(terms[0]):
        signs, terms = ["<", *signs], [r"-\infty", *terms]
    elif len(signs) == 1:
        signs, terms = [*signs, "<"], [*terms, r"\infty"]
    is_rising = len(signs) == 2 and all(sign in "<≤" for sign in signs)
    is_pair = signs == ["<", "<"] and r"\infty" not in chain + terms[0] + terms[-1]
    if not is_rising or is_pair or not VARIABLE.fullmatch(terms[1]):
        return None
    opening, closing = "[" if signs[0] == "≤" else "(", "]" if signs[1] == "≤" else ")"
    return f"{opening}{terms[0]}, {terms[2]}{closing}"


def named_values(text: str) -> dict[str, str]:
    """Returns values by name, of `x = 3, y = 4` or `(x, y) = (3, 4)`; empty for another text."""
    points = [_coordinates(side) for side in split_outside(text, "=")]
    if len(points) == 2 and points[0] and len(points[0]) == len(points[1]):
        pairs = list(zip(*points, strict=True))
    else:
        sides = [split_outside(item, "=") for item in split_outside(text)]
        pairs = [(parts[0], parts[1]) for parts in sides if len(parts) == 2]
        pairs = pairs if len(pairs) == len(sides) else []
    found = dict(pairs)
    is_named = all(_NAME.fullmatch(name) for name in found)
    return found if len(found) == len(pairs) > 1 and is_named else {}


def _coordinates(point: str) -> list[str]:
    """Returns the items of a text in round brackets; empty for another text."""
    is_whole = point.startswith("(") and closing_place(point, 0) == len(point) - 1
    return split_outside(point[1:-1]) if is_whole else []


def as_point(values: dict[str, str]) -> str:
    """Returns the values as a point, with its coordinates in the order of their names."""
    return f"({', '.join(values[name] for name in sorted(values))})"


def are_of_one_function(name: str, other: str) -> bool:
    """Returns true for `f(3)` and `f(4)`, or `P(A)` and `P(B)`."""
    applied = _APPLIED.fullmatch(name), _APPLIED.fullmatch(other)
    return applied[0] is not None and applied[1] is not None and applied[0][1] == applied[1][1]


def is_name(text: str) -> bool:
    """Returns true for `x`, `a_1`, `AB`, `f(2)` and `P(A)`, which name a value.

    `x(x-1)` is a product: only names of functions are applied to more than a number or letter.
    """
    bare = re.sub(r"\s", "", text)
    if _NAMED.fullmatch(bare):
        return True
    called = _CALL.fullmatch(bare)
    if called is None or closing_place(bare, called.start(2) - 1) != len(bare) - 1:
        return False
    name = called[1]
    is_applied = _PLAIN_ARGUMENTS.fullmatch(called[2]) and name != called[2] and name != "x"
    return bool(is_applied or _FUNCTION_NAMES.match(name))


def rows_of(text: str) -> tuple[str, list[list[str]]] | None:
    """Returns the factor before a matrix, and its entries row by row; None for another text."""
    found = _MATRIX.fullmatch(text.strip())
    if found is None or r"\begin" in found[2]:
        return None
    return found[1].strip(), [row.split("&") for row in re.split(r"\\\\(?:\[[^\]]*\])?", found[2])]


def closing_place(text: str, place: int) -> int | None:
    """Returns the place of the bracket that closes the one at `place`."""
    depth = 0
    for index in range(place, len(text)):
        depth += (text[index] in OPENING) - (text[index] in CLOSING)
        if depth == 0:
            return index
    return None


def split_outside(text: str, separators: str = ",;") -> list[str]:
    """Splits a text at separators outside of brackets."""
    parts, depth, begin = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in OPENING) - (character in CLOSING)
        if character in separators and depth == 0:
            parts.append(text[begin:index].strip())
            begin = index + 1
    return [*parts, text[begin:].strip()]
