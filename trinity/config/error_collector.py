"""Collects errors of several calls, and suggests valid names for unknown ones."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from trinity.errors import UserError

MAX_LISTED_NAMES = 4

ValueT = TypeVar("ValueT")


def closest_match(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most similar to `name`, if any is similar.

    Of several that are equally similar it is one with the same letters: those are often swapped.
    """
    close = difflib.get_close_matches(name, list(valid), n=3)
    alike = [other for other in close if _similarity(name, other) == _similarity(name, close[0])]
    return next(iter(sorted(alike, key=lambda other: sorted(other) != sorted(name))), None)


def _similarity(name: str, other: str) -> float:
    return difflib.SequenceMatcher(a=other, b=name).ratio()


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """End of a sentence that offers the nearest valid name, or all of them."""
    names = list(valid)
    near = closest_match(name, names)
    if near is not None:
        return f": did you mean `{near}`?"
    if not names:
        return ": remove it"
    shown = [f"`{valid_name}`" for valid_name in names]
    return (
        ": give " + " or ".join(shown)
        if len(names) <= MAX_LISTED_NAMES
        else f": give one of {', '.join(shown)}"
    )


class ErrorCollector:
    """Runs calls one after the other and collects the errors of users they raise.

    A prefix goes before each line, such as the stage that it is about.

    errors = ErrorCollector()
    lengths = errors.attempt(lambda: resolve_lengths(model))    # None if it raised
    errors.raise_all()
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._errors: list[str] = []

    def attempt(self, call: Callable[[], ValueT]) -> ValueT | None:
        """Returns the call's result; None if it raises UserError, which is collected."""
        try:
            return call()
        except UserError as error:
            self.add(error)
        return None

    def add(self, error: UserError) -> None:
        """Collects an error that was caught."""
        self._errors += [f"{self._prefix}{line}" for line in str(error).splitlines()]

    @property
    def text(self) -> str:
        """A line for each collected error; empty without errors."""
        return "\n".join(dict.fromkeys(self._errors))

    def raise_all(self) -> None:
        """Raises UserError with a line for each collected error, if there is one."""
        if self._errors:
            raise UserError(self.text)


def all_of(calls: Sequence[Callable[[], ValueT]]) -> tuple[ValueT, ...]:
    """Returns the results of all calls.

    Raises: UserError with a line for each error of any of them.
    """
    errors = ErrorCollector()
    results = [errors.attempt(call) for call in calls]
    errors.raise_all()
    return tuple(result for result in results if result is not None)
