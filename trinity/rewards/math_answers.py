r"""Compares an answer with the truth by its form: numbers, lists, intervals, inequalities, words.

An answer is the text in `\boxed{}`, in answer tags or after `Answer:`. All of it counts: further
text after the expected number makes it another answer. Expressions without such a form are compared
by the function that the caller gives.
"""

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial

from trinity.rewards.math_forms import (
    FRACTION,
    WORD,
    has_unknown,
    in_numbers,
    is_prose,
    normalize,
    number_of,
    number_with_comma,
    rational,
    undelimited,
    unset,
    without_full_stop,
    written_out,
)
from trinity.rewards.math_relations import (
    FLIPPED,
    RELATION,
    VARIABLE,
    are_of_one_function,
    as_point,
    closing_place,
    interval_of,
    is_name,
    named_values,
    rows_of,
    split_outside,
)
from trinity.rewards.math_units import (
    DEGREES,
    are_different,
    number_with_suffix,
    unit_of,
    without_lone_unit,
)

Equal = Callable[[str, str], bool]
"""Compares two expressions in LaTeX."""
_CHOICE = re.compile(r"(?:[Oo]ption|[Cc]hoice)?\s*\(?([A-Z])\)?[.:]?")
_CHOICE_WITH_VALUE = re.compile(r"(?:\(([A-Z])\)[.:]?|([A-Z])[).:])\s*(?![A-Z])[^A-Z,;]+")
_SIGN = re.compile(rf"%|{DEGREES}")
_NUMERIC = re.compile(r"(?:[\d\s.+*/^(){}!-]|\\(?:frac|sqrt|cdot|times|div|pi)(?![a-zA-Z]))*")
_UNFINISHED = re.compile(r"'|\\(?:[lc]?dots|prime|[hv]?phantom)(?![a-zA-Z])|\.\.")
_NEXT_EQUATION = re.compile(r"[\d})]\s+[a-zA-Z]|\n")
_PERCENT = re.compile(r"\\?%\s*$")
_BASE = re.compile(r"_\{?(\d+)\}?$")
_INEXACT = re.compile(r"\\(?:pi|sqrt|frac)(?![a-zA-Z])|/")
"""Signs of an exact value, which a decimal number may round."""
_DATE = re.compile(
    r"\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2\d{4}"
    r"|\d{1,2}:[0-5]\d(?::[0-5]\d)?"
)
"""Dates, and times, which might be ratios: neither is computed."""
_MOST_COMPARED = 12
"""Items of lists, each compared with each: more are only compared as text."""
_EMPTY = ("", r"\emptyset")
"""In braces of a set these are no items: the set of the empty set is not empty."""
_STRANGE = re.compile(r"[^\x00-\x7f≤≥°]")
"""Characters that the parser of formulas leaves out in silence."""


def is_same_answer(answer: str, truth: str, equal: Equal) -> bool:
    """Returns true if the whole of the answer is the truth."""
    answer, truth = in_numbers(answer), in_numbers(truth)
    given, expected = normalize(answer), normalize(truth)
    units = [unit_of(without_full_stop(unset(text.strip()))) for text in (answer, truth)]
    if not given or not expected or are_different(*units):
        return False
    if units[0] == units[1]:
        given, expected = without_lone_unit(given), without_lone_unit(expected)
    if _compact(given) == _compact(expected):
        return True
    if _is_only_a_text(given) or _is_only_a_text(expected):
        return _without_zeros(given) == _without_zeros(expected)
    if (number := number_with_suffix(answer)) is not None and number == number_of(expected):
        return True
    if (number := number_with_comma(given, given != answer.strip())) is not None:
        value = rational(expected)
        if value is not None and value == Fraction(number):
            return True
    if _is_unfinished(given) != _is_unfinished(expected):
        return False
    if not _SIGN.search(answer) and any(_contradicts_itself(i, equal) for i in _items(given)):
        return False
    if _is_same(given, expected, equal):
        return True
    have_sign = [bool(_PERCENT.search(undelimited(text.strip()))) for text in (answer, truth)]
    if have_sign[0] == have_sign[1]:
        return False
    percent, other = (given, expected) if have_sign[0] else (expected, given)
    return _is_same_share(percent, other, equal)


