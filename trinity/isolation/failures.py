"""Failures of users' code, as one process tells another of them."""

import traceback
from dataclasses import asdict, dataclass
from typing import Any

from trinity.types import JsonObject

MAX_TRACEBACK_CHARACTERS = 20_000
MAX_TEXT_CHARACTERS = 2000
"""Of a message: some hold a whole response, or a file."""
MAX_SENTENCE_CHARACTERS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception of users' code, and its place."""

    kind: str
    """Name of the exception's class."""
    text: str
    sentence: str
    """The exception with its message, on one line."""
    place: str
    """File and line; empty if unknown."""
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Describes an error that was caught."""
        shown = "".join(traceback.format_exception(error))
        return cls(
            kind=type(error).__name__,
            text=text_of(error),
            sentence=_sentence_of(error),
            place=place_of(error),
            traceback=shown[-MAX_TRACEBACK_CHARACTERS:],
        )

    def to_json(self) -> JsonObject:
        """Returns it for a line of JSON."""
        return asdict(self)


def _sentence_of(error: BaseException) -> str:
    """Returns the exception and its message; a long message is cut, a file's lines are left out."""
    lines = "".join(traceback.format_exception_only(error)).split("\n")
    told = [line.strip() for line in lines if line.strip()] or [type(error).__name__]
    return told[-1] if isinstance(error, SyntaxError) else " ".join(told)[:MAX_SENTENCE_CHARACTERS]


class UserCodeFailed(Exception):
    """Raised where the result of users' code in another process was awaited."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.sentence + failure.place)
        self.failure = failure

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "UserCodeFailed":
        """Returns the error that `Failure.to_json` describes."""
        return cls(Failure(**values))


class UserProcessDied(Exception):
    """Raised when the process of users' code ended while it was awaited."""


def text_of(error: BaseException) -> str:
    """Returns the beginning of an error's message, also where the error cannot make one."""
    try:
        return str(error)[:MAX_TEXT_CHARACTERS]
    except Exception:
        return "its message cannot be made"


def place_of(error: BaseException) -> str:
    """Returns file and line where an error was raised, in brackets."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
