"""Tables whose rows are subtests of one test."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]


def as_subtests(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Calls a test with each of the values, as `pytest.mark.parametrize` does, within one test.

    Every worker of xdist collects every test, which costs more than a quick case. A failure names
    the values of its case. Several of these on one test run all combinations. Fixtures are set up
    once for all cases: a test that changes them keeps `parametrize`.

    @as_subtests(("text", "number"), [("1", 1), ("-2", -2)])
    def test_a_number_is_read(text: str, number: int) -> None:
        assert int(text) == number
    """
    columns = (names,) if isinstance(names, str) else names
    rows = [
        dict(zip(columns, (value,) if isinstance(names, str) else value, strict=True))
        for value in values
    ]
    assert rows, "no case"

    def decorated(test: Test) -> Test:
        parameters = inspect.signature(test).parameters
        is_loop = "subtests" in parameters

        @functools.wraps(test)
        def loop(subtests: pytest.Subtests, **others: Any) -> None:
            for row in rows:
                if is_loop:
                    test(subtests=subtests, **row, **others)
                    continue
                with subtests.test(**row, **others):
                    test(**row, **others)

        fixtures = [value for name, value in parameters.items() if name not in columns]
        if not is_loop:
            fixtures.append(inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY))
        loop.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
        return loop

    return decorated
