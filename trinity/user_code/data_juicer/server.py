"""An HTTP server that runs Data-Juicer's operators, which are imported on first use.

It runs with the Python of Data-Juicer's environment, which has its own pinned packages and not
ours. So it uses the standard library alone, cannot check certificates and tokens, and listens on
loopback only. Tables travel as Arrow streams, without pickle.
"""

import argparse
import importlib
import json
import re
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from trinity.runtime.security.loopback import is_loopback
from trinity.user_code.data_juicer.bounded_server import BodyIncomplete, BoundedThreadingServer

ROWS_A_PROCESS = 256
"""Fewer rows are faster without another process."""
MAX_BODY_BYTES = 256 * 1024 * 1024
MAX_SESSIONS = 64
MAX_PARTS = 8
"""Parts of a form; one has two."""
BOUNDARY = re.compile(r'^multipart/form-data;.*\bboundary="?([^";,\s]{1,70})"?', re.IGNORECASE)
PART_NAME = re.compile(rb'^content-disposition: *form-data; *name="?([^";\r\n]+)', re.I | re.M)
HttpAnswer = tuple[bytes, Mapping[str, str]]
"""The body and the headers."""


class BadRequest(Exception):
    """The request is invalid; the text says why."""


def import_data_juicer() -> None:
    """Imports Data-Juicer; raises ImportError if it is not installed."""
    for module in ("data_juicer.core.data", "data_juicer.ops"):
        importlib.import_module(module)


@dataclass(frozen=True, slots=True)
class OperatorSession:
    """Loaded operators."""

    operators: Sequence[Any]
    max_processes: int

    @classmethod
    def from_request(cls, request: Mapping[str, Any]) -> "OperatorSession":
        """Loads the operators; raises BadRequest for those that cannot be loaded."""
        if request.get("pipeline_type", "experience") != "experience":
            raise BadRequest("this server supports only pipeline_type experience")
        listed = request.get("operators") or _from_file(request.get("config_path"))
        if not isinstance(listed, list) or not listed:
            raise BadRequest("give operators, a list of {name: {arguments}}, or config_path")
        from data_juicer.ops import load_ops  # type: ignore[import-not-found]  # in its environment

        try:
            operators = load_ops([_with_one_process(operator) for operator in listed])
        except Exception as error:  # names and arguments are the user's
            raise BadRequest(f"{type(error).__name__}: {error}") from error
        num_processes = request.get("np") or 1
        if not isinstance(num_processes, int):
            raise BadRequest("np is no whole number")
        return cls(operators, num_processes)

    def apply_operators(self, stream: bytes) -> tuple[bytes, dict[str, float]]:
        """Returns the remaining rows with the columns that operators added, and metrics."""
        import pyarrow as pa
        from data_juicer.core.data import NestedDataset  # type: ignore[import-not-found]
        from datasets import Dataset

        try:
            table = pa.ipc.open_stream(stream).read_all()
        except pa.ArrowInvalid as error:
            raise BadRequest(f"arrow_data is no Arrow stream: {error}") from error
        rows = NestedDataset(Dataset(table))
        num_processes = min(self.max_processes, 1 + table.num_rows // ROWS_A_PROCESS)
        for operator in self.operators:
            operator.num_proc = num_processes
            if rows.num_rows:
                rows = rows.process(operator)
        left = rows.with_format("arrow")[:] if rows.num_rows else table.slice(0, 0)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, left.schema) as writer:
            writer.write_table(left)
        figures = {"input_count": float(table.num_rows), "output_count": float(left.num_rows)}
        return sink.getvalue().to_pybytes(), figures


def _with_one_process(operator: Any) -> Any:
    """Sets one process by default; `apply_operators` adjusts the number to the rows."""
    if not isinstance(operator, dict) or len(operator) != 1:
        raise BadRequest(f"{operator!r} is no operator: write {{name: {{arguments}}}}")
    [(name, arguments)] = operator.items()
    return {name: {"num_proc": 1, **(arguments or {})}}


def _from_file(path: Any) -> Any:
    """Reads the operators from a configuration file of Data-Juicer."""
    if not path:
        return None
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            return yaml.safe_load(file).get("process")
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise BadRequest(f"config_path {path}: {error}") from error


class UnknownSession(Exception):
    """The session was closed, or the server was restarted."""


class SessionStore:
    """Operators by session; calls run one at a time, as operators start their own processes."""

    def __init__(self) -> None:
        self._sessions: dict[str, OperatorSession] = {}
        self._lock = threading.Lock()

    def create(self, body: bytes, _: str) -> HttpAnswer:
        with self._lock:
            if len(self._sessions) >= MAX_SESSIONS:
                self._sessions.pop(next(iter(self._sessions)))
            session_id = str(uuid.uuid4())
            self._sessions[session_id] = OperatorSession.from_request(_json(body))
        return _answer({"session_id": session_id})

    def process_experience(self, body: bytes, content_type: str) -> HttpAnswer:
        form = _form(body, content_type)
        if "arrow_data" not in form:
            raise BadRequest("the form has no file arrow_data")
        with self._lock:
            session = self._get(form.get("session_id", b"").decode(errors="replace"))
            table, metrics = session.apply_operators(form["arrow_data"])
        head = {"Content-Type": "application/octet-stream", "X-Metrics": json.dumps(metrics)}
        return table, head

    def close(self, body: bytes, _: str) -> HttpAnswer:
        with self._lock:
            self._get(str(_json(body).get("session_id")))
            self._sessions.pop(str(_json(body).get("session_id")))
        return _answer({"message": "closed"})

    def _get(self, session_id: str) -> OperatorSession:
        if session_id not in self._sessions:
            raise UnknownSession(f"there is no session {session_id!r}")
        return self._sessions[session_id]


