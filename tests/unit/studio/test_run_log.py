"""The logs on the page Run: the newest lines, filtered, of files of any size."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.unit.studio.fake_run import said
from tests.unit.studio.test_runs import a_run
from trinity.errors import UserError
from trinity.run.log_files import LogFilter
from trinity.studio.pages import run_log
from trinity.studio.pages.run_log import MAX_LINE_CHARS, MAX_LINES, line_text, read_page

DAY = "2026-05-04T10:00:{:02}+00:00"


def write(job: Path, service: str, *lines: str) -> None:
    folder = job / "log"
    folder.mkdir(exist_ok=True)
    (folder / f"{service}.log").write_text("".join(f"{line}\n" for line in lines))


def line(second: int, level: str, text: str) -> str:
    return f"{DAY.format(second)} {level} {text}"


def texts(job: Path, service: str = "", **wanted: object) -> list[str]:
    page = read_page(job, service, LogFilter(**wanted))  # type: ignore[arg-type]
    return [one.text.strip() for one in page.lines]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    job = a_run(tmp_path)
    write(
        job, "buffer", line(1, "INFO", "first"), line(4, "ERROR", "fourth"), "Traceback", "  deep"
    )
    write(job, "trainer", line(2, "DEBUG", "second"), line(3, "WARNING", "third"))
    return job


def test_lines_of_all_services_come_in_order_of_time(job: Path) -> None:
    assert texts(job) == ["first", "second", "third", "fourth"]
    page = read_page(job, "", LogFilter())
    assert page.services == ("buffer", "trainer")
    assert line_text(page.lines[-1]).splitlines()[1:] == ["    Traceback", "      deep"]


def test_filters_hold_together(job: Path) -> None:
    assert texts(job, "trainer") == ["second", "third"]
    assert texts(job, level="WARNING") == ["third", "fourth"]
    assert texts(job, since=datetime(2026, 5, 4, 10, 0, 3, tzinfo=UTC)) == ["third", "fourth"]
    assert texts(job, text="DEEP") == ["fourth"]
    assert texts(job, "trainer", level="ERROR") == []


def test_only_the_newest_lines_are_shown_and_only_the_end_is_read(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(job, "buffer", *(line(number % 60, "INFO", f"n{number}") for number in range(1_000)))
    page = read_page(job, "buffer", LogFilter())
    assert (len(page.lines), page.num_more, page.is_cut) == (MAX_LINES, 1_000 - MAX_LINES, False)
    monkeypatch.setattr(run_log, "TAIL_BYTES", 400)
    write(job, "buffer", line(1, "INFO", "x" * 500), "a part of it", line(2, "INFO", "whole"))
    page = read_page(job, "buffer", LogFilter())
    assert [one.text.strip() for one in page.lines] == ["whole"]
    assert page.is_cut


def test_a_line_of_a_mebibyte_is_cut(job: Path) -> None:
    write(job, "buffer", line(1, "INFO", "y" * 400_000))
    [long] = read_page(job, "buffer", LogFilter()).lines
    assert len(line_text(long)) < MAX_LINE_CHARS + 50
    assert "more characters]" in line_text(long)


def test_a_run_without_logs_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no logs in"):
        read_page(a_run(tmp_path), "", LogFilter())


PAGE = """
from pathlib import Path
from tests.unit.studio import test_run_log as test
from trinity.studio.connection import RunConnection
from trinity.studio.context import StudioContext, StudioOptions, ViewedRun
from trinity.studio.pages.common import RunPage
from trinity.studio.pages.run_log import show_logs

context = StudioContext(StudioOptions(places=()), visitor_now=lambda: test.visitor[0])
viewed = ViewedRun(connection=RunConnection(test.shown_job[0]))
show_logs(RunPage(context=context, viewed=viewed))
context.close()
"""
shown_job: list[Path] = []
visitor: list[object] = []


def show(job: Path, *, is_owner: bool = True) -> AppTest:
    from trinity.studio.visitors import OWNER, Visitor

    shown_job[:] = [job]
    visitor[:] = [OWNER if is_owner else Visitor(name="ann", is_owner=False, token="t")]
    page = AppTest.from_string(PAGE, default_timeout=60).run()
    assert not page.exception
    return page


def test_the_page_shows_what_its_form_asks_for(job: Path) -> None:
    write(job, "explorer", line(5, "INFO", "<script>alert(1)</script> [a](http://x) \u202e"))
    page = show(job)
    assert "<script>alert(1)</script> [a](http://x) \\u202e" in page.code[0].value
    assert "second" not in page.code[0].value  # DEBUG
    page.selectbox[1].set_value("ERROR")
    page.button[0].click().run()
    assert "fourth" in page.code[0].value
    assert "third" not in page.code[0].value
    page.text_input[0].set_value("yesterday")
    page.button[0].click().run()
    assert "is not a time" in str(said(page))


def test_a_token_opens_no_log(job: Path) -> None:
    page = show(job, is_owner=False)
    assert not page.code and not page.button
    assert "Logs are where the services run" in str(said(page))
