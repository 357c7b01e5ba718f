"""Tasksets in Studio: the list, their rows, and the upload of a file."""

import asyncio
import json
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from streamlit.testing.v1 import AppTest

from tests.unit.studio.fake_run import FakeStudio, said
from tests.unit.studio.test_runs import a_run
from trinity.client import SubmitResult, TasksetInfo
from trinity.client.results import PipelineInfo, RejectedRow, TasksetState
from trinity.errors import InvalidRequest, PreconditionFailed, TrinityError, Unavailable, UserError
from trinity.runtime.json_values import JsonObject
from trinity.runtime.security.credentials import PLAINTEXT
from trinity.studio import tasksets as logic
from trinity.studio import widgets
from trinity.studio.connection import OpenRun, System
from trinity.studio.context import StudioOptions
from trinity.studio.pages import common
from trinity.studio.pages import tasksets as page
from trinity.studio.tasksets import (
    MAX_CELL_CHARS,
    UploadedFile,
    cell_text,
    columns_of,
    pipeline_lines,
    request_id_of,
    row_text,
    source_text,
    title_of,
    upload,
)

ROWS: tuple[JsonObject, ...] = (
    {"prompt": "<script>", "response": 2, "extra": {"a": [1]}},
    {"prompt": "x" * 500},
)


def a_taskset(
    name: str = "", source: str = "", *, num_refused: int = 0, pipeline: PipelineInfo | None = None
) -> TasksetInfo:
    return TasksetInfo(
        taskset_id="11111111-2222-3333-4444-555555555555",
        name=name,
        source=source,
        state=TasksetState.COMPLETE,
        is_queue=False,
        num_rows=2,
        num_refused=num_refused,
        num_stages=1,
        created_at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        rows=ROWS,
        pipeline=pipeline,
    )


class Client:
    """The client of a buffer, without one."""

    error: Exception | None = None
    sent: tuple[Any, ...] = ()

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def list(self) -> Iterable[TasksetInfo]:
        if self.error is not None:
            raise self.error
        return [a_taskset(source="/data/math.jsonl|train||abc")]

    async def get(self, *_: object, **__: object) -> TasksetInfo:
        return a_taskset(source="/data/math.jsonl|train||abc")

    async def submit(
        self, name: str, rows: Iterable[str], *, is_queue: bool, request_id: str
    ) -> SubmitResult:
        if self.error is not None:
            raise self.error
        type(self).sent = (name, list(rows), is_queue, request_id)
        refused = (RejectedRow(index=1, reason="it is no JSON object"),)
        return SubmitResult(
            taskset_id="t", request_id=request_id, num_stored=1, num_refused=1, refused=refused
        )


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    class Own(Client):
        pass

    monkeypatch.setattr(logic, "AsyncTasksets", Own)
    return Own


SYSTEM = System(buffer="b:1", synchronizer="s:1", security=PLAINTEXT)
OPENED = cast(OpenRun, SimpleNamespace(system=SYSTEM, tenant="default"))


def uploaded(file: UploadedFile, *, name: str = "mine", allows: bool = True) -> SubmitResult:
    return asyncio.run(
        upload(
            OPENED,
            name=name,
            file=file,
            is_queue=False,
            request_id="r",
            allows_changes=allows,
        )
    )


def test_rows_are_sent_as_they_are_and_refused_ones_come_back(client: type[Client]) -> None:
    file = UploadedFile("own.JSONL", b'{"prompt": "a"}\nnot json\n')
    done = uploaded(file, name=" mine ")
    assert client.sent == ("mine", ['{"prompt": "a"}', "not json"], False, "r")
    assert done.refused[0].reason == "it is no JSON object"
    assert logic.result_text("mine", done) == "mine: 1 row stored, 1 refused"


def test_a_table_becomes_rows_of_json(client: type[Client]) -> None:
    uploaded(UploadedFile("own.csv", b"prompt,response\na,1\n"))
    assert [json.loads(row)["prompt"] for row in client.sent[1]] == ["a"]


def test_without_the_flag_nothing_is_uploaded(client: type[Client]) -> None:
    with pytest.raises(UserError, match="--allow-changes"):
        uploaded(UploadedFile("own.jsonl", b"{}"), allows=False)
    assert client.sent == ()


def test_a_file_that_is_not_what_its_name_says_is_one_sentence(client: type[Client]) -> None:
    assert client.sent == ()
    with pytest.raises(TrinityError, match=r"own\.parquet"):
        uploaded(UploadedFile("own.parquet", b"no parquet"))


def test_no_name_and_a_taken_name_are_one_sentence(client: type[Client]) -> None:
    file = UploadedFile("own.jsonl", b"{}")
    with pytest.raises(UserError, match="Give the taskset a name"):
        uploaded(file, name="  ")
    client.error = PreconditionFailed("the name is taken")
    with pytest.raises(TrinityError, match=r"mine was not uploaded: the name is taken"):
        uploaded(file)