class DataJuicerHandler(BaseHTTPRequestHandler):
    """Handles one request."""

    sessions: SessionStore
    timeout = 60.0
    """Seconds for a client to take an answer."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(200, _answer({"status": "healthy"}))
        else:
            self._send(404, _answer({"error": f"there is nothing at {self.path}"}))

    def do_POST(self) -> None:
        calls: dict[str, Callable[[bytes, str], HttpAnswer]] = {
            "/create": self.sessions.create,
            "/process_experience": self.sessions.process_experience,
            "/close": self.sessions.close,
        }
        if self.path not in calls:
            self._send(404, _answer({"error": f"there is nothing at {self.path}"}))
            return
        try:
            answer = calls[self.path](self._read_body(), self.headers.get("Content-Type", ""))
        except BodyIncomplete:
            self.close_connection = True
        except BadRequest as error:
            self._send(400, _answer({"error": str(error)}))
        except UnknownSession as error:
            self._send(404, _answer({"error": str(error)}))
        except Exception as error:  # whatever an operator of Data-Juicer raises
            self._send(500, _answer({"error": f"{type(error).__name__}: {error}"}))
        else:
            self._send(200, answer)

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        # Not isdecimal alone: that is true of digits that int() reads and HTTP does not know.
        if not (length.isascii() and length.isdecimal()) or len(length) > 12:
            raise BadRequest("give a Content-Length, the number of bytes of the body")
        if int(length) > MAX_BODY_BYTES:
            raise BadRequest(f"the body has more than {MAX_BODY_BYTES >> 20} MiB")
        assert isinstance(self.server, BoundedThreadingServer)
        return self.server.read_body(self.connection, self.rfile, int(length))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers requests that are not HTTP; the standard library would send HTML."""
        del explain
        self.close_connection = True
        self._send(code, _answer({"error": message or "the request is not HTTP"}))

    def log_message(self, format: str, *args: Any) -> None:
        """Disables log lines: a client would write a line with each request."""

    def _send(self, status: int, answer: HttpAnswer) -> None:
        body, head = answer
        self.send_response(status)
        for name, value in head.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _answer(values: Mapping[str, Any]) -> HttpAnswer:
    return json.dumps(values).encode(), {"Content-Type": "application/json"}


def _json(body: bytes) -> dict[str, Any]:
    try:
        values = json.loads(body.decode("utf-8"))
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise BadRequest("the body is not a JSON object")
    return values


def _form(body: bytes, content_type: str) -> dict[str, bytes]:
    """Returns the parts of multipart/form-data by name.

    The standard library's parser would decode a part in any charset that it names, some of which
    take quadratic time.
    """
    if (match := BOUNDARY.match(content_type)) is None:
        raise BadRequest("the body is no multipart/form-data with a boundary")
    delimiter = b"\r\n--" + match[1].encode(errors="replace")
    pieces = (b"\r\n" + body).split(delimiter, MAX_PARTS + 1)
    if len(pieces) > MAX_PARTS + 1:
        raise BadRequest(f"the form has more than {MAX_PARTS} parts")
    parts: dict[str, bytes] = {}
    for piece in pieces[1:]:
        head, _, content = piece.partition(b"\r\n\r\n")
        if name := PART_NAME.search(head):
            parts[name[1].decode(errors="replace")] = content
    return parts


def main() -> int:
    """Serves until stopped; prints its address as the first line once it is ready."""
    parser = argparse.ArgumentParser(description="Data-Juicer's operators over HTTP.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8005)
    arguments = parser.parse_args()
    if not is_loopback(arguments.host):
        parser.exit(
            2,
            f"refusing to listen on {arguments.host}, where other machines reach it without TLS "
            "or a password: use 127.0.0.1, beside the buffer or behind a proxy that has both\n",
        )
    try:
        import_data_juicer()  # may take minutes, longer than a first call would wait
    except ImportError as error:
        parser.exit(
            1, f"{sys.executable} has no Data-Juicer, pip install py-data-juicer: {error}\n"
        )
    handler = type("BoundHandler", (DataJuicerHandler,), {"sessions": SessionStore()})
    try:
        server = BoundedThreadingServer((arguments.host, arguments.port), handler)
    except OSError as error:
        taken = f"{arguments.host}:{arguments.port}"
        parser.exit(2, f"cannot listen on {taken}: {error.strerror}; give another port\n")
    with server:
        host, port = server.server_address[:2]
        sys.stdout.write(f"http://{host!s}:{port}\n")
        sys.stdout.flush()
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
