r"""Compares an answer with the truth by its form: numbers, lists, intervals, inequalities, words.

An answer is what stands in `\boxed{}`, in answer tags or after `Answer:`. All of it counts: what is
left over after the number that is sought makes it another answer. Expressions without such a form
are compared by the function that the caller gives.
"""

import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import partial

from trinity.rewards.math_characters import in_latex
from trinity.rewards.math_relations import (
    FLIPPED,
    RELATION,
    VARIABLE,
    are_of_one_function,
    as_point,
    as_set_of_numbers,
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
    multiplied_out,
    number_with_suffix,
    unit_of,
    without_bare_unit,
    without_lone_unit,
    without_set_unit,
)

Equal = Callable[[str, str], bool]
"""Compares two expressions in LaTeX."""

_END = r"(?:[eE][-+]?\d+)?"
_THOUSANDS = r"\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+"
NUMBER = re.compile(rf"(?:[-+] ?)?(?:(?:\d+|{_THOUSANDS})(?:\.\d*)?|\.\d+){_END}")
"""Commas and blanks only separate thousands: any other comma may separate list items."""

_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_REPLACED = (
    (re.compile(r"\\color\s*\{\w*\}"), ""),
    (re.compile(r"\\(?:left|right|big|Big|bigg|Bigg|displaystyle|limits)(?![a-zA-Z])"), ""),
    (re.compile(r"\\[dt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\q?quad(?![a-zA-Z])"), ","),
    (re.compile(r"(?<!\\)\\[,;:!> ]|~"), " "),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\s*\*\s*"), r" \\cdot "),
    (re.compile(r"(?<=\d)\s+secs?$"), " seconds"),
    (re.compile(r"(?<![\\a-zA-Z])(sin|cos|tan|cot|sec|csc|ln|log|exp|pi)(?![a-zA-Z])"), r"\\\1"),
    (re.compile(r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\a-zA-Z])(?:infinity|inf)(?![a-zA-Z])"), r"\\infty"),
    (re.compile(r"^\s*[a-zA-Z]\s*\\in(?![a-zA-Z])"), ""),
    (re.compile(r"^\s*m?\s*\\angle\s*\{?\s*[A-Z]{1,3}\s*\}?\s*="), ""),
    (re.compile(r"\\\\\s*$|[€£¥₹₩₽]|\\(?:euro|pounds)(?![a-zA-Z])"), " "),
    (re.compile(rf"\\\$|\\?%|{DEGREES}"), " "),
    (re.compile(r"\\(?:leq?|leqslant)(?![a-zA-Z])"), "≤"),
    (re.compile(r"\\(?:geq?|geqslant)(?![a-zA-Z])"), "≥"),
    (re.compile(r"\\(?:lt)(?![a-zA-Z])"), "<"),
    (re.compile(r"\\(?:gt)(?![a-zA-Z])"), ">"),
    (re.compile(r"<="), "≤"),
    (re.compile(r">="), "≥"),
    (re.compile(r"\\varnothing|\\empty(?![a-zA-Z])"), r"\\emptyset"),
    (re.compile(r"\\langle(?![a-zA-Z])"), "("),
    (re.compile(r"\\rangle(?![a-zA-Z])"), ")"),
    (re.compile(r"\\(begin|end)\{[bB]?matrix\}"), r"\\\1{pmatrix}"),
    (
        re.compile(r"[(\[]\s*\\begin\{array\}\{[lcr ]*\}(.*?)\\end\{array\}\s*[)\]]", re.DOTALL),
        r"\\begin{pmatrix}\1\\end{pmatrix}",
    ),
    (re.compile(r"\\\\\s*(?=\\end\{pmatrix\})"), ""),
    (re.compile(r"^[(\[]\s*(\\begin\{pmatrix\}[^\[\]()]*\\end\{pmatrix\})\s*[)\]]$"), r"\1"),
    (re.compile(r"(?<=\d)\s*x\s*(?=10\s*\^)"), r" \\cdot "),
    (re.compile(r"\^\s*(-\d+)(?![\w.])"), r"^{\1}"),
)
_WORDS = (
    (
        re.compile(rf"(?:{DEGREES})\s*(?:\\(?:text|mathrm)\s*\{{\s*)?([CF])\s*\}}?(?=\$?$)"),
        r"^{\\circ}\\text{\1}",
    ),
    (
        re.compile(r"(?<=[\d})])(?:\s|~)*(?:\\(?:text|mathrm)\s*\{\s*)?per ?cent\s*\}?(?=\$?$)"),
        r"\\%",
    ),
    (re.compile(r"^(\$?)(\d+) (?:in|out of) (\d+)(?=\$?$)"), r"\1\\frac{\2}{\3}"),
)
_TEXT = re.compile(
    r"\\(?:boxed|text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|operatorname|underline|fbox"
    r"|(?:textcolor|colorbox)\s*\{\w*\})\s*\{"
)
_JOINED = re.compile(r"\\(?:lor|land|vee|wedge)(?![a-zA-Z])|(?<![a-zA-Z\\])(?:or|and)(?![a-zA-Z])")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_NO_WORDS = re.compile(
    r"\\(?:begin|end)\{\w+\}|(?:\\(?:triangle|angle|overline)\s*\{?\s*|\[)[A-Z]{2,4}"
)
_FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "exp", "max", "min", "gcd"}
_SHORT_WORDS = {
    *("an", "as", "at", "be", "by", "if", "in", "is", "it", "no", "of", "on", "so", "to", "we"),
}
_ANGLE = re.compile(rf"(\d+(?:\.\d+)?)\s*(?:{DEGREES})")
_ANGULAR = re.compile(r"(?<![a-zA-Z])\\?(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_CHOICE = re.compile(r"(?:[Oo]ption|[Cc]hoice)?\s*\(?([A-Z])\)?[.:]?")
_CHOICE_WITH_VALUE = re.compile(r"(?:\(([A-Z])\)[.:]?|([A-Z])[).:])\s*(?![A-Z])[^A-Z,;]+")
_SIGN = re.compile(rf"%|{DEGREES}")
_NUMERIC = re.compile(r"(?:[\d\s.+*/^(){}!-]|\\(?:frac|sqrt|cdot|times|div|pi)(?![a-zA-Z]))*")
_UNFINISHED = re.compile(r"'|\\(?:[lc]?dots|prime|[hv]?phantom)(?![a-zA-Z])|\.\.")
_PERCENT = re.compile(r"\\?%\s*$")
_BASE = re.compile(r"_\{?(\d+)\}?$")
_RECURRING = re.compile(r"(-?)(\d*)\.(\d*)\\overline\s*\{?(\d+)\}?")
_FRACTION = re.compile(r"-?(?:(\d+)\s*/\s*(\d+)|\\frac\s*\{?\s*(\d+)\s*\}?\s*\{?\s*(\d+)\s*\}?)")
_INEXACT = re.compile(r"\\(?:pi|sqrt|frac)(?![a-zA-Z])|/")
"""Signs of an exact value, which a decimal number may round."""
_MIXED = re.compile(r"(-?)(\d+)\s*\\frac\s*\{?(\d+)\}?\s*\{?(\d+)\}?|(-?)(\d+)\s+(\d+)\s*/\s*(\d+)")
_DATE = re.compile(
    r"\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2\d{4}"
    r"|\d{1,2}:[0-5]\d(?::[0-5]\d)?"
)
"""Dates, and times, which might be ratios: neither is computed."""
_MOST_COMPARED = 12
"""Items of lists, each compared with each: more are only compared as text."""
_EMPTY = ("", r"\emptyset")
"""In braces of a set these are no items: the set of the empty set is not empty."""
_QUANTITY = re.compile(
    r"^\s*(?:the )?(?:total|area|volume|perimeter|length|sum|number|probability|result|answer|value"
    r"|distance|speed|time|cost|price|profit)\s*=(?!=)",
    re.IGNORECASE,
)
"""A quantity that an equation gives a value to, in words."""
_COMMA_FOR_POINT = re.compile(
    r"[-+]?(?:\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?: \d{3})+,\d+|\d+,\d+|\d{1,3}(?:\.\d{3}){2,}"
    r"|\d{1,3}(?:'\d{3})+)"
)
_STRANGE = re.compile(r"[^\x00-\x7f≤≥°]")
"""Characters that the parser of formulas leaves out in silence."""


def is_same_answer(answer: str, truth: str, equal: Equal) -> bool:
    """Returns true if the whole of the answer is the truth."""
    answer, truth = in_numbers(answer), in_numbers(truth)
    given, expected = normalize(answer), normalize(truth)
    units = [unit_of(_without_full_stop(_unset(text.strip()))) for text in (answer, truth)]
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
    if (number := _number_with_comma(given, given != answer.strip())) is not None:
        value = _rational(expected)
        if value is not None and value == Fraction(number):
            return True
    if _is_unfinished(given) != _is_unfinished(expected):
        return False
    if not _SIGN.search(answer) and any(_contradicts_itself(i, equal) for i in _items(given)):
        return False
    if _is_same(given, expected, equal):
        return True
    have_sign = [bool(_PERCENT.search(_undelimited(text.strip()))) for text in (answer, truth)]
    if have_sign[0] == have_sign[1]:
        return False
    percent, other = (given, expected) if have_sign[0] else (expected, given)
    return _is_same_share(percent, other, equal)


def in_numbers(text: str) -> str:
    """Returns the text in LaTeX, with numbers and signs for words that stand for these."""
    text = in_latex(text)
    for pattern, replacement in _WORDS:
        text = pattern.sub(replacement, text)
    return multiplied_out(text)


def _is_same_share(percent: str, other: str, equal: Equal) -> bool:
    """Returns true if a number of per cent stands for the other number."""
    numbers = number_of(percent), number_of(other)
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0] * Decimal("0.01") == numbers[1]
    plain = [_plain(text) for text in (percent, other)]
    is_rational = all(number_of(text) or _FRACTION.fullmatch(text) for text in plain)
    return is_rational and equal(rf"\frac{{1}}{{100}} \cdot {plain[0]}", plain[1])


