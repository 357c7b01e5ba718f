"""Rows of data may lie in a database's table."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.config.builders import SFT, stage
from trinity.cli.experiment import stage_lines
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError

ADDRESS = "postgresql://me:hidden@db:5432/data"


def planned(**rows: object) -> StagePlan:
    return stage(SFT, buffer={"trainer_input": {"experience_buffer": rows}})


def test_the_table_is_called_like_the_buffer_or_as_it_is_said() -> None:
    found = planned(storage_type="sql", path=ADDRESS, name="answers").experience_buffer
    assert (found.storage_type, found.path, found.table) == ("sql", ADDRESS, "answers")
    named = planned(storage_type="sql", path=ADDRESS, table="public.rows")
    assert named.experience_buffer.table == "public.rows"


def test_a_file_of_sqlite_is_found_from_anywhere() -> None:
    found = planned(storage_type="sql", path="sqlite:///rows.db").experience_buffer
    assert found.path == f"sqlite:///{Path('rows.db').absolute()}"


def test_nobody_sees_the_password() -> None:
    lines = stage_lines(planned(storage_type="sql", path=ADDRESS, table="rows"))
    assert "  data           table rows of postgresql://me:***@db:5432/data" in lines


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ({"storage_type": "sql", "path": None}, "path` is missing: `storage_type: sql` reads it"),
        ({"storage_type": "sql", "path": "mysql://host/rows"}, "path` is not a database's address"),
        ({"storage_type": "file", "table": "x"}, "table` goes with `storage_type: sql` only"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(
    rows: Mapping[str, object], complaint: str
) -> None:
    with pytest.raises(UserError) as caught:
        planned(**rows)
    assert complaint in str(caught.value)
