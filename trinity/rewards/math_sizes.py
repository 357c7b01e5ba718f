r"""Estimates how large an expression becomes before it is computed: `(10^9)!` is never begun."""

import math
import re

from sympy import (
    Abs,
    Basic,
    Derivative,
    Float,
    Function,
    Integral,
    MatrixBase,
    Pow,
    Product,
    Rational,
    Sum,
    binomial,
    log,
)
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.integers import RoundFunction
from sympy.functions.elementary.trigonometric import (
    InverseTrigonometricFunction,
    TrigonometricFunction,
)

MAX_BITS = 100_000.0
"""Numbers of 30,000 digits are computed in milliseconds."""
MAX_EXPONENT_BITS = 128
MAX_TERMS = 2_000
"""Limit for a sum, a product, or a power that is multiplied out."""
MAX_DERIVATIVES = 20
MAX_DEPTH = 25
"""Brackets in one another: the parser takes seconds from here on."""
MAX_CHARACTERS = 1_000
_SLOW_GROWING = (
    TrigonometricFunction,
    InverseTrigonometricFunction,
    log,
    Abs,
    AppliedUndef,
    RoundFunction,
)
_COMPUTED_AT_ONCE = re.compile(r"(?:gcd|lcm)[^=]*[\^!]")
"""The parser computes these as it reads them."""
_BRACKET = re.compile(r"[(\[{]|[)\]}]")


def is_readable(text: str) -> bool:
    """Returns true for a formula that the parser reads in a moment."""
    depth = deepest = 0
    for bracket in _BRACKET.findall(text):
        depth += 1 if bracket in "([{" else -1
        deepest = max(deepest, depth)
    is_short = deepest <= MAX_DEPTH and len(text) <= MAX_CHARACTERS
    return is_short and not _COMPUTED_AT_ONCE.search(text)


def is_computable(expression: Basic | MatrixBase) -> bool:
    """Returns true if no part of an expression becomes larger than anyone waits for."""
    entries = expression.flat() if isinstance(expression, MatrixBase) else [expression]
    return sum(_bits(entry, {}) for entry in entries) <= MAX_BITS


def _bits(part: Basic, known: dict[Basic, float]) -> float:
    """Estimates the binary digits of a value, from above; `known` are those of running indices."""
    if isinstance(part, Rational):
        return float(part.p.bit_length() + part.q.bit_length())
    if isinstance(part, Float):
        return 64.0 + abs(float(part._mpf_[2]))
    if isinstance(part, Sum | Product):
        return _bits_of_series(part, known)
    inner = [_bits(each, known) for each in part.args if isinstance(each, Basic)]
    if max(inner, default=0.0) > MAX_BITS:
        return math.inf
    if isinstance(part, Pow):
        return _bits_of_power(part, *inner)
    if isinstance(part, binomial):
        return min(_value(inner[0]), inner[0] * _value(inner[1]))
    if isinstance(part, Function) and not isinstance(part, _SLOW_GROWING):
        return (inner[0] + 2) * (1.0 if part.free_symbols else _value(inner[0]))
    if isinstance(part, Derivative) and part.derivative_count > MAX_DERIVATIVES:
        return math.inf
    if isinstance(part, Integral) and len(part.limits) > 2:
        return math.inf
    return sum(inner) + known.get(part, 1.0)


def _value(bits: float) -> float:
    return math.exp2(min(bits, 64.0))


def _bits_of_power(power: Pow, base: float, exponent: float) -> float:
    times: float = 1.0
    if isinstance(power.exp, Rational | Float):
        times = max(1.0, abs(float(power.exp))) if exponent <= MAX_EXPONENT_BITS else math.inf
    elif not power.exp.free_symbols or base > 1:
        times = _value(exponent) if power.exp.is_integer is not False else 1.0 + exponent
    names = len(power.base.free_symbols)
    if names and power.base.is_Add and math.comb(int(min(times, 1e6)) + names, names) > MAX_TERMS:
        return math.inf
    return base * times


def _bits_of_series(series: Sum | Product, known: dict[Basic, float]) -> float:
    """Multiplies the digits of a term by the number of terms, if that is known."""
    terms, known = 1.0, dict(known)
    for index, *ends in reversed(series.limits):
        if len(ends) == 2 and all(end.is_number and end.is_finite for end in ends):
            known[index] = max(_bits(end, known) for end in ends)
            terms *= _value(known[index])
            if known[index] <= 64:
                terms = terms / _value(known[index]) * (abs(float(ends[1] - ends[0])) + 1)
    return math.inf if terms > MAX_TERMS else terms * _bits(series.function, known)
