# ruff: noqa: RUF001  # people and models write these characters
r"""Reads the context of an answer in prose: `it is not 5`, `1 in 6` and `5‰` do not say 5.

An answer in prose is the number or formula behind `answer is`, else the last one. It counts if it
equals the truth as a whole, and if no other word in its clause makes another answer of it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trinity.rewards.math_answers import Equal, is_same_answer
from trinity.rewards.math_forms import is_prose
from trinity.rewards.math_units import are_different, unit_of

_FORMULA = re.compile(
    r"\$\$([^$]{1,400})\$\$|\$([^$\n]{1,400})\$|\\\(([^$]{1,400}?)\\\)|\\\[([^$]{1,400}?)\\\]"
)
_TOKEN = re.compile(r"\S+")
_OPERATOR = re.compile(
    r"[-+*/^=<>≤≥≠×·÷±:]+|\\(?:neq?|leq?|geq?|lt|gt|cdot|times|div|pm|approx|equiv|in|ln|log|sin|cos|tan|neg)"
)
_OPERATOR_BEHIND = re.compile(r"\\[a-zA-Z]+$|[<>=≤≥≠]$")
_TERM = re.compile(r"[-+(\[{|]*(?:\d|\\|[a-zA-Z](?:[)\]}]*$|\([a-zA-Z]\)$|[\^_(/|]))")
_SCRIPT = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Letters of writings without blanks between words."""
_EDGE = re.compile(
    rf"(?<=[{_SCRIPT}])(?=[\x21-\x7e])|(?<=[\x21-\x7e])(?=[{_SCRIPT}])|(?<=[,.:;])(?=[{_SCRIPT}])"
)
_STOPS = str.maketrans(
    {"。": ". ", "．": ". ", "、": ", ", "，": ", ", "；": "; ", "：": ": ", "？": "? ", "！": "! "}
)
_FOREIGN = re.compile(rf"[{_SCRIPT}]|[^\W\d_a-zA-Z]{{2}}")
_ANSWER = (
    r"(?:answer|Antwort|Lösung|Ergebnis|réponse|résultat|respuesta|resultado|solución"
    r"|答案|答え|正解|結果|结果)"
)
_IS = r"(?:\b(?:is|ist|lautet|beträgt|est|es)\b|是|为|為|は|等于|[:=])"
_NAMED = re.compile(rf"{_ANSWER}(?![a-z])[^.\n\d$]{{0,30}}?{_IS}", re.IGNORECASE)
_LAST_WORD = re.compile(
    r"\W*(?:(?:so|thus|hence|therefore|then|and|finally|in conclusion|it follows that"
    r"|we (?:get|find|see|conclude)(?: that)?|this means(?: that)?)[,:]?\s+)*"
    r"(?:(?:the|my|our)\s+)?(?:(?:final|correct|right)\s+)?(?:(?:answer|option|choice|solution|root)s?|zeros)"
    r"[*_]*\s*(?:\b(?:is|are)\b\s*:?|[:=])(.+)",
    re.IGNORECASE,
)
_LAST_WORD_ELSEWHERE = re.compile(
    r"\W*(?:(?:所以|因此|故|综上|从而|则|即|よって|したがって|ゆえに|also|daher|somit|donc|ainsi|alors|entonces"
    r"|por (?:lo )?tanto)[,，、:：]?\s*)*"
    r"(?:(?:(?:die|das|der|la|le|el)\s+)?(?:(?:richtige|endgültige|bonne|最终|正确|最終的な)\s*)?"
    rf"{_ANSWER}(?:\s+(?:finale?|correcte?|correcta))?[*_]*\s*(?:{_IS}|：)[:：]?|(?:应|應)?[选選][:：]?)"
    r"\s*(.+?)(?:です|である|だ|(?:に|と)なります)?[。．！]?",
    re.IGNORECASE,
)
_CALLED_CORRECT = re.compile(
    r"\W*(?:(?:so|thus|hence|therefore)[,:]?\s+)?(?:(?:option|choice|answer|statement)\s+)"
    r"([^\s.,;:]{1,9}) is (?:the )?(?:correct|right)(?: (?:answer|option|choice|one))?\.?",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"[.,;:!?](?=\s|$)|\n|(?<!anything )(?<!nothing )(?<!everything )(?<!all )\bbut\b"
    r"|\b(?:so|hence|thus|then|therefore|because)\b",
    re.IGNORECASE,
)
_NUMBER = r"\(?\$?\\?[-+]?\d[\d.,/]*\$?"
_UNIT_WORD = r"(?:\s+[a-zA-Z]+)?"
_SAID_OF_THE_WAY = re.compile(
    r"(?:\bnot|n['’]t)\s+(?:\w+\s+)?(?:hard|difficult|surprising|necessary|needed|obvious|possible"
    r"|(?:been |be )?(?:simplified|reduced|factored))\b"
    r"|\bcannot be (?:further )?(?:simplified|reduced|factored)\b",
    re.IGNORECASE,
)
"""Denials of something other than the answer: `it is not hard to see that it is 5`."""
_DENIED = re.compile(
    r"\b(?:not|never|neither|nor|cannot|nobody|no one|unless)\b|n['’]t\b"
    r"|\b(?:nicht|kein\w*|niemals|nie|weder|pas|jamais|nunca|jamás|tampoco|não|niet|geen|не)\b"
    r"|\bnon (?:è|sono|può|vale)\b"
    r"|\bno (?:es|son|puede|vale|está)\b|不[是为為会會能等可到]|[并並]非|而非|没有|沒有"
    r"|\b(?:anything|nothing|everything|all) but\b|\bif it (?:was|were|is)\b",
    re.IGNORECASE,
)
_OTHER_BEFORE = re.compile(
    r"(?:至少|至多|最多|最少|[大小少多][于於]|不[到足]|超[过過]|少なくとも|多くとも|最大|最小)\s*$"
    rf"|{_NUMBER}\s*(?:和|与|與|或者?|、|か|または|もしくは|と|から|到|至|,)\s*$"
    r"|比\s*$|\b(?:mindestens|höchstens|als|entweder|zwischen|unter|über|weder|ni|soit\b[^.]*\bsoit|entre"
    r"|moins de|plus de|au moins|au plus|menos de|más de|al menos|como (?:máximo|mínimo)"
    r"|(?:hälfte|doppelte|dreifache|drittel|viertel|wurzel|quadrat)\w* (?:von|aus)"
    r"|(?:moitié|doubl|tripl|doble|mitad|tiers|quart|tercio|cuarto|carré|cuadrado|racine|raíz)\w*"
    r"(?: cuadrada| carrée)? d[eu])\s*$"
    r"|\b(?:than|least|most|minus|negative|half|half of|twice|thrice|doubled?|tripled?|above|below"
    r"|under|over|exceeds?|exceeding|between|except|either|off"
    r"|square root of|root of|cube of|square of"
    r"|than or equal to|log|ln|sqrt|sin|cos|tan)\s*$"
    r"|(?<!adds )(?<!add )(?<!adding )(?<!sums )(?<!sum )(?<!comes )(?<!come )\bup to\s*$"
    r"|\b(?:an?|one|two|three|four|five|six|seven|eight|nine|ten)\s+"
    r"(?:chance )?(?:in|out of|of)\s*$"
    rf"|{_NUMBER}{_UNIT_WORD}\s+"
    r"(?:to|or|and|in|of|out of|by|per|choose|mod|modulo|minus|plus|times|over"
    r"|through|until|vs\.?|und|oder|ou|et|o|u|y|bis|à|noch|ni|soit)\s*$"
    rf"|(?:\b(?:is|are|get|answers?|and|either|of)|[=:,;|/])\s*{_NUMBER}[,;|]\s*$",
    re.IGNORECASE,
)
_OTHER_BEHIND = re.compile(
    r"\s*(?:,?\s*(?:no|wait|actually|sorry|or rather)\b"
    r"|(?:,|;|and\b|or\b)\s*\$?[a-zA-Z](?:_\{?\w\}?)?\s*="
    rf"|,\s*{_NUMBER}\s*(?:$|[.!?,;]|and\b|or\b)"
    r"|[度个個人円元米年点歳岁]?\s*以[上下外内]|[个個]?半|[万萬亿億兆十만억]|千(?![米克瓦卡])|百(?!分)|тыс|млн|млрд|未満|多|余|几|倍|分之|割|乗|から|到|至|[〜～]|的|の|吗|嗎|或|和|か(?!ら)|または|もしくは|より|之间"
    r"|[이가은는]?\s*아[니닙닌]|(?:nicht|niet|değil)\b"
    rf"|では(?:な|あり)|じゃ(?:な|あり)|で(?:ない|ありません)|(?:oder|ou|o|u|ou bien)\s+{_NUMBER}"
    r"|\\?%?\s*(?:negative\s*$|off\b|thousand|million|billion|mil\b|mi[lo]n?\b|mln|bln|half\b"
    r"|degrees below|(?:third|fourth|fifth|sixth|seventh|eighth|ninth|tenth)s?\b)"
    r"|\(?\s*(?:wrong|incorrect|false|impossible|not|squared|cubed|factorial|twice|halves|halved"
    r"|doubled|tripled|per mille|permille|ppm|ppb|parts per|basis points?|cannot)\b"
    r"|(?:is|are|was|were|does|do|did|can|could|would|will|has|must|should|may|seems?|looks?)"
    r"(?:\s+\w+)?\s+(?:not|wrong|incorrect|false|impossible|never)\b"
    r"|[a-zA-Z]+n['’]t\b|can['’]t\b"
    r"|or\s+(?:more|less|fewer|higher|lower|above|below|greater|larger|smaller|not)\b"
    r"|(?:or|choose|mod|modulo|in|out of|of|to|per|times|plus|minus|over|through|and|until|vs\.?)"
    rf"\s+{_NUMBER}"
    r"|(?:and|plus)\s+(?:a|one|two|three|four)\b"
    r"|(?:less|more|fewer|greater|larger|smaller)\s+than\b|\\p?mod(?![a-z]))",
    re.IGNORECASE,
)
_DENIED_BOX = re.compile(
    r"(?:\b(?:not|never|nicht|pas|jamais|no es)|n['’]t|不是|并非|不等于)"
    r"\s*(?:(?:be|equal to|equals?|exactly|simply)\s+)*\}?\s*$"
    r"|(?:[-+*/^<>≠]|\\(?:neq?|cdot|times|pm|mp|div)"
    r"|\\(?:sqrt|[dt]?frac)(?:\[\w*\])?(?:\{[^{}]*\})?\{)\s*$",
    re.IGNORECASE,
)
_SEVERAL = re.compile(
    r"\b(?:maybe|perhaps|possibly|alternatively|actually|sorry|oops|correction"
    r"|vielleicht|peut-être|quizás)\b|\bno[,.]|\bI mean\b|\b(?:options?|candidates?)\s*:"
    r"|(?<!est )(?<!most )(?<!imum )\bpossible (?:answer|value|solution|result|option)"
    r"|(?:^|[,.!?]\s*)wait\b|\bwait\s*[,.!]|可能|(?:[→⇒]|[-=]>)\s*\$?[-+]?\d",
    re.IGNORECASE,
)
_OR = re.compile(r"\b(?:or|oder|ou)\b|或|または", re.IGNORECASE)
_OPENING = re.compile(r"(?:\$+|\\[(\[]|\*+|\s)+$")
_CLOSING = re.compile(r"(?:\.?\$+|\\[)\]]|\*+)+")
_RAISED = re.compile(r"\^\s*\{?\s*-?\d")
_RAISED_UNIT = re.compile(r"[a-zA-Z/]+\^\{?[23]\}?\W*$")
"""A unit with an exponent, such as `m^2`: it has a digit but is not a number."""
_SET_WORDS = re.compile(
    r"(?<=\d)(?:\\?[ ,;~])*\\(?:text|mathrm|textrm|mbox)\{[ ~]*([^{}]*?)[ ~]*\}(?=(\d)?)"
)
_MOST_UNIT_WORDS = 4


