r"""Units of answers: bare, in `\text{}`, as signs such as `%`, and words that multiply a number."""

import math
import re
from collections.abc import Iterable
from decimal import Decimal

DEGREES = r"\^\s*\{?\s*\\circ\s*\}?|\\degree|°"
_AFTER_A_NUMBER = r"(?:(?<=[\d})])|(?<=\\pi))"
_SHORT_UNIT = (
    r"(?:[cdkmn]m|[cdm][lL]|[km]g|[kKMGT]B|ms|ft|in|yd|mi|ha|cc|lb|oz|hr|wk|yr|[ap]m|[AP]M|[ap]\.m|Hz|[kMG]W|kJ|Pa|sq"
    r"|cu|rad|kN|[km]V|mA|eV|m/(?:s|min|h)|g/(?:mol|m[lL]|L)|[JN]/(?:K|m|mol|kg)|[VW]/m)(?![a-zA-Z])"
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
_LONE_UNIT = re.compile(r"(?<=\d)\s+[mglLshNJWVA]$")
"""A single letter is a unit only if the other side has a single-letter unit, too; else it is a
factor."""
_SIGNS = (
    (re.compile(rf"(?:{DEGREES})$"), "degree"),
    (re.compile(r"%$"), "percent"),
    (re.compile(r"^[-+]?\s*\\\$"), "dollar"),
    (re.compile(r"^[-+]?\s*(?:€|\\euro)|€$"), "euro"),
    (re.compile(r"^[-+]?\s*(?:£|\\pounds)"), "pound"),
    (re.compile(r"^[-+]?\s*¥"), "yen"),
    (re.compile(r"^[-+]?\s*₹"), "rupee"),
    (re.compile(r"^[-+]?\s*₩"), "won"),
    (re.compile(r"^[-+]?\s*₽"), "ruble"),
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


_METRIC = {
    f"{short}{unit}": f"{long}{name}"
    for short, long in (("k", "kilo"), ("d", "deci"), ("c", "centi"), ("m", "milli"), ("", ""))
    for unit, name in (("m", "meter"), ("g", "gram"), ("l", "liter"))
}
_NAMES = _METRIC | dict(
    pair.split(":")
    for pair in """
    s:second sec:second ms:millisecond min:minute h:hour hr:hour wk:week yr:year
    in:inch ft:foot feet:foot yd:yard mi:mile oz:ounce lb:pound
    sq:square cu:cubic cc:cubiccentimeter hz:hertz kw:kilowatt kj:kilojoule pa:pascal
    mph:mile/hour kph:kilometer/hour kmh:kilometer/hour per:/
    """.split()  # noqa: SIM905 (a name a line would be a page)
)
"""Full names of units by their abbreviations and other forms, in small letters."""
_POWERS = {"2": "square", "3": "cubic"}
_POWER = re.compile(r"\^\s*\{?\s*([23])\s*\}?\s*$")
_FACTORS = {
    "dozen": Decimal(12),
    "hundred": Decimal(100),
    "thousand": Decimal(1_000),
    "million": Decimal(1_000_000),
    "billion": Decimal(1_000_000_000),
    "trillion": Decimal(1_000_000_000_000),
    "tenth": Decimal("0.1"),
    "hundredth": Decimal("0.01"),
    "mille": Decimal(1_000),
    "tausend": Decimal(1_000),
    "millionen": Decimal(1_000_000),
    "millones": Decimal(1_000_000),
    "milliard": Decimal(1_000_000_000),
    "milliarde": Decimal(1_000_000_000),
    "milliarden": Decimal(1_000_000_000),
    "lakh": Decimal(100_000),
    "crore": Decimal(10_000_000),
    "thousandth": Decimal("0.001"),
    "millionth": Decimal("0.000001"),
}
_WORD = rf"(?:{'|'.join(sorted(_FACTORS, key=len, reverse=True))})s?(?![a-zA-Z])"
_FACTOR = (
    r"(?:\s|~|\\[,;:!> ])*(?:\\(?:text|mathrm|textrm|mbox|textbf|mathbf|textit|mathit)\s*\{[\s~]*)?"
    + _WORD
)
_FACTORS_BEHIND = rf"(?P<factors>\$?(?:{_FACTOR})++)(?![ ~]*\d)(?!\s*!)"
"""In `5 thousand!`, which reads as a factorial, the number is not multiplied."""
_MULTIPLIED = re.compile(
    r"(?<![\d.,/^_}~!;:>])(?<![\d/\\] )(?<!frac)"
    r"(?P<number>(?:\d{1,3}(?:(?:,(?:\\!)?|\{,\})\d{3})++|\d++)(?:\.\d++)?)" + _FACTORS_BEHIND,
    re.IGNORECASE,
)
"""A number that stands alone, and not under a fraction, in a power, or behind its thousands."""
_MULTIPLIED_TERM = re.compile(rf"(?:(?<=[\d}})])|(?<=\\pi)){_FACTORS_BEHIND}", re.IGNORECASE)
_JUDGEMENT = re.compile(
    r"(?<![a-zA-Z])(?:is|are|was|not|no|or|if|zero|squared|cubed|factorial|halves|half"
    r"|doubled|tripled|twice|thrice|times|[MBT]|(?<![\s~])K"
    r"|million\w*|milion\w*|mill?iard\w*|[a-z]+illion\w*|hundert|score|gross"
    r"|bln|tn|tsd|[Mm]io|[Mm]rd"
    r"|(?:third|fourth|fifth|sixth|seventh|eighth|ninth)(?:s|\s*\}?$)|negative\s*\}?$"
    rf"|k|bn|bil|mil|mln|mn|{_WORD})(?![a-zA-Z])"
)
"""A word that makes what follows a number no unit: it judges the number, or makes it another."""
_FOUND_FACTOR = re.compile(_WORD, re.IGNORECASE)
_SUFFIXES = {
    **dict.fromkeys(("k", "K"), 1_000),
    **dict.fromkeys(("M", "mn", "mln"), 1_000_000),
    **dict.fromkeys(("B", "bn", "bln"), 1_000_000_000),
}
_SUFFIXED = re.compile(
    r"(?:\\?\$)?\s*(?P<number>\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)\s*"
    rf"(?:\\(?:text|mathrm)\s*\{{\s*)?(?P<suffix>{'|'.join(_SUFFIXES)})\s*\}}?"
)
_SUFFIXED_IN_TEXT = re.compile(
    rf"(?<![\w.,])(?P<number>\d{{1,3}}(?:,\d{{3}})+|\d+(?:\.\d+)?)(?P<suffix>{'|'.join(_SUFFIXES)})(?!\w)"
)
_MIXED_IN_TEXT = re.compile(
    r"(?<![\d/.,^] )(?<![\w/.,^])(\d{1,9}) (\d{1,9})/(\d{1,9})(?![\w/])(?!\.\d)"
)
_PART = r"\d+\s+(?:hundred|thousand|million|billion|trillion)"
_COMPOUND = re.compile(rf"{_PART}(?:\s+{_PART})*(?:\s+\d+)?", re.IGNORECASE)
_JOINTS = re.compile(
    r"\\(?:text|mathrm|textrm|mbox)\s*\{|[{}]|,(?!\d{3}(?!\d))|(?<![a-zA-Z])and(?![a-zA-Z])"
)
_MOST_DIGITS = 20
_MOST_COMPOUND_CHARACTERS = 120
_MOST_FACTORS = 4


def multiplied_out(text: str) -> str:
    """Returns the text with numbers for those that a word multiplies: `5 million`, `3 dozen`."""
    if (number := _compound(text)) is not None:
        return str(number)
    return _MULTIPLIED_TERM.sub(_factor, _MULTIPLIED.sub(_product, text))


def _compound(text: str) -> int | None:
    """Returns the value of `2 thousand 5 hundred`, whose parts grow smaller; None for others."""
    words = " ".join(_JOINTS.sub(" ", text).replace(",", "").split()).lower()
    if not _COMPOUND.fullmatch(words) or len(words) > _MOST_COMPOUND_CHARACTERS:
        return None
    pairs = re.findall(r"(\d+)(?: ([a-z]+))?", words)
    total, room = 0, None
    for number, word in pairs:
        factor = int(_FACTORS[word]) if word else 1
        if room is not None and int(number) * factor >= room:
            return None
        total, room = total + int(number) * factor, factor
    return total


def number_with_suffix(text: str) -> Decimal | None:
    """Returns the value of `3.5k` or `5M`; None for anything else. It may be a product, too."""
    found = _SUFFIXED.fullmatch(text.strip().strip("$").strip())
    return None if found is None else _with_suffix(found)


def in_plain_numbers(text: str) -> str:
    """Returns prose with plain numbers for those with a suffix, `$3.5k`, and mixed ones."""
    text = _MIXED_IN_TEXT.sub(_as_fraction, text)
    return _SUFFIXED_IN_TEXT.sub(lambda found: f"{_with_suffix(found):f}", text)


def _as_fraction(found: re.Match[str]) -> str:
    whole, over, under = (int(group) for group in found.groups())
    return f"{whole * under + over}/{under}"


def _with_suffix(found: re.Match[str]) -> Decimal:
    return Decimal(found["number"].replace(",", "")) * _SUFFIXES[found["suffix"]]


def _product(found: re.Match[str]) -> str:
    number = re.sub(r"[{},]|\\!", "", found["number"])
    words = _FOUND_FACTOR.findall(found["factors"])
    if len(number) > _MOST_DIGITS or len(words) > _MOST_FACTORS:
        return found[0]
    value = f"{_value(words, Decimal(number)):f}"
    value = value.rstrip("0").rstrip(".") if "." in value else value
    return value + _FOUND_FACTOR.sub("", found["factors"])


def _factor(found: re.Match[str]) -> str:
    words = _FOUND_FACTOR.findall(found["factors"])
    if len(words) > _MOST_FACTORS:
        return found[0]
    return rf" \cdot {_value(words):f} {_FOUND_FACTOR.sub('', found['factors'])}"


def _value(words: Iterable[str], number: Decimal = Decimal(1)) -> Decimal:
    return math.prod((_FACTORS[word.lower().removesuffix("s")] for word in words), start=number)


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
    """Returns the unit of a number, its name or the name of its sign, or an empty text."""
    found = _SET_UNIT.search(text) or _UNIT.search(text) or _LONE_UNIT.search(text)
    word = _full_name(found[0]) if found else ""
    sign = next((name for sign, name in _SIGNS if sign.search(text)), "")
    return _CURRENCY.sub("", word) or word or sign


def _full_name(written: str) -> str:
    """Returns the name of a unit, in one spelling for all ways to write it."""
    power = _POWER.search(written)
    words = re.sub(r"\\[a-z]+", "", written).lower().replace("per cent", "percent")
    words = re.sub(r"\b([ap])\.m\b", r"\1m", words)
    names = [_name(word) for word in re.findall(r"[a-z]+|/", words)]
    return "".join([*([_POWERS[power[1]]] if power and names else []), *names])


def _name(word: str) -> str:
    if word in _NAMES:
        return _NAMES[word]
    single = re.sub(r"(?<=ch|sh)es$|(?<=[xs])es$|(?<!s)s$", "", word)
    return re.sub(r"(?<=met|lit)re$", "er", _NAMES.get(single, single))


def without_set_unit(text: str) -> str:
    r"""Returns a number without the unit that stands behind it in `\text{}`."""
    return _without(_SET_UNIT, text)


def without_bare_unit(text: str) -> str:
    """Returns a number without the unit that stands behind it as mere letters."""
    return _without(_UNIT, text)


def without_lone_unit(text: str) -> str:
    """Returns a number without the single letter of its unit."""
    return _LONE_UNIT.sub("", text)


def _without(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return text if found is None or _JUDGEMENT.search(found[0]) else text[: found.start()]
