"""Tasks go through a server like Data-Juicer's; with TRINITY_TEST_DATA_JUICER through itself."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.data_juicer_process import LIMIT_SECONDS, PYTHON, data_juicer_server
from tests.support.data_juicer_server import LongEnough, served
from trinity.errors import UserError
from trinity.operators.tasks.data_juicer import data_juicer
from trinity.operators.tasks.task_rows import Row, TaskChanges, TaskRows
from trinity.runtime.json_values import JsonValue
from trinity.user_code.data_juicer import server

ROWS: list[Row] = [
    {
        "question": f"What is {i} plus {i}?" + " Think." * i,
        "answer": str(2 * i),
        "hard": i,
        "rate": i / 3,
        "even": i % 2 == 0,
        "tags": ["sum"] * (i % 2),
        "more": {"seen": [i]},
        "note": None if i % 2 else "n",
    }
    for i in range(6)
]
pytestmark = pytest.mark.timeout(1800)  # Data-Juicer takes minutes where much else is done
only_itself = pytest.mark.skipif(not PYTHON, reason="TRINITY_TEST_DATA_JUICER names no Python")


def juiced(url: str, rows: list[Row], *operators: dict[str, JsonValue]) -> TaskChanges:
    return data_juicer(
        TaskRows(rows=rows),
        server_url=url,
        operators=list(operators),
        limit_seconds=LIMIT_SECONDS,
    )


def check_filtered(url: str) -> None:
    """What stays is as it was, columns that Data-Juicer cannot have among it."""
    changes = juiced(url, ROWS, {"text_length_filter": {"min_len": 30}})
    assert changes.left_out is not None
    assert changes.left_out.tolist() == [True, True, False, False, False, False]
    assert changes.rows == ROWS
    lengths = [
        len(f"{row['question']}\n{row['answer']}\nn"[: None if i % 2 == 0 else -2])
        for i, row in enumerate(ROWS)
    ]
    np.testing.assert_array_equal(changes.scores["text_len"], [np.nan, np.nan, *lengths[2:]])
    nothing = juiced(url, ROWS, {"text_length_filter": {"min_len": 999}})
    assert nothing.left_out is not None and nothing.left_out.all()


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(server, "OperatorSession", LongEnough)
    with served(server.SessionStore()) as address:
        yield address


@pytest.fixture(scope="module")
def itself() -> Iterator[str]:
    with data_juicer_server() as address:
        yield address


def test_tasks_that_stay_are_as_they_were_and_what_is_measured_is_a_score(url: str) -> None:
    check_filtered(url)


@only_itself
def test_the_same_with_data_juicer_itself(itself: str) -> None:
    check_filtered(itself)


@only_itself
def test_texts_that_data_juicer_rewrites_are_taken_from_the_column_that_it_is_told(
    itself: str,
) -> None:
    rows: list[Row] = [{"question": f"write  to a{i}@b.com", "answer": str(i)} for i in range(2)]
    told: dict[str, JsonValue] = {"text_key": "question"}
    changes = juiced(itself, rows, {"clean_email_mapper": told})
    assert changes.rows == [{"question": "write  to ", "answer": str(i)} for i in range(2)]
    named: list[Row] = [{"text": "at a@b.com", "n": 1}]
    assert juiced(itself, named, {"clean_email_mapper": {}}).rows == [{"text": "at ", "n": 1}]


@only_itself
def test_deduplicators_and_selectors_of_data_juicer_leave_tasks_out(itself: str) -> None:
    same: list[Row] = [{"text": "same"}, {"text": "same"}, {"text": "other"}]
    changes = juiced(itself, same, {"document_deduplicator": {}})
    assert changes.left_out is not None and changes.left_out.tolist() == [False, True, False]
    hardest: dict[str, JsonValue] = {
        "topk_specified_field_selector": {"field_key": "hard", "topk": 2}
    }
    changes = juiced(itself, ROWS, hardest)
    assert changes.left_out is not None and changes.left_out.tolist() == [True] * 4 + [False] * 2


@only_itself
def test_many_tasks_keep_their_places_through_several_processes(itself: str) -> None:
    rows: list[Row] = [{"text": "long" * (i % 3), "n": i} for i in range(600)]
    changes = data_juicer(
        TaskRows(rows=rows),
        server_url=itself,
        operators=[{"text_length_filter": {"min_len": 5}}],
        np=2,
        limit_seconds=LIMIT_SECONDS,
    )
    assert changes.left_out is not None and changes.rows == rows
    assert changes.left_out.tolist() == [i % 3 < 2 for i in range(600)]


@only_itself
def test_an_operator_that_it_does_not_have_is_named(itself: str) -> None:
    with pytest.raises(UserError, match="answers 400: KeyError: 'no_such_filter'"):
        juiced(itself, ROWS, {"no_such_filter": {}})
