"""Calls a Data-Juicer server."""

import http.client
import json
import threading
import uuid
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from trinity.data_juicer.address import check_address
from trinity.errors import Unavailable, UserError
from trinity.json_values import JsonObject

OK, NOT_FOUND = 200, 404
MAX_ERROR_BYTES = 4_000


class _NoSession(Exception):
    """The server no longer knows the session."""


@dataclass(slots=True)
class DataJuicer:
    """One pipeline of a server; a session that the server has lost is opened again.

    Raises: UserError for an address beyond this machine that has no TLS.

    juicer = DataJuicer("http://127.0.0.1:8005", {"operators": [{"text_length_filter": {}}]})
    stream = juicer.process(stream)
    """

    url: str
    pipeline: JsonObject
    """Body of the request to /create."""
    limit_seconds: float = 120.0
    _session: str = field(default="", init=False)

    def __post_init__(self) -> None:
        check_address(self.url)

    def process(self, stream: bytes) -> bytes:
        """Sends an Arrow stream through all operators; may be called from any thread.

        A server handles one call at a time. Calls of this process wait here for their turn, so that
        none times out while the server is busy with another.

        Raises: Unavailable when the server does not answer, UserError when it refuses the request.
        """
        turn = _turn_at(self.url)
        if not turn.acquire(timeout=self.limit_seconds):
            raise Unavailable(f"Data-Juicer at {self.url} is at work on other calls")
        try:
            return self._process_again(stream)
        finally:
            turn.release()

    def _process_again(self, stream: bytes) -> bytes:
        try:
            return self._process(stream)
        except _NoSession:
            self._session = ""
        try:
            return self._process(stream)
        except _NoSession as error:
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
            raise _NoSession(_said(answer))
        if response.status != OK:
            raise UserError(f"Data-Juicer at {self.url} answers {response.status}: {_said(answer)}")
        return answer


@cache
def _turn_at(url: str) -> threading.Lock:
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


def _said(answer: bytes) -> str:
    """Returns the error in an answer, or the beginning of the answer."""
    text = answer[:MAX_ERROR_BYTES].decode(errors="replace")
    try:
        values: Any = json.loads(text)
    except ValueError:
        return text
    return str(values.get("error", text)) if isinstance(values, dict) else text
