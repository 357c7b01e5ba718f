"""Which rows' tokens are recorded, and what is recorded of them."""

import numpy as np
import pytest

from services.trainer.learner import prepared_batch
from services.trainer.learner.prepared_batch import (
    PreparedBatch,
    is_recorded_row,
    with_token_values,
)
from services.trainer.types import RowStatistics
from tests.unit.trainer.builders import random_batch

PREPARED = PreparedBatch.from_batch(random_batch(8, seed=4))
MEANS = {row.position: RowStatistics(mean_ratio=1.0, advantage=0.5) for row in PREPARED.rows}
LOGPROBS_BT = PREPARED.rollout_logprobs_BT - 0.25


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
