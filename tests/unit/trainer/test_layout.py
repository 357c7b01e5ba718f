"""The way of tokens' figures from rows into matrices and micro-batches, and back."""

import numpy as np

from services.trainer.learner.prepared_batch import ResponseLayout
from tests.unit.trainer.builders import random_batch

ROWS = random_batch(7, seed=2).rows
LAYOUT = ResponseLayout(ROWS)
PART = [5, 0, 3]


def test_a_matrix_begins_with_each_rows_first_response_token() -> None:
    mask_BT = LAYOUT.stack((row.mask for row in ROWS), np.bool_)
    for number, row in enumerate(ROWS):
        assert mask_BT[number, : row.response_length].tolist() == row.mask.tolist()
        assert not mask_BT[number, row.response_length :].any()


def test_a_part_has_every_figure_at_its_tokens_place_in_the_sequence() -> None:
    ids_BT = LAYOUT.stack((row.tokens[row.prompt_length :] for row in ROWS), np.int32)
    placed_NC = LAYOUT.gather_part(ids_BT, PART)
    first = LAYOUT.first_token(PART)
    for placed_C, number in zip(placed_NC, PART, strict=True):
        row = ROWS[number]
        expected = np.zeros(len(placed_C), dtype=np.int32)
        response = slice(row.prompt_length - first, row.length - first)
        expected[response] = row.tokens[row.prompt_length :]
        assert placed_C.tolist() == expected.tolist()


def test_what_a_part_gives_comes_back_to_its_rows_and_nothing_else_does() -> None:
    generator = np.random.default_rng(1)
    given_NC = generator.normal(size=(len(PART), LAYOUT.num_columns(PART)))
    into_BT = LAYOUT.zeros()
    LAYOUT.scatter_part(given_NC, PART, into=into_BT)
    placed_NC = LAYOUT.gather_part(into_BT, PART)
    is_token_NC = LAYOUT.gather_part(LAYOUT.is_token_BT, PART)
    assert np.array_equal(placed_NC[is_token_NC], given_NC[is_token_NC])
    others = [number for number in range(len(ROWS)) if number not in PART]
    assert not into_BT[others].any()
    assert not into_BT[~LAYOUT.is_token_BT].any()


def test_an_empty_part_changes_nothing() -> None:
    into_BT = LAYOUT.zeros()
    LAYOUT.scatter_part(np.ones((1, 1)), [], into=into_BT)
    assert not into_BT.any()
