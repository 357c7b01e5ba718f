"""Validation of incoming taskset rows: accepted, or refused with a reason."""

import json
import math
from dataclasses import dataclass, field
from typing import NoReturn

MAX_ROW_BYTES = 3 * 1024 * 1024
"""A row is sent to an explorer in a single message."""
MAX_LISTED_REFUSALS = 1_000
CHUNK_ROWS = 500
CHUNK_LENGTH = 1024 * 1024
"""While a chunk is inserted into the database, memory holds it several times."""


def why_refused(row_json: str) -> str:
    """Returns what is wrong with a row; empty if it is valid."""
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
    raise ValueError(f"{constant} is not a number in JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that was refused."""

    index: int
    reason: str


@dataclass(slots=True)
class Intake:
    """The rows of one request; refused rows leave no gap in the numbers of accepted ones.

    intake.add('{"prompt": "1+1="}')
    if intake.is_chunk:
        first, bodies = intake.take()
    """

    num_seen: int = 0
    num_taken: int = 0
    num_refused: int = 0
    refused: list[RefusedRow] = field(default_factory=list)
    """The first `MAX_LISTED_REFUSALS` refused rows."""
    _waiting: list[str] = field(default_factory=list)
    _waiting_length: int = 0

    @property
    def is_chunk(self) -> bool:
        """True if enough rows wait to be stored as a chunk."""
        return len(self._waiting) >= CHUNK_ROWS or self._waiting_length >= CHUNK_LENGTH

    def add(self, row_json: str) -> None:
        """Accepts a row, or records why it is refused."""
        if reason := why_refused(row_json):
            self.num_refused += 1
            if len(self.refused) < MAX_LISTED_REFUSALS:
                self.refused.append(RefusedRow(index=self.num_seen, reason=reason))
        else:
            self._waiting.append(row_json)
            self._waiting_length += len(row_json)
        self.num_seen += 1

    def take(self) -> tuple[int, list[str]]:
        """Removes and returns the waiting rows, with the number of rows taken before them."""
        first, bodies = self.num_taken, self._waiting
        self.num_taken += len(bodies)
        self._waiting, self._waiting_length = [], 0
        return first, bodies
