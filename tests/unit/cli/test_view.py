"""`trinity view` says what it takes when it is given something else."""

import pytest

from trinity.cli.view import refuse_no_id
from trinity.errors import UserError


def test_a_word_that_is_neither_id_nor_condition() -> None:
    refuse_no_id("2df7bea2")
    with pytest.raises(UserError, match="'trainer' is neither a sample's id"):
        refuse_no_id("trainer")
