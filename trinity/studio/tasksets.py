"""Tasksets of a run's buffer as pages show them, and the upload of a file."""

import asyncio
import hashlib
import io
import json
import uuid
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePath

from trinity.client import AsyncTasksets, SubmitResult, TasksetInfo
from trinity.data.rows import rows_to_json
from trinity.errors import RpcError, UserError
from trinity.run.output import pluralize
from trinity.runtime.json_values import JsonObject
from trinity.studio.connection import OpenRun
from trinity.studio.plain_text import cut_text
from trinity.studio.system import answer_from

FILE_KINDS = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet", "arrow")
MAX_LISTED = 200
ROWS_SHOWN = 20
MAX_COLUMNS = 6
MAX_CELL_CHARS = 200
MAX_ROW_CHARS = 100_000
MAX_REASONS = 200
MAX_UNPACKED_CHARS = 256 * 1024 * 1024
"""A packed file may hold many times its size."""
PATIENCE_SECONDS = 10.0
UPLOAD_SECONDS = 300.0
"""An upload that takes longer is broken off, and continued by the same file and name."""
NOT_ALLOWED = (
    "This Studio changes nothing: start it with `trinity studio --allow-changes` to upload tasks."
)


@asynccontextmanager
async def _client(opened: OpenRun) -> AsyncIterator[AsyncTasksets]:
    async with AsyncTasksets(
        opened.system.buffer,
        tenant=opened.tenant,
        patience_seconds=PATIENCE_SECONDS,
        security=opened.system.security,
    ) as client:
        yield client


async def list_tasksets(opened: OpenRun) -> list[TasksetInfo]:
    """Returns all tasksets of the run's tenant, the newest first.

    Raises: TrinityError.
    """
    async with _client(opened) as client:
        return await answer_from("buffer", opened.system.buffer, client.list())


async def read_taskset(opened: OpenRun, taskset_id: str, *, first_row: int = 0) -> TasksetInfo:
    """Returns one taskset with some of its rows.

    Raises: TrinityError.
    """
    async with _client(opened) as client:
        call = client.get(taskset_id, first_row=first_row, num_rows=ROWS_SHOWN)
        return await answer_from("buffer", opened.system.buffer, call)


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file that a browser sent."""

    name: str
    content: bytes

    def rows(self) -> list[str]:
        """Returns the rows as JSON; takes seconds for a large file, so call it in a thread.

        Raises: UserError for a file that is not what its name says, or that holds too much.
        """
        found, num_chars = [], 0
        for row in rows_to_json(io.BytesIO(self.content), self.name.lower()):
            found.append(row)
            num_chars += len(row)
            if num_chars > MAX_UNPACKED_CHARS:
                raise UserError(
                    f"{self.name} has more than {MAX_UNPACKED_CHARS:,} characters as JSON: send "
                    "it by `trinity taskset submit`"
                )
        return found


async def upload(
    opened: OpenRun,
    *,
    name: str,
    file: UploadedFile,
    is_queue: bool,
    request_id: str,
    allows_changes: bool,
) -> SubmitResult:
    """Stores the rows of a file; the same request id goes on with an upload that was broken off.

    Raises: TrinityError with one sentence.
    """
    if not allows_changes:
        raise UserError(NOT_ALLOWED)
    if not name.strip():
        raise UserError("Give the taskset a name: files of configurations name it so.")
    rows = await asyncio.to_thread(file.rows)  # the loop answers all pages
    async with _client(opened) as client:
        call = client.submit(name.strip(), rows, is_queue=is_queue, request_id=request_id)
        try:
            return await answer_from("buffer", opened.system.buffer, call)
        except RpcError as error:
            raise UserError(f"{name.strip()} was not uploaded: {error}") from error


def request_id_of(
    name: str, file: UploadedFile, *, is_queue: bool, unfinished: MutableMapping[str, str]
) -> str:
    """Returns the id of an upload: the same for the same name and content, for it to go on.

    A queue may take the same tasks again, so there it is the same only while the upload stands in
    `unfinished`: the caller takes it out when it is done.
    """
    digest = hashlib.sha256(file.content).hexdigest()
    same = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{name.strip()}/{file.name}/{digest}"))
    return unfinished.setdefault(same, str(uuid.uuid4())) if is_queue else same


def name_for(file_name: str) -> str:
    """Returns a name for a taskset of a file."""
    return PurePath(file_name).stem


def source_text(taskset: TasksetInfo) -> str:
    """Returns where a taskset was read from, without the stamp of its content."""
    if not taskset.source:
        return "uploaded"
    return taskset.source.rpartition("|")[0].rstrip("|").replace("|", " ")


def title_of(taskset: TasksetInfo) -> str:
    """Returns the name of a taskset; one of a file has that of the file."""
    if taskset.name:
        return taskset.name
    return PurePath(source_text(taskset).split(" ")[0]).name or taskset.taskset_id[:8]


def pipeline_lines(taskset: TasksetInfo) -> list[str]:
    """Describes the result of a task pipeline, if there is one."""
    pipeline = taskset.pipeline
    if pipeline is None:
        return []
    lines = [f"{taskset.num_rows:,} of {pipeline.num_read:,} rows are left by the task pipeline"]
    lines += [f"{number:,} left out by {reason}" for reason, number in pipeline.left_out.items()]
    if pipeline.ordered_by:
        scores = (f"{name} ({weight:g})" for name, weight in pipeline.ordered_by.items())
        lines.append(f"ordered by {', '.join(scores)}")
    return lines


def columns_of(rows: Sequence[JsonObject]) -> list[str]:
    """Returns the keys that get a column: the first ones of the rows."""
    return list(dict.fromkeys(key for row in rows for key in row))[:MAX_COLUMNS]


def cell_text(row: JsonObject, key: str) -> str:
    """Returns a value for a cell, cut; empty if the row lacks the key."""
    if key not in row:
        return ""
    value = row[key]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_CELL_CHARS else f"{text[:MAX_CELL_CHARS]}..."


def row_text(row: JsonObject) -> str:
    """Returns a whole row in lines; the beginning of one that is very long."""
    return cut_text(json.dumps(row, ensure_ascii=False, indent=2), MAX_ROW_CHARS)


def result_text(name: str, done: SubmitResult) -> str:
    """Describes the outcome of an upload in one line."""
    refused = f"{done.num_refused:,} refused" if done.num_refused else "none refused"
    return f"{name}: {pluralize(done.num_stored, 'row')} stored, {refused}"
