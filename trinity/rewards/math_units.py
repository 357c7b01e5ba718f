r"""Units of answers: bare, in `\text{}`, and as signs such as `%` and `^\circ`."""

import re

DEGREES = r"\^\s*\{?\s*\\circ\s*\}?|\\degree|°"
_AFTER_A_NUMBER = r"(?:(?<=[\d})])|(?<=\\pi))"
_SHORT_UNIT = (
    r"(?:[cdkmn]m|[cdm][lL]|[km]g|[kKMGT]B|ms|ft|in|yd|mi|ha|cc|lb|oz|hr|wk|yr|am|pm|Hz|kW|kJ|Pa|sq"
    r"|cu|rad)(?![a-zA-Z])"
)
_UNIT = re.compile(
    rf"(?:(?<=[\d}})])\s+(?:{_SHORT_UNIT}|[a-zA-Z]{{3}})|(?<=\\pi)\s+(?:{_SHORT_UNIT}|[a-zA-Z]{{4}}))"
    r"[a-zA-Z. /]*(?:\^\{?\d\}?)?$"
)
"""Two other letters are a product, and so may be three behind `\\pi`, as in the volume
`\\frac{4}{3}\\pi abc`."""
_SET_UNIT = re.compile(
    _AFTER_A_NUMBER + r"(?:\s|~|\\[,;:!> ])*"
    r"\\(?:text|mathrm|textrm)\s*\{[a-zA-Z. /~]+\}\s*(?:\^\{?\d\}?)?$"
)
_JUDGEMENT = re.compile(r"(?<![a-zA-Z])(?:is|are|was|not|no|or|if)(?![a-zA-Z])")
"""A word that makes what follows a number no unit."""
_SIGNS = (
    (re.compile(rf"(?:{DEGREES})$"), "degree"),
    (re.compile(r"%$"), "percent"),
    (re.compile(r"^[-+]?\s*\\\$"), "dollar"),
    (re.compile(r"^[-+]?\s*(?:€|\\euro)|€$"), "euro"),
    (re.compile(r"^[-+]?\s*(?:£|\\pounds)"), "pound"),
)
"""Signs that are units."""
_CURRENCY = re.compile(r"dollars?|usd|euros?")
_RATES = r"per(?!cent)|/"
_SAME_UNITS = {
    "degree": re.compile(r"deg|(?:c|f|celsiu|fahrenheit)$"),
    "percent": re.compile(r"percent|pct"),
    "dollar": re.compile(rf"dollar|usd|{_RATES}"),
    "euro": re.compile(rf"eur|{_RATES}"),
    "pound": re.compile(rf"pound|gbp|{_RATES}"),
    "radian": re.compile(r"rad"),
}
"""How units in words begin that a sign or a longer word may stand for."""


def are_different(unit: str, other: str) -> bool:
    """Returns true for two units of which neither stands for the other."""
    return (
        bool(unit and other)
        and unit != other
        and not any(
            name in _SAME_UNITS and _SAME_UNITS[name].match(word)
            for name, word in ((unit, other), (other, unit))
        )
    )


def unit_of(text: str) -> str:
    """Returns the unit of a number, its letters or the name of its sign; empty if it has none."""
    found = _SET_UNIT.search(text) or _UNIT.search(text)
    letters = re.sub(r"\\[a-z]+|[^a-zA-Z/]", "", found[0]) if found else ""
    word = letters.lower().removesuffix("s")
    sign = next((name for sign, name in _SIGNS if sign.search(text)), "")
    return _CURRENCY.sub("", word) or word or sign


def without_set_unit(text: str) -> str:
    r"""Returns a number without the unit that stands behind it in `\text{}`."""
    return _without(_SET_UNIT, text)


def without_bare_unit(text: str) -> str:
    """Returns a number without the unit that stands behind it as mere letters."""
    return _without(_UNIT, text)


def _without(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return text if found is None or _JUDGEMENT.search(found[0]) else text[: found.start()]
