"""The files that the scheduling of tests and the forking of programs name are there."""

import fnmatch
from pathlib import Path

from tests.forking import FORKED, STARTED, forked_in
from tests.scheduling import GROUPS, LONG_FILES, group_of

TESTS = Path(__file__).parents[1]
FILES = [path.as_posix() for path in TESTS.rglob("test_*.py")]


def test_every_pattern_names_a_file_and_each_file_has_one_place() -> None:
    grouped = [pattern for patterns in GROUPS.values() for pattern in patterns]
    for pattern in (*grouped, *LONG_FILES):
        assert fnmatch.filter(FILES, pattern), pattern
    long = [file for pattern in LONG_FILES for file in fnmatch.filter(FILES, pattern)]
    assert len(set(long)) == len(LONG_FILES)
    assert not [file for file in long if group_of(file)]


def test_every_pattern_of_what_is_forked_names_a_file() -> None:
    for forked, patterns in FORKED:
        for pattern in patterns:
            assert forked in map(forked_in, fnmatch.filter(FILES, pattern)), pattern
    assert forked_in(f"{TESTS}/unit/test_scheduling.py") == STARTED