def normalize(text: str) -> str:
    """Returns the text without delimiters, fonts, sizes, units, per cent and degree signs."""
    text = _undelimited(text.strip())
    text = without_set_unit(_without_full_stop(text))
    if _ANGULAR.search(text):
        text = _ANGLE.sub(r"{\\frac{\1 \\pi}{180}}", text)
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    text = _JOINED.sub(",", _without_fonts(text)).strip()
    text = _without_full_stop(text).strip()
    text = re.sub(r",\s*(?=,)", "", without_bare_unit(text)).strip()
    return as_set_of_numbers(_QUANTITY.sub("", text).strip())


def _without_full_stop(text: str) -> str:
    """Returns the text without one dot at its end; several are dots of a number that goes on."""
    return text if text.endswith("..") else text.removesuffix(".")


def _is_unfinished(text: str) -> bool:
    """Returns true if a value has dots or a prime; names in front of it, as `f'(x)`, may."""
    return any(_UNFINISHED.search(_right_side(item)) for item in _items(text))


def _is_only_a_text(text: str) -> bool:
    """Returns true for what is no formula: a date, a time, and what holds other writing."""
    return any(_DATE.fullmatch(item) for item in _items(text)) or bool(_STRANGE.search(text))


def _without_zeros(text: str) -> str:
    """Returns a date or time without the zeros before its numbers."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", _compact(text))


def number_of(text: str) -> Decimal | None:
    """Parses a plain number; None for anything else."""
    bare = text.strip("$").strip()
    if not NUMBER.fullmatch(bare):
        return None
    try:
        return Decimal(bare.replace(",", "").replace(" ", ""))
    except InvalidOperation:  # the exponent is too large
        return None


def _number_with_comma(text: str, has_unit: bool) -> Decimal | None:
    """Returns the value of `2,5`, `1.234,56` or `1'234`; None where commas separate thousands.

    `5,0` may as well be a list, unless a unit or sign stands beside it.
    """
    bare = text.replace(" ", "")
    is_list = bare.endswith(",0") and not has_unit
    if not _COMMA_FOR_POINT.fullmatch(text) or NUMBER.fullmatch(text) or is_list:
        return None
    return Decimal(bare.replace("'", "").replace(".", "").replace(",", "."))


def _undelimited(text: str) -> str:
    for opening, closing in _DELIMITERS:
        inside = text.removeprefix(opening).removesuffix(closing)
        if len(inside) == len(text) - len(opening) - len(closing) and opening not in inside:
            return inside.strip()
    if text.startswith(r"\boxed{") and closing_place(text, len(r"\boxed{") - 1) == len(text) - 1:
        return text[len(r"\boxed{") : -1].strip()
    return text


def _unset(text: str) -> str:
    r"""Returns the text without delimiters, and out of a `\text{}` that is around the whole."""
    text = _undelimited(text)
    while (found := _TEXT.match(text)) is not None:
        if closing_place(text, found.end() - 1) != len(text) - 1:
            break
        text = _undelimited(text[found.end() : -1].strip())
    return text


def _without_fonts(text: str) -> str:
    """Puts the contents of `\\text{}` and its like in their places, set apart by blanks."""
    while (found := _TEXT.search(text)) is not None:
        end = closing_place(text, found.end() - 1)
        if end is None:
            return text
        text = f"{text[: found.start()]} {text[found.end() : end]} {text[end + 1 :]}"
    return text


def _compact(text: str) -> str:
    """Removes blanks, but for those between digits, and the case of words."""
    joined = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)
    return joined.casefold() if _WORD.search(text) else joined


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


def is_prose(text: str) -> bool:
    """Returns true for a text with words; functions, and two letters of a product, are none."""
    words = {word.lower() for word in _WORD.findall(_NO_WORDS.sub("", text))} - _FUNCTIONS
    return any(len(word) > 2 or word in _SHORT_WORDS for word in words)


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
        is_solution = solved[1] is not None and not _has_unknown(_right_side(expected))
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


def _has_unknown(text: str) -> bool:
    return bool(
        re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+|(?<![a-zA-Z])[ei](?![a-zA-Z])", "", text))
    )


def _value(text: str, equal: Equal) -> str | None:
    r"""Returns the value that an answer gives; None for an equation that gives none.

    In front of `=` may stand names, `x = y = 12`, and what comes to the value, `3 \cdot 4 = 12`. A
    formula of an unknown, `3x = 12`, gives the value of nothing that was asked for. Nor does a
    calculation that ends in 0: `12 - 12 = 0` is a check.
    """
    sides = [side for side in split_outside(text, "=") if side]
    if not sides:
        return None
    formulas = [side for side in sides if not is_name(side)] or sides[-1:]
    value = formulas[-1].rpartition(r"\approx")[2].strip()
    others = formulas[:-1]
    if others and number_of(value) == 0:
        return None
    return value if all(_comes_to(side, value, equal) for side in others) else None


def _comes_to(side: str, value: str, equal: Equal) -> bool:
    """Returns true if a side of an equation has the value, which may be rounded or in degrees."""
    if equal(_plain(side), _plain(value)) or _rounds_to(side, value):
        return True
    if _has_unknown(side):
        return False
    in_degrees = r"\frac{180}{\pi}" if r"\arc" in side else r"\frac{1}{100}"
    return equal(rf"{in_degrees} \cdot {_plain(side)}", _plain(value))


def _meant(given: str, expected: str) -> list[str]:
    r"""Returns what `2\sqrt{2} \approx 2.83` may mean as an answer; nothing for `1 \approx 8`.

    A decimal number is meant by the rounded side, and an exact value by the other one.
    """
    left, _, rounded = given.rpartition(r"\approx")
    exact = split_outside(left, "=")[-1]
    if not exact or VARIABLE.fullmatch(exact):
        return [rounded]
    value, number = _rational(exact), number_of(rounded)
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
    value = _rational(exact)
    if value is None:
        return _INEXACT.search(exact) is not None
    return abs(value - Fraction(decimal)) < Fraction(10) ** digits


def _rational(text: str) -> Fraction | None:
    """Returns the value of a number or fraction; None for anything else."""
    plain = _plain(text).strip()
    if (number := number_of(plain)) is not None:
        return Fraction(number)
    if (found := _FRACTION.fullmatch(plain)) is None:
        return None
    top, under = (int(group) for group in found.groups() if group is not None)
    return Fraction(-top if plain.startswith("-") else top, under) if under else None


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
    return equal(_plain(given), _plain(expected))


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
    """Returns the entries of a matrix or vector row by row; none for another text."""
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


def _plain(text: str) -> str:
    """Writes recurring decimals and mixed numbers as fractions."""
    if found := _RECURRING.fullmatch(text.replace(" ", "")):
        sign, whole, fixed, period = found.groups()
        nines = "9" * len(period) + "0" * len(fixed)
        top = int(f"{whole}{fixed}{period}") - int(f"{whole}{fixed}" or "0")
        return rf"{sign}\frac{{{top}}}{{{nines}}}"
    if found := _MIXED.fullmatch(text.strip()):
        sign, whole, over, under = (group for group in found.groups() if group is not None)
        return rf"{sign}\frac{{{int(whole) * int(under) + int(over)}}}{{{under}}}"
    return text