def has_words(text: str) -> bool:
    """Returns true for prose in any language."""
    return is_prose(text) or _FOREIGN.search(text) is not None


def spaced(text: str) -> str:
    """Returns text with blanks around what Chinese or Japanese words enclose, and plain stops."""
    return text if text.isascii() else _EDGE.sub(" ", text.translate(_STOPS))


def last_word(text: str) -> str | None:
    """Returns all that a last line `So the answer is (B).` names; None for any other line."""
    line = text.rstrip().rpartition("\n")[2]
    forms = (_LAST_WORD, _LAST_WORD_ELSEWHERE, _CALLED_CORRECT)
    found = next(filter(None, (form.fullmatch(line) for form in forms)), None)
    return found[1].strip("*_ \t").removesuffix(".").strip("*_ \t") if found else None


def has_other_answers(text: str) -> bool:
    """Returns true if `the answer is` names different values."""
    text = spaced(text)
    named = [text[found.end() :].split() for found in _NAMED.finditer(text)]
    values = {words[0].strip("*_$.,;:!?") for words in named if words}
    return len({value for value in values if re.search(r"\d", value)}) > 1


def is_hedged(text: str) -> bool:
    """Returns true for several values with a change of mind, or a choice next to the answer.

    `a 5 or a 6 has probability 1/3` gives one answer.
    """
    text = spaced(text)
    places = list(_places(text))
    if len({place.content for place in places}) < 2:
        return False
    answer = _named(text, places) or places[-1]
    before = max((place.end for place in places if place.end <= answer.start), default=answer.start)
    is_choice = _OR.search(text, before, answer.start) or _OR.search(text, answer.end)
    return bool(is_choice or _SEVERAL.search(text))


