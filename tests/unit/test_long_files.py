"""The files that begin a run of the tests are those that are there."""

from pathlib import Path

from tests.long_files import LONG_FILES

TESTS = Path(__file__).parents[1]


def test_every_long_file_is_there_once() -> None:
    assert [one for one in LONG_FILES if not (TESTS / one).is_file()] == []
    assert len(set(LONG_FILES)) == len(LONG_FILES)
