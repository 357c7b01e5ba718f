"""Databases and files that experiences are written to.

A target stores how far each stage is written, and takes rows only from a writer with the same
position: a writer that was wrongly taken for dead cannot write rows twice.
"""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import sqlalchemy as sa
from sqlalchemy.orm import Session

from trinity.api.v1 import experience_pb2 as pb
from trinity.config.plan.experience_sink import ExperienceSink
from trinity.data.codec import experience_from_proto
from trinity.data.samples import content_row
from trinity.data.sql_schema import ExperienceModel, SinkBase, SinkPosition
from trinity.runtime.owned_places import (
    foreign_line_error,
    is_begun_line_of_ours,
    is_line_of_ours,
)
from trinity.types import Pair, StageKey

DRIVERS = {"postgresql": "postgresql+psycopg"}
_ROWS = SinkBase.metadata.tables[ExperienceModel.__tablename__]


class SinkFenced(Exception):
    """Another writer has moved the position: this one must read it again."""


class SinkFailed(Exception):
    """The target does not take rows now."""


class SinkForeign(SinkFailed):
    """The target has contents that Trinity did not write; it is left unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRow:
    """One experience as it is stored."""

    number: int
    experience_id: str
    body: bytes


class SinkTarget(Protocol):
    """A place for rows; its calls block."""

    def position(self, key: StageKey) -> int:
        """Returns the number up to which the stage is written; 0 at the beginning."""
        ...

    def write(self, key: StageKey, rows: Sequence[SinkRow], *, after: int, until: int) -> None:
        """Writes rows and moves the position from `after` to `until`, both or neither.

        Raises: SinkFenced when the position is not `after`.
        """
        ...

    def close(self) -> None:
        """Releases connections."""
        ...


def open_target(sink: ExperienceSink) -> SinkTarget:
    """Opens the target; its tables, file or folder are made if they are missing.

    Raises: SinkFailed.
    """
    with sink_failures(sink.shown):
        return SqlTarget(sink.place) if sink.kind == "sql" else JsonLinesTarget(sink.file)


@contextlib.contextmanager
def sink_failures(place: str) -> Iterator[None]:
    """Turns errors of a database or a file into `SinkFailed`."""
    try:
        yield
    except (sa.exc.SQLAlchemyError, OSError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        raise SinkFailed(f"{place}: {reason}") from error


def open_engine(address: str) -> sa.Engine:
    """Returns an engine for an address; the folder of a SQLite file is made if it is missing."""
    url = sa.make_url(address)
    if url.drivername == "sqlite" and url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    return sa.create_engine(url.set(drivername=DRIVERS.get(url.drivername, url.drivername)))


def check_table(engine: sa.Engine, table: sa.Table, place: str, beside: str = "") -> None:
    """Checks that a table is missing or ours, by its columns and the second table's existence.

    Raises: SinkForeign; SQLAlchemyError.
    """
    found = sa.inspect(engine)
    if not found.has_table(table.name):
        return
    columns = {column["name"] for column in found.get_columns(table.name)}
    if columns != set(table.columns.keys()) or (beside and not found.has_table(beside)):
        raise SinkForeign(
            f"{place} has a table {table.name} that Trinity has not made, so nothing is written "
            "there: give another database, or rename the table"
        )


class SqlTarget:
    """Tables of `trinity.common.schema.sql_schema` in a database."""

    def __init__(self, address: str) -> None:
        self._place = sa.make_url(address).render_as_string(hide_password=True)
        self._engine = open_engine(address)
        for table in SinkBase.metadata.tables.values():
            check_table(self._engine, table, self._place, SinkPosition.__tablename__)
        SinkBase.metadata.create_all(self._engine)

    def position(self, key: StageKey) -> int:
        """Returns the number up to which the stage is written."""
        with sink_failures(self._place), Session(self._engine) as session:
            found = session.get(SinkPosition, (key.experiment_id, key.stage))
            return found.number if found is not None else 0

    def write(self, key: StageKey, rows: Sequence[SinkRow], *, after: int, until: int) -> None:
        """Writes rows and moves the position in one transaction."""
        with sink_failures(self._place), Session(self._engine) as session, session.begin():
            self._move(session, key, after, until)
            if rows:
                # Not as objects of the model, which cost four times as much.
                session.execute(sa.insert(_ROWS), [_values(key, row) for row in rows])

    def _move(self, session: Session, key: StageKey, after: int, until: int) -> None:
        if after == 0 and session.get(SinkPosition, (key.experiment_id, key.stage)) is None:
            session.add(
                SinkPosition(experiment_id=key.experiment_id, stage=key.stage, number=until)
            )
            return
        moved = session.execute(
            sa.update(SinkPosition)
            .where(
                SinkPosition.experiment_id == key.experiment_id,
                SinkPosition.stage == key.stage,
                SinkPosition.number == after,
            )
            .values(number=until)
            .returning(SinkPosition.number)
        ).all()
        if not moved:
            raise SinkFenced

    def close(self) -> None:
        """Releases connections."""
        self._engine.dispose()


def _values(key: StageKey, row: SinkRow) -> dict[str, object]:
    message = pb.Experience.FromString(row.body)
    body = message.sequence if message.HasField("sequence") else message.pair.chosen
    versions = [span.version for span in message.version_spans]
    return {
        "experiment_id": key.experiment_id,
        "stage": key.stage,
        "number": row.number,
        "experience_id": row.experience_id,
        "explore_step": message.eid.explore_step,
        "taskset": message.taskset,
        "task_index": message.task_index,
        "run": message.eid.run,
        "step": message.eid.step,
        "model_version": max(versions, default=None),
        "reward": message.reward if message.HasField("reward") else None,
        "prompt": body.prompt_text,
        "response": body.response_text,
        "metrics": dict(message.metrics),
        "experience_bytes": row.body,
    }


class JsonLinesTarget:
    """JSON lines in one file; the last whole line of a stage is its position.

    Writers hold a lock on the file. Half a line, which a killed writer leaves, is cut off. A file
    with any line of others is left as it is.
    """

    def __init__(self, place: Path) -> None:
        self._path = place
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._size = -1
        self._positions: dict[tuple[str, str], int] = {}

    def position(self, key: StageKey) -> int:
        """Returns the number up to which the stage is written."""
        with sink_failures(str(self._path)), self._locked() as file:
            return self._read(file).get((key.experiment_id, key.stage), 0)

    def write(self, key: StageKey, rows: Sequence[SinkRow], *, after: int, until: int) -> None:
        """Appends rows; the position moves with the last of them."""
        stage = (key.experiment_id, key.stage)
        with sink_failures(str(self._path)), self._locked() as file:
            if self._read(file).get(stage, 0) > after:
                raise SinkFenced
            lines = b"".join(_line(key, row) for row in rows)
            file.seek(0, os.SEEK_END)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
            self._size = file.tell()
            self._positions[stage] = until

    def close(self) -> None:
        """Does nothing: the file is closed after each write."""

    @contextlib.contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise SinkForeign(f"{self._path} is not a file: give another path for experiences")
        with os.fdopen(descriptor, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _read(self, file: BinaryIO) -> dict[tuple[str, str], int]:
        """Returns the positions; the file is read only if another writer has changed it."""
        size = file.seek(0, os.SEEK_END)
        if size == self._size:
            return self._positions
        self._positions, self._size, whole = {}, -1, 0
        file.seek(0)
        for number, line in enumerate(file, start=1):
            if is_line_of_ours(line):
                whole += len(line)
                row = json.loads(line)
                self._positions[row["experiment_id"], row["stage"]] = row["number"]
            elif line.endswith(b"\n") or not is_begun_line_of_ours(line):
                raise SinkForeign(str(foreign_line_error(self._path, number)))
            else:
                file.truncate(whole)
        self._size = whole
        return self._positions


def _line(key: StageKey, row: SinkRow) -> bytes:
    message = pb.Experience.FromString(row.body)
    experience = experience_from_proto(message)
    body = experience.body
    sequence = body.chosen if isinstance(body, Pair) else body
    eid = message.eid
    fields = {
        "trinity": 1,
        "experiment_id": key.experiment_id,
        "stage": key.stage,
        "number": row.number,
        "id": row.experience_id,
        "explore_step": eid.explore_step,
        "taskset": message.taskset,
        "task_index": message.task_index,
        "run": eid.run,
        "step": eid.step,
        "reward": experience.reward,
        "metrics": dict(experience.metrics),
        "finish_reason": experience.finish_reason.value,
        "response_length": sequence.response_length,
        **content_row(experience),
    }
    return json.dumps(fields, ensure_ascii=False).encode(errors="replace") + b"\n"
