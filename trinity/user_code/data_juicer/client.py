"""Client of a Data-Juicer server, and its rows as Arrow streams."""

import http.client
import json
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import numpy
import numpy.typing

from trinity.errors import Unavailable, UserError
from trinity.runtime.json_values import JsonObject, JsonValue
from trinity.user_code.data_juicer.address import check_address

OK, NOT_FOUND = 200, 404
MAX_ERROR_BYTES = 4_000
STATS = "__dj__stats__"
FloatVector: TypeAlias = numpy.typing.NDArray[numpy.float64]
AnswerRows: TypeAlias = Sequence[Mapping[str, Any]]


class _SessionLost(Exception):
    """The server no longer knows the session."""


@dataclass(slots=True)
class DataJuicerClient:
    """One pipeline of a server; a session that the server has lost is opened again.

    Raises: UserError for an address beyond this machine that has no TLS.

    juicer = DataJuicerClient("http://127.0.0.1:8005", {"operators": [{"text_length_filter": {}}]})
    stream = juicer.process_rows(stream)
    """

    url: str
    pipeline: JsonObject
    """Body of the request to /create."""
    limit_seconds: float = 120.0
    _session: str = field(default="", init=False)

    def __post_init__(self) -> None:
        check_address(self.url)

    def process_rows(self, stream: bytes) -> bytes:
        """Sends an Arrow stream through all operators; may be called from any thread.

        A server handles one call at a time. Calls of this process wait here for their turn, so that
        they do not time out while the server is busy with another call.

        Raises: Unavailable when the server does not answer, UserError when it refuses the request.
        """
        turn = _server_lock(self.url)
        if not turn.acquire(timeout=self.limit_seconds):
            raise Unavailable(f"Data-Juicer at {self.url} is at work on other calls")
        try:
            return self._process_again(stream)
        finally:
            turn.release()

    def _process_again(self, stream: bytes) -> bytes:
        try:
            return self._process(stream)
        except _SessionLost:
            self._session = ""
        try:
            return self._process(stream)
        except _SessionLost as error:
            raise UserError(f"Data-Juicer at {self.url} forgets its sessions: {error}") from error

    def _process(self, stream: bytes) -> bytes:
        if not self._session:
            body = json.dumps({"pipeline_type": "experience", **self.pipeline}).encode()
            answer = self._post("/create", body, "application/json")
            self._session = str(json.loads(answer)["session_id"])
        boundary = uuid.uuid4().hex
        form = _form(boundary, {"session_id": self._session.encode(), "arrow_data": stream})
        return self._post("/process_experience", form, f"multipart/form-data; boundary={boundary}")

    def _post(self, path: str, body: bytes, content_type: str) -> bytes:
        parts = urlsplit(self.url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        connection = kind(parts.netloc, timeout=self.limit_seconds)
        try:
            connection.request("POST", parts.path.rstrip("/") + path, body, _head(content_type))
            response = connection.getresponse()
            answer = response.read()
        except TimeoutError as error:
            raise Unavailable(
                f"Data-Juicer at {self.url} did not answer within {self.limit_seconds:g} s: "
                "see that it runs, or give the operator a larger `limit_seconds`"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"Data-Juicer at {self.url} does not answer: {error}") from error
        finally:
            connection.close()
        if response.status == NOT_FOUND and self._session:
            raise _SessionLost(_error_text(answer))
        if response.status != OK:
            raise UserError(
                f"Data-Juicer at {self.url} answers {response.status}: {_error_text(answer)}"
            )
        return answer


@cache
def _server_lock(url: str) -> threading.Lock:
    """Returns the lock that is held during a call to the server at this address."""
    del url
    return threading.Lock()


def _head(content_type: str) -> dict[str, str]:
    return {"Content-Type": content_type}


def _form(boundary: str, parts: dict[str, bytes]) -> bytes:
    written = b""
    for name, content in parts.items():
        file = f'; filename="{name}"' if name == "arrow_data" else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        written += head.encode() + content + b"\r\n"
    return written + f"--{boundary}--\r\n".encode()


def _error_text(answer: bytes) -> str:
    """Returns the error in an answer, or the beginning of the answer."""
    text = answer[:MAX_ERROR_BYTES].decode(errors="replace")
    try:
        values: Any = json.loads(text)
    except ValueError:
        return text
    return str(values.get("error", text)) if isinstance(values, dict) else text


def session(
    server_url: str,
    *,
    operators: list[dict[str, JsonValue]] | None,
    config_path: str | None,
    num_processes: int,
    limit_seconds: float,
) -> DataJuicerClient:
    """Returns the session for these settings, which is shared by all rows with the same ones."""
    pipeline = {"operators": operators, "config_path": config_path, "np": num_processes}
    return _session(server_url, json.dumps(pipeline, sort_keys=True), limit_seconds)


@lru_cache(maxsize=32)
def _session(url: str, pipeline: str, limit_seconds: float) -> DataJuicerClient:
    return DataJuicerClient(url, json.loads(pipeline), limit_seconds)


def write_columns(columns: Mapping[str, Sequence[JsonValue]]) -> bytes:
    """Writes columns as an Arrow stream."""
    import pyarrow as pa  # takes 40 MB: only for users of these operators

    table = pa.table(dict(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def read_rows(stream: bytes) -> AnswerRows:
    """Reads rows; raises UserError when it is not an Arrow stream."""
    import pyarrow as pa

    try:
        rows: list[dict[str, Any]] = pa.ipc.open_stream(stream).read_all().to_pylist()
    except pa.ArrowInvalid as error:
        raise UserError(f"Data-Juicer's answer is no Arrow stream: {error}") from error
    return rows


def row_indices(rows: AnswerRows, *, column: str, size: int, what: str) -> list[int]:
    """Returns the indices of the rows among those sent, by the column of their numbers.

    Raises: UserError when they are not a subset of them, each once.
    """
    places = [row.get(column) for row in rows]
    if len(set(places)) < len(places) or not set(places) <= set(range(size)):
        raise UserError(
            f"Data-Juicer's answer has rows that are not of these {size} {what}: operators that "
            f"make new rows or drop the column `{column}` have no place here"
        )
    return [place for place in places if place is not None]


def left_out(places_K: Sequence[int], size: int) -> numpy.typing.NDArray[numpy.bool_]:
    """Returns true for rows that are not in the answer, [N]."""
    left_out_N = numpy.ones(size, dtype=numpy.bool_)
    left_out_N[list(places_K)] = False
    return left_out_N


def statistics(rows: AnswerRows, places_K: Sequence[int], size: int) -> dict[str, FloatVector]:
    """Returns the numeric statistics by name, [N] each; NaN if missing."""
    numbers: dict[str, FloatVector] = {}
    for place, row in zip(places_K, rows, strict=True):
        for name, value in _stats(row.get(STATS)).items():
            if isinstance(value, int | float):
                own = numbers.setdefault(name, numpy.full(size, numpy.nan))
                own[place] = float(value)
    return numbers


def _stats(cell: Any) -> Mapping[str, Any]:
    """Reads a struct or JSON text, depending on the version of Data-Juicer."""
    values = json.loads(cell) if isinstance(cell, str) else cell
    return values if isinstance(values, dict) else {}
