"""What `trinity taskset show` says of rows that are large."""

from datetime import UTC, datetime

import pytest

from trinity.cli import taskset as commands
from trinity.client import TasksetInfo
from trinity.client.results import TasksetState

LARGE = {"text": "x" * (commands.MAX_SHOWN_BYTES + 1)}


def found(*rows: dict[str, str], num_rows: int) -> TasksetInfo:
    return TasksetInfo(
        taskset_id="one",
        name="sums",
        source="",
        state=TasksetState.COMPLETE,
        is_queue=False,
        num_rows=num_rows,
        num_refused=0,
        num_stages=0,
        created_at=datetime.now(UTC),
        rows=tuple(dict(row) for row in rows),
    )


def test_a_large_row_is_told_by_its_size_and_the_next_ones_by_how_to_see_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands._print_rows(found(LARGE, num_rows=9), first=4, count=3)
    assert capsys.readouterr().out.splitlines() == [
        "row 4: not shown, as it has 1,048,589 bytes",
        "the next rows are large: --first 5 continues with them",
    ]


def test_of_rows_that_all_came_nothing_further_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands._print_rows(found({"text": "a"}, {"text": "b"}, num_rows=6), first=4, count=3)
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "row 4" and "large" not in out
