"""Decides the tests of a script, as far as their texts do."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_MAX_BYTES = 2**20
_TOP_FILES = (".git", "setup.py", "pyproject.toml")
"""Files that mark the top of a repository."""


def evaluate_condition(words: Sequence[str], script: Path) -> bool | None:
    """True if a condition holds; None if its texts and the script's repository do not decide it."""
    return _Condition(list(words), script).result()


class _Condition:
    """Parser of a disjunction of conjunctions of comparisons, from left to right."""

    def __init__(self, words: list[str], script: Path) -> None:
        self._words = words
        self._script = script

    def result(self) -> bool | None:
        """The condition's value; None if it is undecided, or if words are left over."""
        value = self._any()
        return value if not self._words else None

    def _any(self) -> bool | None:
        value = self._all()
        while self._take("-o", "||"):
            other = self._all()
            value = True if value or other else None if None in (value, other) else False
        return value

    def _all(self) -> bool | None:
        value = self._one()
        while self._take("-a", "&&"):
            other = self._one()
            value = False if False in (value, other) else None if None in (value, other) else True
        return value

    def _one(self) -> bool | None:
        words = self._words
        if len(words) > 1 and words[0] == "!":
            words.pop(0)
            inner = self._one()
            return None if inner is None else not inner
        if len(words) > 2 and words[0] == "(":
            words.pop(0)
            inner = self._any()
            return inner if self._take(")") else None
        if len(words) >= 3 and _is_comparison(words[1]):
            left, operator, right = words[:3]
            del words[:3]
            return _compare(left, operator, right)
        if len(words) >= 2 and words[0].startswith("-"):
            operator, text = words[:2]
            del words[:2]
            return _ask(operator, text, self._script)
        return bool(words.pop(0)) if words else False

    def _take(self, *operators: str) -> bool:
        if self._words and self._words[0] in operators:
            self._words.pop(0)
            return True
        return False


def _is_comparison(word: str) -> bool:
    return word in _NUMBERS or word in ("=", "==", "!=")


def _compare(left: str, operator: str, right: str) -> bool | None:
    if operator in _NUMBERS:
        try:
            return _NUMBERS[operator](int(left), int(right))
        except ValueError:
            return None
    return fnmatchcase(left, right) == (operator != "!=")


def _ask(operator: str, text: str, script: Path) -> bool | None:
    if operator in ("-z", "-n"):
        return (not text) == (operator == "-z")
    return True if operator == "-f" and file_beside(text, script) else None


def file_beside(wanted: str, script: Path) -> Path | None:
    """The file that a script names, from its folder or one above within its repository."""
    folder = script.resolve().parent
    tops = [
        above
        for above in (folder, *folder.parents)
        if any((above / name).exists() for name in _TOP_FILES)
    ]
    top = tops[0] if tops else folder
    inside = [above for above in (folder, *folder.parents) if above.is_relative_to(top)]
    for above in inside if wanted else ():
        file = (above / wanted).resolve()
        if file.is_relative_to(top) and file.is_file() and file.stat().st_size <= _MAX_BYTES:
            return file
    return None
