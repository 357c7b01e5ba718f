"""Logs of all processes are one text in the order of time, whoever wrote them and however."""

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path

import pytest

from trinity.cli.log import log
from trinity.errors import UserError
from trinity.run.log_files import (
    LogFilter,
    LogLine,
    follow_logs,
    log_files,
    parsed,
    read_logs,
    since_of,
)
from trinity.runtime.logs import JsonFormatter, TextFormatter

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
POSTGRES = "2026-03-01 12:00:02.000 UTC [7] ERROR:  relation does not exist"
NATS = "[7] 2026/03/01 12:00:03.000001 [WRN] slow consumer"


def record(second: int, level: int, message: str, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {"name": "services.buffer", "levelno": level, "levelname": logging.getLevelName(level)}
        | {"msg": message}
        | extra
    )
    made.created = datetime(2026, 3, 1, 12, 0, second, tzinfo=UTC).timestamp()
    return made


def written(job_dir: Path) -> Path:
    """A buffer that logs as text, with a traceback, and an explorer that logs as JSON."""
    folder = job_dir / "log"
    folder.mkdir()
    text, as_json = TextFormatter(), JsonFormatter("explorer")
    failed = record(3, logging.ERROR, "batch failed", trace_id=TRACE, experiment_id="e1")
    buffer = [
        text.format(record(1, logging.INFO, "begins", experiment="sums/first")),
        text.format(failed),
        "Traceback (most recent call last):",
        "ValueError: seven",
        text.format(record(5, logging.INFO, "goes on")),
    ]
    explorer = [
        as_json.format(record(2, logging.WARNING, "waits", experiment_id="e1")),
        as_json.format(record(4, logging.DEBUG, "two\nlines", trace_id=TRACE)),
    ]
    (folder / "buffer.log").write_text("\n".join(buffer) + "\n")
    (folder / "explorer.log").write_text("\n".join(explorer) + "\n")
    return job_dir


def shown(job_dir: Path, **conditions: object) -> list[str]:
    wanted = LogFilter(**conditions)  # type: ignore[arg-type]  # as the test gives them
    return [
        line.text.split(": ")[1].split(" ")[0].strip()
        for line in read_logs(log_files(job_dir, ()))
        if wanted.takes(line)
    ]


def test_logs_are_merged_by_time(tmp_path: Path) -> None:
    assert shown(written(tmp_path)) == ["begins", "waits", "batch", "two\nlines", "goes"]


def test_a_traceback_belongs_to_its_message(tmp_path: Path) -> None:
    lines = [line for line in read_logs(log_files(written(tmp_path), ())) if line.more]
    assert [line.more[-1] for line in lines] == ["ValueError: seven"]
    assert shown(tmp_path, text="valueERROR") == ["batch"]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"level": "WARNING"}, ["waits", "batch"]),
        ({"level": "INFO", "text": "on"}, ["goes"]),
        ({"trace": TRACE[:8]}, ["batch", "two\nlines"]),
        ({"experiment": "e1"}, ["waits", "batch"]),
        ({"experiment": "sums/first"}, ["begins"]),
        ({"since": datetime(2026, 3, 1, 12, 0, 4, tzinfo=UTC)}, ["two\nlines", "goes"]),
    ],
)
def test_lines_are_chosen(
    tmp_path: Path, conditions: dict[str, object], expected: list[str]
) -> None:
    assert shown(written(tmp_path), **conditions) == expected


def test_the_broker_and_the_database_are_understood() -> None:
    database, broker = parsed("postgres", POSTGRES), parsed("nats", NATS)
    assert database is not None and broker is not None
    assert (database.level, database.time.second) == ("ERROR", 2)
    assert (broker.level, broker.time.second) == ("WARNING", 3)
    assert parsed("buffer", "ValueError: seven") is None
    assert parsed("buffer", '{"half": ') is None


def test_a_service_without_a_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean `buffer`"):
        log_files(written(tmp_path), ["bufer"])
    with pytest.raises(UserError, match="there are no logs"):
        log_files(tmp_path / "nowhere", ())


def test_since_is_a_time_or_how_long_ago() -> None:
    now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    assert since_of("90s", now) == now - timedelta(seconds=90)
    assert since_of("2h", now) == now - timedelta(hours=2)
    assert since_of("2026-03-01T11:00", now) == now - timedelta(hours=1)
    with pytest.raises(UserError, match="is not a time"):
        since_of("yesterday", now)


@pytest.mark.parametrize("ago", ["9999999999d", "999999d", "1" * 5_000 + "s"])
def test_before_all_time_is_no_time(ago: str) -> None:
    with pytest.raises(UserError, match="is not a time: give how long ago"):
        since_of(ago, datetime(2026, 3, 1, 12, 0, tzinfo=UTC))


def next_look(looks: Iterator[LogLine | None]) -> list[str]:
    """What the next looks show, up to one that shows something."""
    while True:
        look = [line for line in takewhile(lambda line: line is not None, looks) if line]
        if look:
            return [line.text.rpartition(": ")[2] for line in look]


def test_following_shows_what_comes_also_in_new_files(tmp_path: Path) -> None:
    looks = follow_logs(written(tmp_path), ())
    seen = next_look(looks)
    while "goes on" not in seen:
        seen += next_look(looks)
    assert len(seen) == 5
    text = TextFormatter()
    with (tmp_path / "log" / "buffer.log").open("a") as file:
        file.write(text.format(record(6, logging.INFO, "half"))[:20])
        file.flush()
        (tmp_path / "log" / "trainer.log").write_text(
            text.format(record(7, logging.INFO, "new")) + "\n"
        )
        assert next_look(looks) == ["new"]
        file.write(text.format(record(6, logging.INFO, "half"))[20:] + "\n")
        file.flush()
        assert next_look(looks) == ["half"]


def test_lines_are_printed_without_colors_and_cannot_steer_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(job_dir=written(tmp_path), level="debug", service=["explorer"])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.splitlines()[0].startswith("2026-03-01 12:00:02.000 explorer     WARNING ")
    assert r"two\nlines" in out
    log(job_dir=tmp_path, limit=1, as_json=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["text"] == "services.buffer: goes on"


def test_colors_are_for_terminals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinity.cli.log._takes_colors", lambda: True)
    log(job_dir=written(tmp_path), level="ERROR")
    assert "\x1b[31mERROR" in capsys.readouterr().out


def test_lines_are_cut_on_a_terminal_but_for_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    folder = tmp_path / "log"
    folder.mkdir()
    fields = "".join(f" actor/metric_{number}=0.5" for number in range(100))
    when = "2026-03-01T12:00:01.000+00:00"
    (folder / "trainer.log").write_text(
        f"{when} INFO services.trainer.rank.loop: train step ended step=1{fields}\n"
        f"{when} ERROR services.trainer.rank.loop: it failed{fields}\n"
        "Traceback\n"
    )
    log(job_dir=tmp_path, short=True)
    step, error, traceback = capsys.readouterr().out.splitlines()
    assert len(step) == 100
    assert "train step ended step=1" in step and step.endswith("…")
    assert error.endswith(fields) and traceback == "Traceback"
    log(job_dir=tmp_path)
    assert capsys.readouterr().out.splitlines()[0].endswith(fields), "no terminal: whole lines"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("trinity.cli.log._takes_colors", lambda: False)
    log(job_dir=tmp_path)
    assert capsys.readouterr().out.splitlines()[0] == step
    log(job_dir=tmp_path, short=False)
    assert capsys.readouterr().out.splitlines()[0].endswith(fields)
