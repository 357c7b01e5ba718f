"""A Data-Juicer server under attack: no client ends it, keeps others out, or fills its log."""

import contextlib
import http.client
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from tests.support.data_juicer_server import LongEnough, served
from trinity.user_code.data_juicer import server
from trinity.user_code.data_juicer.bounded_server import ServerLimits

SECONDS = 30.0
PIPELINE = {"pipeline_type": "experience", "operators": [{"text_length_filter": {"min_len": 3}}]}
HEAD = b"POST /create HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{"


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> server.SessionStore:
    monkeypatch.setattr(server, "OperatorSession", LongEnough)
    return server.SessionStore()


@pytest.fixture
def url(sessions: server.SessionStore) -> Iterator[str]:
    with served(sessions) as address:
        yield address


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=SECONDS)


def send(url: str, content: bytes) -> bytes:
    """What comes back before the connection is closed."""
    with connect(url) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return b""


def ask(
    url: str, path: str, body: bytes, content_type: str = "application/json"
) -> tuple[int, object]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=SECONDS)
    with contextlib.closing(connection):
        connection.request("POST", path, body, {"Content-Type": content_type})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def check_alive(url: str) -> None:
    assert ask(url, "/create", json.dumps(PIPELINE).encode())[0] == 200


@pytest.mark.parametrize("begun", [b"", b"POST /create HTTP/1.1\r\nX-", HEAD])
def test_idle_connections_give_way(sessions: server.SessionStore, begun: bytes) -> None:
    limits = ServerLimits(max_connections=4)
    with served(sessions, limits=limits) as url, contextlib.ExitStack() as held:
        for _ in range(12):
            held.enter_context(connect(url)).sendall(begun)
        check_alive(url)


def num_held() -> int:
    """Number of threads that wait for a request of this process's servers."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def until(condition: Callable[[], object]) -> None:
    """Waits for a condition that has no event."""
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def answers(connection: socket.socket, url: str) -> bool:
    """Returns true if a connection has an answer or an end after another request."""
    check_alive(url)
    return bool(select.select([connection], [], [], 0.05)[0])


def test_a_control_without_bounds_holds_a_thread_for_each_idle_connection(
    sessions: server.SessionStore,
) -> None:
    before = num_held()
    unbounded = ServerLimits(max_connections=1000, request_seconds=3600.0)
    with served(sessions, limits=unbounded) as url, contextlib.ExitStack() as held:
        for _ in range(12):
            held.enter_context(connect(url)).sendall(HEAD)
        check_alive(url)
        assert num_held() - before >= 12
    bounded = ServerLimits(max_connections=4)
    with served(sessions, limits=bounded) as url, contextlib.ExitStack() as held:
        before = num_held()
        for _ in range(12):
            held.enter_context(connect(url)).sendall(HEAD)
        check_alive(url)
        until(lambda: num_held() - before <= 4)  # threads of closed connections end


def test_a_request_that_does_not_arrive_is_given_up(sessions: server.SessionStore) -> None:
    with (
        served(sessions, limits=ServerLimits(request_seconds=0.2)) as url,
        connect(url) as connection,
    ):
        connection.sendall(HEAD)
        assert connection.recv(100) == b""
        check_alive(url)


def test_of_many_bodies_the_largest_is_given_up(sessions: server.SessionStore) -> None:
    with served(sessions, limits=ServerLimits(max_bodies_bytes=500)) as url:
        with connect(url) as connection:
            connection.sendall(HEAD + b"a" * 450)
            until(lambda: answers(connection, url))
            assert connection.recv(100) == b""
        check_alive(url)


def test_what_is_not_http_is_answered_in_json_and_leaves_one_line(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    attacks = [
        b"\x00\x01\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"DELETE / HTTP/1.1\r\n\r\n",
        b"POST /create HTTP/1.1\r\n\r\n",
        b"POST /create HTTP/1.1\r\nContent-Length: -1\r\n\r\n{}",
        b"POST /create HTTP/1.1\r\nContent-Length: ten\r\n\r\n{}",
        "POST /create HTTP/1.1\r\nContent-Length: \u00b2\r\n\r\n{}".encode(),
        b"POST /create HTTP/1.1\r\nContent-Length: 9" + b"9" * 4000 + b"\r\n\r\n{}",
        b"POST /create HTTP/1.1\r\nContent-Length: 100\r\n\r\n{}",
        b"POST /create HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ]
    for attack in attacks * 3:
        answer = send(url, attack)
        if answer.startswith(b"HTTP/"):
            assert b" 500 " not in answer.splitlines()[0]
            assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])
    check_alive(url)
    assert len(capfd.readouterr().err.splitlines()) <= 1


@pytest.mark.parametrize(
    ("path", "body", "content_type"),
    [
        ("/create", b"[" * 100_000, "application/json"),
        ("/create", b"\xff\xff", "application/json"),
        ("/create", json.dumps({**PIPELINE, "operators": "a"}).encode(), "application/json"),
        ("/process_experience", b"", "text/plain"),
        ("/process_experience", b"--a\r\n" * 1000, "multipart/form-data; boundary=a"),
        ("/process_experience", b"--a", "multipart/form-data; boundary="),
    ],
)
def test_a_mistake_is_a_400(url: str, path: str, body: bytes, content_type: str) -> None:
    status, answer = ask(url, path, body, content_type)
    assert status == 400 and isinstance(answer, dict) and answer["error"]


def test_a_part_in_a_charset_of_quadratic_time_is_read_as_bytes(url: str) -> None:
    content = b"a" * 350_000 + b"-" + b"\xffb" * 175_000
    body = (
        b"--x\r\nContent-Type: text/plain; charset=punycode\r\n"
        b'Content-Disposition: form-data; name="session_id"\r\n\r\n' + content + b"\r\n--x--\r\n"
    )
    assert server._form(body, "multipart/form-data; boundary=x") == {"session_id": content}
    status, _ = ask(url, "/process_experience", body, "multipart/form-data; boundary=x")
    assert status == 400


def test_parts_are_read_as_clients_write_them() -> None:
    body = (
        b'preamble\r\n--x-1\r\nContent-Disposition: form-data; name="session_id"\r\n\r\ns'
        b'\r\n--x-1\r\nContent-Disposition: form-data; name="arrow_data"; filename="name.arrow"'
        b"\r\nContent-Type: application/octet-stream\r\n\r\n\r\n--x\r\n\r\nbytes\r\n--x-1--\r\n"
    )
    assert server._form(body, 'multipart/form-data; charset=a; boundary="x-1"') == {
        "session_id": b"s",
        "arrow_data": b"\r\n--x\r\n\r\nbytes",
    }
