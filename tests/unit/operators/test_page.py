"""The page about operators has every one, with its arguments."""

from pathlib import Path

from tests.unit.subtests import as_subtests
from trinity.algorithm.signature import read_signature
from trinity.operators import BUILT_IN

PAGE = Path(__file__).parents[3] / "docs" / "operators.md"


@as_subtests("name", BUILT_IN)
def test_an_operator_is_on_the_page_with_its_arguments(name: str) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    arguments = read_signature(BUILT_IN[name]).arguments
    # One for tasks may be called the same.
    assert any(all(f"`{argument}" in row for argument in arguments) for row in rows)
