"""Which rows a client may submit."""

import pytest

from services.buffer.domain.tasks import row_error


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_not_finite_is_refused_wherever_it_stands(number: str) -> None:
    assert number in row_error(f'{{"a": [{{"b": {number}}}]}}')


@pytest.mark.parametrize("number", ["1e308", "-1.5", "1e-999", "0.1", "123456789012345678901234"])
def test_finite_numbers_are_taken(number: str) -> None:
    assert row_error(f'{{"a": {number}}}') == ""
