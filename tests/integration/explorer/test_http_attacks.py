"""A served model under attack: no client ends it, freezes it, or fills its log."""

import asyncio
import contextlib
import json
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.explorer.served import (
    AUTHORIZED,
    SECONDS,
    Victim,
    victim,
)
from tests.integration.explorer.served_process import SERVED_KEY
from tests.integration.hostile.http_attack import HttpAttack
from tests.integration.hostile.http_requests import HttpFuzzer
from tests.support.endless import assert_takes_long

NUM_FILES = 256
NUM_SEEDED = 5_000
OWN_FILES = 30


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with victim(tmp_path_factory.mktemp("served") / "log", str(NUM_FILES)) as found:
        yield found


@contextlib.contextmanager
def idle(of: Victim, count: int, begun: bytes = b"") -> Iterator[list[socket.socket]]:
    """As many connections that send nothing, or no more than a beginning."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most == resource.RLIM_INFINITY or most > count + 100
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = stack.enter_context(of.connect())
            with contextlib.suppress(OSError):
                connection.sendall(begun)
            connections.append(connection)
        yield connections


@pytest.mark.parametrize(
    "begun", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nX-", b"\x16\x03\x01"]
)
def test_more_idle_connections_than_files_keep_no_client_out(served: Victim, begun: bytes) -> None:
    for _ in range(3):
        with idle(served, NUM_FILES + 60, begun):
            for _ in range(3):
                served.check_alive()
            assert served.num_files < NUM_FILES // 3 + OWN_FILES
    assert "not accepted" not in served.log.read_text()


def test_without_a_bound_as_many_connections_do(tmp_path: Path) -> None:
    """The control: the attack is one."""
    with victim(tmp_path / "log", str(NUM_FILES), "100000") as unbounded:
        unbounded.check_alive()
        with idle(unbounded, NUM_FILES + 60), pytest.raises(OSError):
            unbounded.ask(seconds=3.0)


def test_what_is_not_http_is_answered_in_json_and_leaves_few_lines(served: Victim) -> None:
    before = len(served.log.read_text().splitlines())
    attacks = [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: a\r\n" % i for i in range(500)) + b"\r\n",
        b"GET / HTTP/1.1\r\nAuthorization : Bearer quoted\r\n\r\n",
        b"GET http://[::1/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET //[ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ]
    for attack in attacks * 20:
        answer = served.send(attack)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b" 400 " in head.splitlines()[0] or b" 404 " in head.splitlines()[0], head
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
    served.check_alive()
    log = served.log.read_text()
    assert "Traceback" not in log and "quoted" not in log
    assert len(log.splitlines()) - before < 20, log


@pytest.mark.parametrize("charset", ["punycode", "utf-7", "idna", "utf-16", "rot13", "no-such"])
def test_a_body_in_another_charset_is_refused_at_once(served: Victim, charset: str) -> None:
    """Decoding 3 MB of punycode takes many minutes, in which nothing else is answered."""
    body = b"a" * 1_500_000 + b"-" + b"b" * 1_500_000
    headers = {**AUTHORIZED, "Content-Type": f"application/json; charset={charset}"}
    status, answer = served.ask(body, headers=headers)
    assert (status, "UTF-8" in str(answer["error"])) == (400, True)


def test_control_decoding_that_charset_takes_minutes() -> None:
    body = "b'a' * 1_500_000 + b'-' + b'b' * 1_500_000"
    assert_takes_long(f"({body}).decode('punycode', errors='replace')")


def test_utf_8_may_be_named_in_any_case(served: Victim) -> None:
    for charset in ("UTF-8", "utf8", '"utf-8"'):
        headers = {**AUTHORIZED, "Content-Type": f"application/json; charset={charset}"}
        assert served.ask(headers=headers)[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe{}",
        b"{",
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        b"[]",
        b"null",
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1' + b"0" * 400 + b"}",
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1' + b"0" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "a"}], "model": "\\udfff"}',
        b'{"messages": [{"role": "user", "content": "a"}], "stop": ["'
        + b'","'.join(b"%d" % i for i in range(100_000))
        + b'"]}',
    ],
)
def test_a_mistake_in_a_body_is_a_400_with_openais_error(served: Victim, body: bytes) -> None:
    status, answer = served.ask(body)
    assert status == 400, answer
    error = answer["error"]
    assert isinstance(error, dict) and error["type"] == "invalid_request_error", answer
    assert "Traceback" not in served.log.read_text()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Transfer-Encoding: chunked\r\n", b"zz\r\nno size\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"5\r\nabcdefgh\r\n0\r\n\r\n"),
        (b"Content-Encoding: gzip\r\nContent-Length: 4\r\n", b"abcd"),
        (b"Content-Encoding: br\r\nContent-Length: 4\r\n", b"abcd"),
    ],
)
def test_a_badly_encoded_body_is_a_400(served: Victim, headers: bytes, body: bytes) -> None:
    key = f"Authorization: Bearer {SERVED_KEY}\r\nConnection: close\r\n".encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n" + key + headers + b"\r\n"
    answer = served.send(head + body)
    assert b" 400 " in answer.splitlines()[0], answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    assert "Traceback" not in served.log.read_text()


def test_a_body_that_is_too_large_is_refused(served: Victim) -> None:
    status, answer = served.ask(b'"' + b"a" * (17 << 20) + b'"', seconds=SECONDS)
    assert (status, "16 MiB" in str(answer["error"])) == (413, True)
    served.check_alive()


def test_slow_bodies_keep_no_other_request_out(served: Victim) -> None:
    """More of them than there may be connections."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n"
    begun = f"{head}Authorization: Bearer {SERVED_KEY}\r\n\r\n{{".encode()
    with idle(served, NUM_FILES // 3 + 50, begun):
        served.check_alive()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Bearer {SERVED_KEY}", 200),
        (f"bearer {SERVED_KEY}", 200),
        (f"BEARER   {SERVED_KEY}", 200),
        (SERVED_KEY, 401),
        (f"Basic {SERVED_KEY}", 401),
        ("Bearer", 401),
        ("Bearer EMPTY", 401),
        ("", 401),
    ],
)
def test_the_scheme_of_a_key_is_read_in_any_case(served: Victim, header: str, status: int) -> None:
    assert served.ask(headers={**AUTHORIZED, "Authorization": header})[0] == status


async def test_seeded_requests_are_answered_without_a_fault(served: Victim) -> None:
    attack = HttpAttack(served.port, HttpFuzzer(58, prefix="", key=SERVED_KEY))
    await attack.go_on(NUM_SEEDED)
    assert not attack.wrong, (attack.statuses, attack.wrong[:20])
    assert attack.statuses[200] > NUM_SEEDED / 20, attack.statuses
    await asyncio.to_thread(served.check_alive)
    assert "Traceback" not in served.log.read_text()
