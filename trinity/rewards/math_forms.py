r"""Writes answers in one form: without delimiters, fonts, units; and reads numbers in them."""

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from trinity.rewards.math_characters import in_latex
from trinity.rewards.math_relations import (
    as_set_of_numbers,
    closing_place,
)
from trinity.rewards.math_units import (
    DEGREES,
    multiplied_out,
    without_bare_unit,
    without_set_unit,
)

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
    (re.compile(r"\\(begin|end)\{(?:[bB]|small)?matrix\}"), r"\\\1{pmatrix}"),
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
    (re.compile(r"\\mathrm\s*\{\s*([ei])\s*\}"), r" \1"),
    (re.compile(r"^(\$?)(\d+) (?:in|out of) (\d+)(?=\$?$)"), r"\1\\frac{\2}{\3}"),
)
_TEXT = re.compile(
    r"\\(?:boxed|text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|operatorname|underline|fbox"
    r"|(?:textcolor|colorbox)\s*\{\w*\})\s*\{"
)
_JOINED = re.compile(r"\\(?:lor|land|vee|wedge)(?![a-zA-Z])|(?<![a-zA-Z\\])(?:or|and)(?![a-zA-Z])")
WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_NO_WORDS = re.compile(
    r"\\(?:begin|end)\{\w+\}|(?:\\(?:triangle|angle|overline)\s*\{?\s*|\[)[A-Z]{2,4}"
)
_FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "exp", "max", "min", "gcd"}
_SHORT_WORDS = {
    *("an", "as", "at", "be", "by", "if", "in", "is", "it", "no", "of", "on", "so", "to", "we"),
}
_ANGLE = re.compile(rf"(\d+(?:\.\d+)?)\s*(?:{DEGREES})")
_ANGULAR = re.compile(r"(?<![a-zA-Z])\\?(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_RECURRING = re.compile(r"(-?)(\d*)\.(\d*)\\overline\s*\{?(\d+)\}?")
FRACTION = re.compile(r"-?(?:(\d+)\s*/\s*(\d+)|\\frac\s*\{?\s*(\d+)\s*\}?\s*\{?\s*(\d+)\s*\}?)")
_MIXED = re.compile(r"(-?)(\d+)\s*\\frac\s*\{?(\d+)\}?\s*\{?(\d+)\}?|(-?)(\d+)\s+(\d+)\s*/\s*(\d+)")
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


def in_numbers(text: str) -> str:
    """Returns the text in LaTeX, with numbers and signs for words that stand for these."""
    text = in_latex(text)
    for pattern, replacement in _WORDS:
        text = pattern.sub(replacement, text)
    return multiplied_out(text)


def normalize(text: str) -> str:
    """Returns the text without delimiters, fonts, sizes, units, per cent and degree signs."""
    text = undelimited(text.strip())
    text = without_set_unit(without_full_stop(text))
    if _ANGULAR.search(text):
        text = _ANGLE.sub(r"{\\frac{\1 \\pi}{180}}", text)
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    text = _JOINED.sub(",", _without_fonts(text)).strip()
    text = without_full_stop(text).strip()
    text = re.sub(r",\s*(?=,)", "", without_bare_unit(text)).strip()
    return as_set_of_numbers(_QUANTITY.sub("", text).strip())


def without_full_stop(text: str) -> str:
    """Returns the text without one dot at its end; several are dots of a number that goes on."""
    return text if text.endswith("..") else text.removesuffix(".")


def number_of(text: str) -> Decimal | None:
    """Parses a plain number; None for anything else."""
    bare = text.strip("$").strip()
    if not NUMBER.fullmatch(bare):
        return None
    try:
        return Decimal(bare.replace(",", "").replace(" ", ""))
    except InvalidOperation:  # the exponent is too large
        return None


def number_with_comma(text: str, has_unit: bool) -> Decimal | None:
    """Returns the value of `2,5`, `1.234,56` or `1'234`; None where commas separate thousands.

    `5,0` may as well be a list, unless it has a unit or sign.
    """
    bare = text.replace(" ", "")
    is_list = bare.endswith(",0") and not has_unit
    if not _COMMA_FOR_POINT.fullmatch(text) or NUMBER.fullmatch(text) or is_list:
        return None
    return Decimal(bare.replace("'", "").replace(".", "").replace(",", "."))


def undelimited(text: str) -> str:
    for opening, closing in _DELIMITERS:
        inside = text.removeprefix(opening).removesuffix(closing)
        if len(inside) == len(text) - len(opening) - len(closing) and opening not in inside:
            return inside.strip()
    if text.startswith(r"\boxed{") and closing_place(text, len(r"\boxed{") - 1) == len(text) - 1:
        return text[len(r"\boxed{") : -1].strip()
    return text


def unset(text: str) -> str:
    r"""Returns the text without delimiters, and out of a `\text{}` that is around the whole."""
    text = undelimited(text)
    while (found := _TEXT.match(text)) is not None:
        if closing_place(text, found.end() - 1) != len(text) - 1:
            break
        text = undelimited(text[found.end() : -1].strip())
    return text


def _without_fonts(text: str) -> str:
    """Puts the contents of `\\text{}` and its like in their places, set apart by blanks."""
    while (found := _TEXT.search(text)) is not None:
        end = closing_place(text, found.end() - 1)
        if end is None:
            return text
        text = f"{text[: found.start()]} {text[found.end() : end]} {text[end + 1 :]}"
    return text


def is_prose(text: str) -> bool:
    """Returns true for a text with words; functions, and products of two letters, do not count."""
    words = {word.lower() for word in WORD.findall(_NO_WORDS.sub("", text))} - _FUNCTIONS
    return any(len(word) > 2 or word in _SHORT_WORDS for word in words)


def has_unknown(text: str) -> bool:
    return bool(
        re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+|(?<![a-zA-Z])[ei](?![a-zA-Z])", "", text))
    )


def rational(text: str) -> Fraction | None:
    """Returns the value of a number or fraction; None for anything else."""
    plain = written_out(text).strip()
    if (number := number_of(plain)) is not None:
        return Fraction(number)
    if (found := FRACTION.fullmatch(plain)) is None:
        return None
    top, under = (int(group) for group in found.groups() if group is not None)
    return Fraction(-top if plain.startswith("-") else top, under) if under else None


def written_out(text: str) -> str:
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
