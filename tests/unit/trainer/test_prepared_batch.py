"""Tokens' figures go from rows into matrices and micro-batches, and back."""

import numpy as np
import pytest

from services.trainer.learner import prepared_batch
from services.trainer.learner.prepared_batch import (
    PreparedBatch,
    ResponseLayout,
    is_recorded_row,
    with_token_values,
)
from services.trainer.types import RowStatistics
from tests.unit.trainer.builders import random_batch

ROWS = random_batch(7, seed=2).rows
LAYOUT = ResponseLayout(ROWS)
PART = [5, 0, 3]
PREPARED = PreparedBatch.from_batch(random_batch(8, seed=4))
MEANS = {row.position: RowStatistics(mean_ratio=1.0, advantage=0.5) for row in PREPARED.rows}
LOGPROBS_BT = PREPARED.rollout_logprobs_BT - 0.25


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


def recorded(share: float) -> dict[int, RowStatistics]:
    return with_token_values(MEANS, PREPARED, LOGPROBS_BT, share)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.25, 0.5, 1.0])
def test_a_share_of_the_rows_is_recorded_and_in_time_each(share: float) -> None:
    rows = [[is_recorded_row(place, step, share) for place in range(100)] for step in range(100)]
    assert [abs(sum(row) - 100 * share) <= 1 for row in rows] == [True] * 100
    assert all(any(row[place] for row in rows) for place in range(100)) == (share > 0)


def test_values_stand_where_the_tokens_do_and_masked_ones_have_none() -> None:
    for row in PREPARED.rows:
        tokens = recorded(1.0)[row.position].tokens
        assert tokens is not None
        assert len(tokens.logprobs_T) == len(tokens.advantages_T) == row.response_length
        assert np.array_equal(np.isnan(tokens.logprobs_T), ~row.mask)
        chosen = row.rollout_logprobs[row.mask] - 0.25
        assert tokens.logprobs_T[row.mask] == pytest.approx(chosen, abs=1e-6)
        assert tokens.advantages_T[row.mask] == pytest.approx(row.advantages[row.mask])


def test_rows_without_statistics_have_no_tokens_either() -> None:
    few = {PREPARED.rows[0].position: MEANS[PREPARED.rows[0].position]}
    assert with_token_values(few, PREPARED, LOGPROBS_BT, 1.0).keys() == few.keys()


def test_a_step_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [row.response_length for row in PREPARED.rows]
    for most, expected in ((sum(lengths), lengths), (sum(lengths[:3]), lengths[:3])):
        monkeypatch.setattr(prepared_batch, "MAX_RECORDED_TOKENS", most)
        kept = [row.tokens for row in recorded(1.0).values() if row.tokens is not None]
        assert [len(tokens.logprobs_T) for tokens in kept] == expected
