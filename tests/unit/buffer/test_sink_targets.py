"""Experiences in a database or as JSON lines: once each, in order, by one writer at a time."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from services.buffer.sink.targets import (
    SinkFailed,
    SinkFenced,
    SinkForeign,
    SinkRow,
    SinkTarget,
    open_target,
)
from services.buffer.tenants import TenantGrants
from tests.support.guides import READ_EXPERIENCES
from tests.support.model_free.experiment import experiment_plan
from tests.unit.test_codec import an_experience
from trinity.api.v1 import experience_pb2 as pb
from trinity.config.plan.experience_sink import ExperienceSink, check_sinks, experience_sink
from trinity.data.codec import SampleRef, set_experience
from trinity.errors import UserError
from trinity.rft.common.schema.sql_schema import ExperienceModel
from trinity.runtime.owned_places import check_lines
from trinity.types import JsonValue, StageKey

KEY = StageKey(tenant="default", experiment_id="7d1f0c6e-7c3b-4f0e-9d2e-1b1c5a7f4a10", stage="rft")


def row(number: int) -> SinkRow:
    message = pb.Experience()
    ref = SampleRef(
        tenant=KEY.tenant,
        experiment_id=KEY.experiment_id,
        assignment_id="7d1f0c6e-7c3b-4f0e-9d2e-1b1c5a7f4a11",
        taskset="train",
        task_index=number,
    )
    set_experience(message, an_experience(), ref)
    return SinkRow(number=number, experience_id=f"id-{number}", body=message.SerializeToString())


def sinks(folder: Path) -> dict[str, ExperienceSink]:
    return {
        "sql": ExperienceSink("sql", f"sqlite:///{folder}/deep/made.db"),
        "jsonl": ExperienceSink("jsonl", str(folder / "made")),
        "file": ExperienceSink("jsonl", str(folder / "made.jsonl")),
    }


def numbers(sink: ExperienceSink) -> list[int]:
    if sink.kind == "sql":
        with sqlite3.connect(sink.place.removeprefix("sqlite:///")) as connection:
            return [n for (n,) in connection.execute("SELECT number FROM experience ORDER BY id")]
    path = Path(sink.place)
    path = path / "experiences.jsonl" if path.is_dir() else path
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


@pytest.fixture(params=["sql", "jsonl", "file"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> ExperienceSink:
    return sinks(tmp_path)[request.param]


def test_rows_are_written_once_in_order_and_go_on_in_another_process(sink: ExperienceSink) -> None:
    first = open_target(sink)
    assert first.position(KEY) == 0
    first.write(KEY, [row(3), row(5)], after=0, until=5)
    first.write(KEY, [], after=5, until=5)
    first.close()
    second = open_target(sink)
    assert second.position(KEY) == 5
    second.write(KEY, [row(9)], after=5, until=9)
    second.close()
    assert numbers(sink) == [3, 5, 9]


def test_a_writer_that_was_taken_over_is_refused_and_writes_nothing(sink: ExperienceSink) -> None:
    lost, heir = open_target(sink), open_target(sink)
    lost.write(KEY, [row(1)], after=0, until=1)
    heir.write(KEY, [row(2)], after=1, until=2)
    with pytest.raises(SinkFenced):
        lost.write(KEY, [row(2), row(3)], after=1, until=3)
    assert numbers(sink) == [1, 2]
    assert lost.position(KEY) == 2


def test_stages_have_positions_of_their_own(sink: ExperienceSink) -> None:
    other = StageKey(tenant="default", experiment_id=KEY.experiment_id, stage="second")
    target: SinkTarget = open_target(sink)
    target.write(KEY, [row(7)], after=0, until=7)
    target.write(other, [row(4)], after=0, until=4)
    again = open_target(sink)
    assert (again.position(KEY), again.position(other)) == (7, 4)


def test_half_a_line_of_a_killed_writer_is_written_again(tmp_path: Path) -> None:
    sink = sinks(tmp_path)["file"]
    open_target(sink).write(KEY, [row(1), row(2)], after=0, until=2)
    path = Path(sink.place)
    path.write_bytes(path.read_bytes()[:-20])
    target = open_target(sink)
    assert target.position(KEY) == 1
    target.write(KEY, [row(2)], after=1, until=2)
    assert numbers(sink) == [1, 2]


LINE = b'{"trinity": 1, "experiment_id": "e", "stage": "s", "number": 7}\n'
FOREIGN = (
    b'{"question": "1+1"}\n',
    b'{"question": "1+1"}',
    b'{\n "question": "1+1"\n}\n',
    b"\n",
    b'{"experiment_id": "e", "stage": "s", "number": 7}\n',
    b'{"trinity": 1, "experiment_id": "e", "stage": "s"}\n',
    b'{"trinity": 1, "experiment_id": ["e"], "stage": {}, "number": true}\n',
    b'{"trinity": 1, \n',
    b"\xff\x00\n",
    b"text without an end",
    LINE + b"{",
    LINE + b"\n" + LINE,
    LINE[:-2] + b', "deep": ' + b"[" * 20_000 + b"\n",
    LINE.replace(b"7", b"true"),
    b"null\n",
)


@pytest.mark.parametrize("content", FOREIGN)
def test_a_file_of_others_is_refused_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    sink = sinks(tmp_path)["file"]
    Path(sink.place).write_bytes(content)
    target = open_target(sink)
    for _ in range(2):
        with pytest.raises(SinkForeign, match="the file is left unchanged"):
            target.position(KEY)
        with pytest.raises(SinkForeign, match="is not of Trinity's experiences"):
            target.write(KEY, [row(1)], after=0, until=1)
    with pytest.raises(UserError, match=r"made\.jsonl, line \d"):
        check_lines(Path(sink.place))
    assert Path(sink.place).read_bytes() == content


def test_lines_of_others_that_come_later_are_not_touched_either(tmp_path: Path) -> None:
    sink = sinks(tmp_path)["file"]
    target = open_target(sink)
    target.write(KEY, [row(1)], after=0, until=1)
    check_lines(Path(sink.place))
    with Path(sink.place).open("ab") as file:
        file.write(b"a note of mine")
    before = Path(sink.place).read_bytes()
    with pytest.raises(SinkForeign, match="line 2"):
        target.write(KEY, [row(2)], after=1, until=2)
    assert Path(sink.place).read_bytes() == before


def test_a_pipe_is_no_place_for_experiences(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "made.jsonl")
    with pytest.raises(SinkForeign, match="is not a file"):
        open_target(sinks(tmp_path)["file"]).position(KEY)


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE experience (id INTEGER)",
        "CREATE TABLE experience (id INTEGER); CREATE TABLE experience_position (number INTEGER)",
        "CREATE TABLE experience_position (number INTEGER)",
    ],
)
def test_a_table_of_others_is_refused_and_stays_as_it_is(tmp_path: Path, made: str) -> None:
    file = tmp_path / "own.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(made)
    before = file.read_bytes()
    with pytest.raises(SinkForeign, match="that Trinity has not made"):
        open_target(ExperienceSink("sql", f"sqlite:///{file}"))
    assert file.read_bytes() == before


def test_a_database_of_a_users_gets_our_tables_beside_its_own(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        connection.executescript("CREATE TABLE mine (id INTEGER); INSERT INTO mine VALUES (1)")
        sink = ExperienceSink("sql", f"sqlite:///{tmp_path}/own.db")
        for _ in range(2):
            open_target(sink).position(KEY)
        assert connection.execute("SELECT id FROM mine").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("name", "content"),
    [("own.jsonl", b'{"question": "1+1"}'), ("own.db", b"no database"), ("own.db", None)],
)
def test_the_check_refuses_a_place_of_others(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    path = tmp_path / name
    buffer: dict[str, JsonValue] = {"path": str(path), "storage_type": None}
    plan = experiment_plan(
        tmp_path / "run", buffer={"trainer_input": {"experience_buffer": buffer}}
    )
    check_sinks(plan.stages[0])
    if content is None:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript("CREATE TABLE experience (id INTEGER)")
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match=name):
        check_sinks(plan.stages[0])
    path.unlink()
    open_target(experience_sink(plan.stages[0])).write(KEY, [row(1)], after=0, until=1)  # type: ignore[arg-type]
    check_sinks(plan.stages[0])


def test_the_snippet_of_the_faq_prints_what_is_stored(tmp_path: Path) -> None:
    sink = sinks(tmp_path)["sql"]
    open_target(sink).write(KEY, [row(number) for number in range(1, 7)], after=0, until=6)
    done = subprocess.run(
        [sys.executable, "-c", READ_EXPERIENCES.replace("sqlite:///sums_buffer.db", sink.place)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert (done.returncode, done.stderr) == (0, "")
    made = an_experience()
    told = f"exp.prompt_text={made.prompt_text!r} exp.response_text={made.response_text!r}"
    assert done.stdout.splitlines() == [told] * 4
    engine = create_engine(sink.place)
    stored = sessionmaker(bind=engine)().query(ExperienceModel).first()
    assert stored is not None
    again = stored.to_experience()
    assert again.sequence.tokens.tolist() == made.sequence.tokens.tolist()
    assert again.sequence.action_mask.tolist() == made.sequence.action_mask.tolist()
    assert (again.reward, again.metrics, again.info) == (made.reward, made.metrics, made.info)
    engine.dispose()


def test_a_place_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkFailed, match="file"):
        open_target(ExperienceSink("sql", f"sqlite:///{tmp_path}/file/made.db"))


@pytest.mark.parametrize(
    ("path", "storage", "kind", "place"),
    [
        ("sqlite:///countdown_buffer.db", "queue", "sql", "sqlite:///{here}/countdown_buffer.db"),
        ("postgresql://u:p@host/db", None, "sql", "postgresql://u:p@host/db"),
        ("made.db", "sql", "sql", "sqlite:///{here}/made.db"),
        ("/data/made", "sql", "sql", "sqlite:////data/made"),
        ("made", "file", "jsonl", "{here}/made"),
        ("made.json", "queue", "jsonl", "{here}/made.json"),
    ],
)
def test_each_form_of_a_path_is_a_place(
    path: str,
    storage: str | None,
    kind: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    buffer: dict[str, JsonValue] = {"path": path, "storage_type": storage}
    plan = experiment_plan(tmp_path, buffer={"trainer_input": {"experience_buffer": buffer}})
    found = experience_sink(plan.stages[0])
    assert found is not None
    assert (found.kind, found.place) == (kind, place.format(here=tmp_path))
    assert "u:p@" not in found.shown


def test_a_deployed_buffer_writes_to_allowed_databases_alone(tmp_path: Path) -> None:
    allowed = TenantGrants(
        tenant="a", roots=("/data",), addresses=("postgresql://db:5432",), has_functions=False
    )
    allowed.check_sink(ExperienceSink("sql", "postgresql://u:p@db/made"))
    for sink in (
        ExperienceSink("sql", "postgresql://u:p@elsewhere/made"),
        ExperienceSink("sql", f"sqlite:///{tmp_path}/made.db"),
        ExperienceSink("jsonl", "/data/made"),
    ):
        with pytest.raises(UserError, match="tenant a"):
            allowed.check_sink(sink)
    own = TenantGrants(tenant="a", roots=("/",), addresses=("*",), has_functions=True)
    own.check_sink(ExperienceSink("jsonl", "/data/made"))
