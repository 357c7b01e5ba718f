"""Rows of training data are tokenised once as long as what is kept of them stays small."""

import tracemalloc

import pytest

from services.trainer.data import encoders as module
from services.trainer.data.chat import Encoded
from services.trainer.data.encoders import Formatter
from tests.unit.trainer.formatting import only_row
from trinity.types import JsonObject

NUM_TOKENS, MAX_LENGTH = 100_000, 128


class LongDocuments:
    """An encoder that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, row: JsonObject, index: int) -> list[Encoded]:
        self.asked.append(index)
        return [Encoded(list(range(NUM_TOKENS)), 1)]


def test_what_is_cut_off_is_not_kept() -> None:
    formatter = Formatter(LongDocuments(), name="books", max_length=MAX_LENGTH)
    tracemalloc.start()
    try:
        for index in range(100):
            assert only_row(formatter, {}, index).is_truncated
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 100 * MAX_LENGTH * 16


def test_rows_beyond_the_bound_are_tokenised_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_TOKENS", 2 * MAX_LENGTH)
    encoder = LongDocuments()
    formatter = Formatter(encoder, name="books", max_length=MAX_LENGTH)
    rows = [only_row(formatter, {}, index) for index in (0, 1, 2, 0, 1, 2)]
    assert encoder.asked == [0, 1, 2, 2], "two rows fill the bound to its last token"
    assert all(row.tokens.tolist() == list(range(MAX_LENGTH)) for row in rows)
    assert all(row.prompt_length == 1 and row.mask.all() for row in rows)