def test_the_same_file_under_the_same_name_goes_on_and_another_one_does_not() -> None:
    first, other = UploadedFile("a.jsonl", b"1"), UploadedFile("a.jsonl", b"2")
    unfinished: dict[str, str] = {}

    def the_id(name: str, file: UploadedFile, *, is_queue: bool = False) -> str:
        return request_id_of(name, file, is_queue=is_queue, unfinished=unfinished)

    assert the_id("x", first) == the_id(" x", first)
    assert the_id("x", first) != the_id("y", first)
    assert the_id("x", first) != the_id("x", other)
    broken_off = the_id("x", first, is_queue=True)
    assert the_id("x", first, is_queue=True) == broken_off != the_id("x", first)
    unfinished.clear()  # it has ended: the queue may have these tasks once more
    assert the_id("x", first, is_queue=True) != broken_off


def test_rows_are_read_beside_the_loop_that_answers_all_pages(
    client: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    read = UploadedFile.rows

    def rows(file: UploadedFile) -> list[str]:
        threads.append(threading.get_ident())
        return read(file)

    monkeypatch.setattr(UploadedFile, "rows", rows)
    uploaded(UploadedFile("own.jsonl", b"{}"))
    assert client.sent[1] == ["{}"]
    assert threads != [threading.get_ident()]


def test_a_small_file_cannot_unpack_without_bound(
    client: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logic, "MAX_UNPACKED_CHARS", 100)
    with pytest.raises(UserError, match="by `trinity taskset submit`"):
        uploaded(UploadedFile("own.jsonl", b'{"prompt": "a"}\n' * 20))
    assert client.sent == ()


def test_a_taskset_of_a_file_has_the_name_of_the_file() -> None:
    found = a_taskset(source="/data/math.jsonl|train||1234abcd")
    assert (title_of(found), source_text(found)) == ("math.jsonl", "/data/math.jsonl train")
    sent = a_taskset(name="mine")
    assert (title_of(sent), source_text(sent)) == ("mine", "uploaded")


def test_cells_are_cut_and_whole_rows_are_bounded() -> None:
    assert columns_of(ROWS) == ["prompt", "response", "extra"]
    assert [cell_text(ROWS[0], key) for key in ("response", "extra", "none")] == [
        "2",
        '{"a": [1]}',
        "",
    ]
    assert len(cell_text(ROWS[1], "prompt")) == MAX_CELL_CHARS + 3
    assert len(row_text({"prompt": "x" * 2**20})) < 2**18


def test_a_task_pipeline_says_what_it_left_out() -> None:
    pipeline = PipelineInfo(num_read=9, left_out={"too long": 7}, ordered_by={"difficulty": 1.0})
    assert pipeline_lines(a_taskset(pipeline=pipeline)) == [
        "2 of 9 rows are left by the task pipeline",
        "7 left out by too long",
        "ordered by difficulty (1)",
    ]
    assert pipeline_lines(a_taskset()) == []


def a_page() -> None:
    from trinity.studio.pages import tasksets

    tasksets.show()


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[str, ...]]]:
    shown: dict[str, list[tuple[str, ...]]] = {}

    def show_table(name: str, columns: object, rows: list[Any], **_: object) -> None:
        del columns
        shown[name] = [row.cells for row in rows]

    monkeypatch.setattr(common, "show_table", show_table)
    monkeypatch.setattr(widgets, "show_table", show_table)
    return shown


def opened(tmp_path: Path, *, allows: bool, **parameters: str) -> AppTest:
    studio = FakeStudio(a_run(tmp_path))
    studio.options = StudioOptions(places=(tmp_path,), allows_changes=allows)
    object.__setattr__(studio.connection.opened, "system", SYSTEM)
    studio.show()
    app = AppTest.from_function(a_page)
    for name, value in parameters.items():
        app.query_params[name] = value
    return app.run(timeout=30)


def test_the_page_shows_rows_as_text_alone(
    tmp_path: Path, client: type[Client], tables: dict[str, list[tuple[str, ...]]]
) -> None:
    assert client.error is None
    app = opened(tmp_path, allows=False, id=a_taskset().taskset_id, row="0")
    assert not app.exception
    assert tables["Tasksets"][0][:3] == ("math.jsonl", "2", "")
    assert tables["Rows"][0][:3] == ("0", "<script>", "2")
    assert json.loads(app.code[0].value)["prompt"] == "<script>"
    assert "--allow-changes" in str(said(app))
    assert not app.markdown


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Unavailable("no route"), "The buffer at b:1 does not answer"),
        (InvalidRequest("tenant is bad"), "tenant is bad"),
    ],
)
def test_a_buffer_that_does_not_answer_is_one_sentence_and_the_page_stays(
    error: Exception,
    words: str,
    tmp_path: Path,
    client: type[Client],
    tables: dict[str, list[tuple[str, ...]]],
) -> None:
    client.error = error
    app = opened(tmp_path, allows=True)
    assert not app.exception
    assert words in str(said(app))
    assert [header.value for header in app.subheader] == ["Upload"]
    assert tables == {}


def test_the_outcome_of_an_upload_has_a_reason_for_each_refused_row(
    tmp_path: Path, client: type[Client], tables: dict[str, list[tuple[str, ...]]]
) -> None:
    assert client.error is None
    done = uploaded(UploadedFile("own.jsonl", b"{}\n"))
    app = opened(tmp_path, allows=True)
    app.session_state[page.DONE_KEY] = ("mine", done)
    app.run(timeout=30)
    assert tables["Refused rows"] == [("1", "it is no JSON object")]
    assert "mine: 1 row stored, 1 refused" in said(app)
