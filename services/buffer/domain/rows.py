"""Rows of tasksets as they come in: taken, or refused with a reason."""

import json
import math
from dataclasses import dataclass, field
from typing import NoReturn

MAX_ROW_BYTES = 3 * 1024 * 1024
"""A row goes to an explorer in one message."""
MAX_LISTED_REFUSALS = 1_000
CHUNK_ROWS = 500
CHUNK_LENGTH = 1024 * 1024
"""On its way into the database it is in memory several times."""


def why_refused(row_json: str) -> str:
    """What is wrong with a row; empty when nothing is."""
    if len(row_json) > MAX_ROW_BYTES:
        return f"it has {len(row_json):,} characters, a row may have {MAX_ROW_BYTES:,}"
    try:
        row = json.loads(row_json, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {error}"
    return "" if isinstance(row, dict) else "a row must be a JSON object"


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:60]} is larger than any number may be")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number in JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that was not taken."""

    index: int
    reason: str


@dataclass(slots=True)
class Intake:
    """The rows of one request; refused ones leave no gap among those that are taken.

    intake.add('{"prompt": "1+1="}')
    if intake.is_chunk:
        first, bodies = intake.take()
    """

    num_seen: int = 0
    num_taken: int = 0
    num_refused: int = 0
    refused: list[RefusedRow] = field(default_factory=list)
    """The first of them."""
    _waiting: list[str] = field(default_factory=list)
    _waiting_length: int = 0

    @property
    def is_chunk(self) -> bool:
        """Whether what waits is enough to be stored."""
        return len(self._waiting) >= CHUNK_ROWS or self._waiting_length >= CHUNK_LENGTH

    def add(self, row_json: str) -> None:
        """Take a row in, or note why not."""
        if reason := why_refused(row_json):
            self.num_refused += 1
            if len(self.refused) < MAX_LISTED_REFUSALS:
                self.refused.append(RefusedRow(index=self.num_seen, reason=reason))
        else:
            self._waiting.append(row_json)
            self._waiting_length += len(row_json)
        self.num_seen += 1

    def take(self) -> tuple[int, list[str]]:
        """The rows that wait, with the number of those that were taken before."""
        first, bodies = self.num_taken, self._waiting
        self.num_taken += len(bodies)
        self._waiting, self._waiting_length = [], 0
        return first, bodies
