"""A served model under attack: no client ends it, freezes it, or fills its log."""

import contextlib
import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest

from tests.integration.explorer.served_process import SERVED_KEY
from trinity.types import JsonObject, JsonValue

NUM_FILES = 256
NUM_SEEDED = 5_000
MODULE = "tests.integration.explorer.served_process"
OWN_FILES = 30
SECONDS = 60.0
QUICK_SECONDS = 10.0
"""For an answer of a few milliseconds, on a machine that does much else."""
QUESTION: JsonObject = {"messages": [{"role": "user", "content": "1+1="}], "max_tokens": 4}
AUTHORIZED = {"Authorization": f"Bearer {SERVED_KEY}", "Content-Type": "application/json"}


@dataclass
class Victim:
    """A served model in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)

    def ask(
        self,
        body: bytes | None = None,
        *,
        headers: dict[str, str] = AUTHORIZED,
        seconds: float = QUICK_SECONDS,
    ) -> tuple[int, JsonObject]:
        """Status and body of the answer to a chat request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        with contextlib.closing(connection):
            content = json.dumps(QUESTION).encode() if body is None else body
            connection.request("POST", "/v1/chat/completions", content, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def send(self, content: bytes) -> bytes:
        """What comes back before the connection is closed."""
        with self.connect() as connection:
            connection.sendall(content)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))

    @property
    def num_files(self) -> int:
        """Files that its process has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def check_alive(self) -> None:
        status, _ = self.ask()
        assert (status, self.process.poll()) == (200, None), self.log.read_text()


@contextlib.contextmanager
def victim(log: Path, *arguments: str) -> Iterator[Victim]:
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", MODULE, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, log.read_text()
            yield Victim(process, urlsplit(address).port or 0, log)
        finally:
            process.kill()


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
    """Decoding 700 kB of punycode takes a minute, in which nothing else is answered."""
    body = b"a" * 350_000 + b"-" + b"b" * 350_000
    headers = {**AUTHORIZED, "Content-Type": f"application/json; charset={charset}"}
    began = time.monotonic()
    status, answer = served.ask(body, headers=headers)
    assert (status, "UTF-8" in str(answer["error"])) == (400, True)
    assert time.monotonic() - began < QUICK_SECONDS


def test_decoding_that_charset_takes_quadratic_time() -> None:
    """The control: the attack is one."""
    seconds = []
    for size in (5_000, 50_000):
        began = time.process_time()
        (b"a" * size + b"-" + b"b" * size).decode("punycode", errors="replace")
        seconds.append(time.process_time() - began)
    assert seconds[1] > 20 * seconds[0]


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


KEYS = [
    "messages",
    "temperature",
    "n",
    "stop",
    "tools",
    "tool_choice",
    "response_format",
    "logprobs",
    "top_logprobs",
    "stream",
    "stream_options",
    "seed",
    "model",
    "max_tokens",
    "prompt_logprobs",
    "top_k",
    "return_token_ids",
    "prompt",
    "echo",
]
INNER_KEYS = ["role", "content", "type", "function", "name", "json_schema", "schema", "parameters"]


def random_value(random: Random, depth: int = 0) -> JsonValue:
    """A value of any kind, with lists and objects to a depth of three."""
    kind = random.randrange(5 if depth == 3 else 7)
    if kind < 2:
        return random.choice([None, True, "", "\ud800", "user", "function", 0, -1, 1e308])
    if kind < 5:
        numbers: list[JsonValue] = [random.randint(-(2**70), 2**70), random.random(), "x" * kind]
        return random.choice(numbers)
    size = random.randrange(4)
    if kind == 5:
        return [random_value(random, depth + 1) for _ in range(size)]
    return {random.choice(INNER_KEYS): random_value(random, depth + 1) for _ in range(size)}


def random_body(random: Random) -> bytes:
    """A request that may be valid, of which bytes are changed once in five times."""
    body = {key: random_value(random) for key in random.sample(KEYS, random.randrange(6))}
    if random.random() < 0.7:
        body = {**QUESTION, **body}
    content = bytearray(json.dumps(body).encode())
    for _ in range(3 if random.random() < 0.2 else 0):
        content[random.randrange(len(content))] = random.randrange(256)
    return bytes(content)


def test_seeded_requests_are_answered_without_a_fault(served: Victim) -> None:
    random = Random(58)
    statuses: Counter[int] = Counter()
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=SECONDS)
    with contextlib.closing(connection):
        for _ in range(NUM_SEEDED):
            path = random.choice(["/v1/chat/completions", "/v1/completions"])
            connection.request("POST", path, random_body(random), AUTHORIZED)
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1
    assert set(statuses) <= {200, 400, 404} and statuses[200] > NUM_SEEDED // 100, statuses
    served.check_alive()
    assert "Traceback" not in served.log.read_text()