def is_unchanged(text: str, place: slice) -> bool:
    """Returns true if no word around a box denies its content or changes the answer."""
    before = _OPENING.sub(" ", spaced(text[max(0, place.start - 200) : place.start]))
    behind = spaced(text[place.stop : place.stop + 200])
    behind = behind[found.end() :] if (found := _CLOSING.match(behind)) else behind
    is_denied = _DENIED_BOX.search(before) or _OTHER_BEFORE.search(before)
    return not is_denied and not _RAISED.match(behind) and not _OTHER_BEHIND.match(behind)


@dataclass(frozen=True, slots=True)
class _Place:
    """A number or formula, and where it stands."""

    content: str
    start: int
    end: int


def is_stated(text: str, truth: str, equal: Equal) -> bool | None:
    """Returns true if the answer that prose gives is the truth, and the context does not deny it.

    None for a text without numbers and formulas, which states no answer that it could deny.
    """
    text = _SET_WORDS.sub(lambda found: f" {found[1]}{' ' if found[2] else ''}", text)
    places = list(_places(text))
    if not places:
        return None
    place = _named(text, places) or places[-1]
    before, behind = _clause_around(text, place)
    if _DENIED.search(_SAID_OF_THE_WAY.sub("", before)) or _OTHER_BEFORE.search(
        text[: place.start]
    ):
        return False
    if _OTHER_BEHIND.match(text, place.end) or _has_other_unit(place.content, behind, truth):
        return False
    return is_same_answer(place.content, truth, equal)


