"""One HTTP request, whose connection is closed again."""

import http.client
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes


def http_get(port: int, path: str, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    """Asks a server on loopback."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", path, headers={"Connection": "close", **(headers or {})})
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return HttpAnswer(answer.status, named, answer.read())