def _is_same_share(percent: str, other: str, equal: Equal) -> bool:
    """Returns true if a number of per cent stands for the other number."""
    numbers = number_of(percent), number_of(other)
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0] * Decimal("0.01") == numbers[1]
    plain = [written_out(text) for text in (percent, other)]
    is_rational = all(number_of(text) or FRACTION.fullmatch(text) for text in plain)
    return is_rational and equal(rf"\frac{{1}}{{100}} \cdot {plain[0]}", plain[1])


def _is_unfinished(text: str) -> bool:
    """Returns true if a value has dots or a prime; names in front of it, as `f'(x)`, may."""
    return any(_UNFINISHED.search(_right_side(item)) for item in _items(text))


def _is_only_a_text(text: str) -> bool:
    """Returns true for a text that is not a formula: a date, a time, or one in another script."""
    return any(_DATE.fullmatch(item) for item in _items(text)) or bool(_STRANGE.search(text))


def _without_zeros(text: str) -> str:
    """Returns a date or time without the zeros before its numbers."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", _compact(text))


def _compact(text: str) -> str:
    """Removes blanks, but for those between digits, and the case of words."""
    joined = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)
    return joined.casefold() if WORD.search(text) else joined


def _is_same(given: str, expected: str, equal: Equal) -> bool:
    numbers = number_of(given), number_of(expected)
    if None not in numbers:
        return numbers[0] == numbers[1]
    choice = _CHOICE.fullmatch(expected)
    if choice and (own := _CHOICE.fullmatch(given)):
        return own[1] == choice[1]
    if choice and (own := _CHOICE_WITH_VALUE.fullmatch(given)) and not is_prose(given):
        return (own[1] or own[2]) == choice[1]
    if is_prose(given) or is_prose(expected):
        return False
    if r"\approx" in given and r"\approx" not in expected and "," not in given:
        return any(_is_same_value(value, expected, equal) for value in _meant(given, expected))
    are_relations = [RELATION.search(text) is not None for text in (given, expected)]
    if all(are_relations):
        relations = split_outside(given), split_outside(expected)
        return _is_permutation(*relations, partial(_is_same_relation, equal=equal))
    if any(are_relations):
        chain, other = (given, expected) if are_relations[0] else (expected, given)
        interval = interval_of(chain)
        return interval is not None and _is_same_value(interval, other, equal)
    if len(split_outside(given, "=")) > 1 or len(split_outside(expected, "=")) > 1:
        return _is_same_equation(given, expected, equal)
    return _is_same_value(given, expected, equal)


def _is_same_relation(given: str, expected: str, equal: Equal) -> bool:
    """Compares chains of inequalities, which may be written the other way round."""
    signs, terms = RELATION.findall(given), RELATION.split(given)
    other_signs, other_terms = RELATION.findall(expected), RELATION.split(expected)
    if not signs or len(signs) != len(other_signs) or "," in given or "," in expected:
        return False
    if signs != other_signs:
        signs, terms = [FLIPPED[sign] for sign in reversed(signs)], terms[::-1]
    pairs = zip(terms, other_terms, strict=True)
    return signs == other_signs and all(_is_same_value(*pair, equal) for pair in pairs)


def _is_same_equation(given: str, expected: str, equal: Equal) -> bool:
    r"""Compares right sides: `x = 5` answers `5`, and `y = 2x` only an equation of `y`.

    Several values by name are compared by their names, and with a point in the order of these.
    """
    named = named_values(given), named_values(expected)
    if all(named):
        return named[0].keys() == named[1].keys() and all(
            _is_same_value(value, named[1][name], equal) for name, value in named[0].items()
        )
    if any(named):
        values, other = (named[0], expected) if named[0] else (named[1], given)
        if _brackets(other) == "()":
            return _is_same_value(as_point(values), other, equal)
    sides = [split_outside(text, "=") for text in (given, expected)]
    if "," not in given + expected and all(len(parts) > 1 for parts in sides):
        names = [_compact(parts[0]) for parts in sides]
        if names[0] == names[1]:
            return _is_same_value(sides[0][-1], sides[1][-1], equal)
        solved = [_solved(parts) for parts in sides]
        if None not in solved and solved[0] == solved[1]:
            return _is_same_value(given, expected, equal)
        is_solution = solved[1] is not None and not has_unknown(_right_side(expected))
        return not is_solution and not are_of_one_function(*names) and equal(given, expected)
    given_values, expected_values = (
        [_value(item, equal) for item in _items(text)] for text in (given, expected)
    )
    found = [[value for value in each if value] for each in (given_values, expected_values)]
    if len(found[0]) < len(given_values) or len(found[1]) < len(expected_values):
        return False
    return _is_same_value(", ".join(found[0]), ", ".join(found[1]), equal)


def _solved(sides: Sequence[str]) -> str | None:
    """Returns the name that an equation gives a value to, `x` for `x = 4` and `4 = x`; or None."""
    names = [_compact(side) for side in sides if is_name(side)]
    return names[0] if len(names) == len(sides) - 1 and len(set(names)) == 1 else None


def _value(text: str, equal: Equal) -> str | None:
    r"""Returns the value that an answer gives; None for an equation without one.

    Names may precede `=`, as in `x = y = 12`, and expressions equal to the value: `3 \cdot 4 = 12`.
    A formula with an unknown, `3x = 12`, does not give an answer, unless a name precedes it:
    `A = \pi r^2 = 12`. Nor does a calculation that ends in 0: `12 - 12 = 0` is a check.
    """
    sides = [side for side in split_outside(text, "=") if side]
    if not sides:
        return None
    formulas = [side for side in sides if not is_name(side)] or sides[-1:]
    value = formulas[-1].rpartition(r"\approx")[2].strip()
    is_derived = len(sides) > 2 and is_name(sides[0])
    others = [side for side in formulas[:-1] if not is_derived or not _is_formula(side)]
    if others and number_of(value) == 0:
        return None
    return value if all(_comes_to(side, value, equal) for side in others) else None


def _is_formula(side: str) -> bool:
    r"""Returns true for `\pi r^2`; `11 b` ends one equation and begins another."""
    return has_unknown(side) and not _NEXT_EQUATION.search(side)


def _comes_to(side: str, value: str, equal: Equal) -> bool:
    """Returns true if a side of an equation has the value, which may be rounded or in degrees."""
    if equal(written_out(side), written_out(value)) or _rounds_to(side, value):
        return True
    if has_unknown(side):
        return False
    in_degrees = r"\frac{180}{\pi}" if r"\arc" in side else r"\frac{1}{100}"
    return equal(rf"{in_degrees} \cdot {written_out(side)}", written_out(value))


def _meant(given: str, expected: str) -> list[str]:
    r"""Returns the possible answers in `2\sqrt{2} \approx 2.83`; empty for `1 \approx 8`.

    A decimal number is meant by the rounded side, and an exact value by the other one.
    """
    left, _, rounded = given.rpartition(r"\approx")
    exact = split_outside(left, "=")[-1]
    if not exact or VARIABLE.fullmatch(exact):
        return [rounded]
    value, number = rational(exact), number_of(rounded)
    if value is not None and number is not None:
        return [exact, rounded] if _is_near(value, number) else []
    return [rounded] if number_of(expected) is not None else [exact]


def _is_near(value: Fraction, rounded: Decimal) -> bool:
    """Returns true if the value is rounded to the last digit that is not a zero, up or down."""
    exponent = rounded.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return abs(value - Fraction(rounded)) < Fraction(10) ** exponent


def _right_side(text: str) -> str:
    return split_outside(text, "=")[-1].rpartition(r"\approx")[2].strip()


def _contradicts_itself(text: str, equal: Equal) -> bool:
    """Returns true for an equation of different numbers, such as `6 = 5`."""
    equation = text.replace(r"\equiv", "=")
    sides = [side for side in split_outside(equation, "=") if side and _NUMERIC.fullmatch(side)]
    return any(
        not _is_same_value(side, sides[-1], equal) and not _rounds_to(side, sides[-1])
        for side in sides[:-1]
    )


def _rounds_to(exact: str, rounded: str) -> bool:
    r"""Returns true for `\frac{2}{3}` and `0.67` or `0.66`; for `\pi` and any decimal number."""
    decimal = number_of(rounded)
    digits = decimal.as_tuple().exponent if decimal is not None else 0
    if decimal is None or not isinstance(digits, int) or digits >= 0:
        return False
    value = rational(exact)
    if value is None:
        return _INEXACT.search(exact) is not None
    return abs(value - Fraction(decimal)) < Fraction(10) ** digits


def _is_same_value(given: str, expected: str, equal: Equal) -> bool:
    if given and _compact(given) == _compact(expected):
        return True
    values = _value(given, equal), _value(expected, equal)
    if not values[0] or not values[1]:
        return False
    given, expected = values[0], values[1]
    if _compact(given) == _compact(expected):
        return True
    if (is_same := _is_same_matrix(given, expected, equal)) is not None:
        return is_same
    bases = [_BASE.findall(text.strip()) for text in (given, expected)]
    if bases[0] != bases[1]:
        return False
    if bases[0]:
        given, expected = (_BASE.sub("", text.strip()) for text in (given, expected))
    if r"\cup" in given + expected:
        parts = given.split(r"\cup"), expected.split(r"\cup")
        return _is_permutation(*parts, partial(_is_same_value, equal=equal))
    given, expected = _out_of_brackets(_out_of_set(given)), _out_of_brackets(_out_of_set(expected))
    ends, other_ends = _brackets(given), _brackets(expected)
    if ends or other_ends:
        return ends == other_ends and _is_sequence(given, expected, equal)
    items, others = _alternatives(given), _alternatives(expected)
    if len(items) > 1 or len(others) > 1:
        return _is_permutation(items, others, partial(_is_same_value, equal=equal))
    numbers = number_of(given), number_of(expected)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return equal(written_out(given), written_out(expected))


def _is_same_matrix(given: str, expected: str, equal: Equal) -> bool | None:
    """Compares matrices entry by entry, and a column with a vector; None for other values."""
    matrices = [_entries(text) for text in (given, expected)]
    if not any(matrices) or not all(matrices):
        return None if not any(matrices) else False
    pairs = list(zip(*matrices, strict=False))
    are_alike = [len(row) for row in matrices[0]] == [len(row) for row in matrices[1]]
    return are_alike and all(
        _is_same_value(entry, other, equal)
        for row, other_row in pairs
        for entry, other in zip(row, other_row, strict=True)
    )


def _entries(text: str) -> list[list[str]]:
    """Returns the entries of a matrix or vector row by row; empty for another text."""
    found = rows_of(text)
    if found is None:
        is_vector = _brackets(text) == "()"
        return [[item] for item in split_outside(text.strip()[1:-1])] if is_vector else []
    factor, rows = found
    if factor and not _NUMERIC.fullmatch(factor):
        return []
    return [[rf"({factor}) \cdot ({entry})" if factor else entry for entry in row] for row in rows]


def _brackets(text: str) -> str:
    """Returns the brackets of a pair or an interval; empty if it is neither."""
    text = text.strip()
    is_whole = text[:1] in "([" and text[-1:] in ")]" and closing_place(text, 0) == len(text) - 1
    return text[0] + text[-1] if is_whole and len(split_outside(text[1:-1])) > 1 else ""


def _is_sequence(given: str, expected: str, equal: Equal) -> bool:
    items, others = split_outside(given.strip()[1:-1]), split_outside(expected.strip()[1:-1])
    return len(items) == len(others) and all(
        _is_same_value(*pair, equal) for pair in zip(items, others, strict=True)
    )


def _is_permutation(items: Sequence[str], others: Sequence[str], is_same: Equal) -> bool:
    """Compares without order; each of the others is taken once."""
    left = list(others)
    if len(items) != len(left):
        return False
    for item in [item for item in items if not _taken(item, left)]:
        if len(left) > _MOST_COMPARED:
            return False
        match = next((other for other in left if is_same(item, other)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _taken(item: str, left: list[str]) -> bool:
    """Takes the item out of those that are left, if it is written alike."""
    same = next((other for other in left if _compact(other) == _compact(item)), None)
    if same is not None:
        left.remove(same)
    return same is not None


def _out_of_set(text: str) -> str:
    """Returns the items of a set, without its braces."""
    text = text.strip()
    if text.startswith(r"\{") and text.endswith(r"\}"):
        inside = text[2:-2].strip()
        return text if inside in _EMPTY else inside
    is_set = text.startswith("{") and closing_place(text, 0) == len(text) - 1
    return text[1:-1].strip() if is_set else text


def _out_of_brackets(text: str) -> str:
    """Returns a single value without round brackets around the whole of it."""
    text = text.strip()
    while text.startswith("(") and closing_place(text, 0) == len(text) - 1:
        inside = text[1:-1].strip()
        if not inside or len(split_outside(inside)) > 1:
            return text
        text = inside
    return text


def _items(text: str) -> list[str]:
    """Returns the items of a list or set."""
    text = _out_of_set(text)
    return [text] if number_of(text) is not None else split_outside(text)


def _alternatives(text: str) -> list[str]:
    r"""Returns the items, of which `\pm` makes two each."""
    found: list[str] = []
    for item in _items(text):
        both = r"\pm" in item
        found += [item.replace(r"\pm", sign) for sign in "+-"] if both else [item]
    return found
