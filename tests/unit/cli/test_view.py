"""`trinity view` says what it takes when it is given something else."""

import pytest

from trinity.cli.view import require_sample_id
from trinity.errors import UserError


def test_a_word_that_is_neither_id_nor_condition() -> None:
    require_sample_id("2df7bea2")
    with pytest.raises(UserError, match="'trainer' is neither a sample's id"):
        require_sample_id("trainer")