def _places(text: str) -> Iterator[_Place]:
    """Yields numbers and formulas in their order; of each number all that is written with it."""
    formulas = [found for found in _FORMULA.finditer(text) if not is_prose(_inside(found))]
    start = 0
    for formula in formulas:
        yield from _numbers(text, start, formula.start())
        yield _Place(_inside(formula), formula.start(), formula.end())
        start = formula.end()
    yield from _numbers(text, start, len(text))


def _inside(formula: re.Match[str]) -> str:
    return next(group for group in formula.groups() if group is not None).strip()


def _numbers(text: str, start: int, end: int) -> Iterator[_Place]:
    tokens = list(_TOKEN.finditer(text, start, end))
    number = 0
    while number < len(tokens):
        last = number
        while last + 1 < len(tokens) and _go_together(tokens[last][0], tokens[last + 1][0]):
            last += 1
        written = text[tokens[number].start() : tokens[last].end()]
        if any(character.isdecimal() for character in written) and not _RAISED_UNIT.match(written):
            yield _trimmed(written, tokens[number].start())
        number = last + 1


def _go_together(token: str, follower: str) -> bool:
    """Returns true for `x = 5`, `3 / 4` and `1 000`, token by token."""
    if _OPERATOR.fullmatch(token):
        return bool(_TERM.match(follower) or _OPERATOR.fullmatch(follower))
    if _OPERATOR.fullmatch(follower):
        return bool(_TERM.match(token))
    if _OPERATOR_BEHIND.search(token):
        return True
    return token[-1].isdecimal() and follower[0].isdecimal()


def _trimmed(written: str, start: int) -> _Place:
    """Takes off the marks of a sentence and of emphasis."""
    bare = written.lstrip("\"'*_=: ")
    start += len(written) - len(bare)
    bare = bare[:-1] if bare[-1:] in ".,;:!?" else bare
    bare = bare.rstrip("*_") if bare.endswith(("**", "__")) or written.startswith("*") else bare
    bare = bare[:-1] if bare[-1:] in ".,;:!?" and not bare.endswith("..") else bare
    bare = bare[:-1] if bare.endswith(")") and bare.count("(") < bare.count(")") else bare
    if bare.startswith("(") and bare.count("(") > bare.count(")"):
        bare, start = bare[1:], start + 1
    return _Place(bare, start, start + len(bare))


def _named(text: str, places: list[_Place]) -> _Place | None:
    """Returns the first number or formula behind the last `answer is` that is followed by one."""
    for found in reversed(list(_NAMED.finditer(text))):
        for place in places:
            if found.end() <= place.start and not _ends_sentence(text[found.end() : place.start]):
                return place
    return None


def _ends_sentence(between: str) -> bool:
    return bool(re.search(r"[.!?](?=\s)|\n\s*\n", between)) or len(between) > 60


def _clause_around(text: str, place: _Place) -> tuple[str, str]:
    begins = [found.end() for found in _CLAUSE.finditer(text, 0, place.start)]
    ends = _CLAUSE.search(text, place.end)
    return text[begins[-1] if begins else 0 : place.start], text[
        place.end : ends.start() if ends else len(text)
    ]


def _has_other_unit(number: str, behind: str, truth: str) -> bool:
    """Returns true if the words behind a number name another unit than the truth's."""
    expected = unit_of(truth.strip().strip("$").strip())
    words = behind.split()[:_MOST_UNIT_WORDS]
    units = [unit_of(f"{number} {' '.join(words[:count])}") for count in range(len(words) + 1)]
    return all(unit and are_different(unit, expected) for unit in units[1:] or units)
