"""Samples go through a server like Data-Juicer's and come back; so does what is wrong with it.

With TRINITY_TEST_DATA_JUICER, the Python of an environment that has py-data-juicer, the same is
tried with Data-Juicer itself.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.data_juicer_process import LIMIT_SECONDS, PYTHON, data_juicer_server
from tests.support.data_juicer_server import LongEnough, served
from tests.unit.config.builders import GRPO, stage
from trinity.algorithm.advantage.samples import Samples
from trinity.errors import Unavailable, UserError
from trinity.operators.data_juicer import data_juicer
from trinity.operators.rollouts import Changes, Content, Rollouts
from trinity.runtime.json_values import JsonValue
from trinity.user_code.data_juicer import server
from trinity.user_code.data_juicer.client import DataJuicerClient, _server_lock

TEXTS = ("a sentence that is long enough", "short", "another sentence of some length")
NO_OPERATOR: list[dict[str, JsonValue]] = [{"no_such_filter": {}}]
ELSEWHERE = "http://10.0.0.7:8005"


def at_least(length: int) -> list[dict[str, JsonValue]]:
    return [{"text_length_filter": {"min_len": length}}]


def rollouts() -> Rollouts:
    contents = [Content(prompt_text="p", response_text=one, info={}, metrics={}) for one in TEXTS]
    return Rollouts.of(Samples.of_groups([1.0, 0.0], [1.0]), contents=contents)


def check(changes: Changes) -> None:
    assert changes.left_out is not None and changes.left_out.tolist() == [False, True, False]
    np.testing.assert_array_equal(changes.numbers["text_len"], [30.0, np.nan, 31.0])


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> server.SessionStore:
    monkeypatch.setattr(server, "OperatorSession", LongEnough)
    return server.SessionStore()


@pytest.fixture
def url(sessions: server.SessionStore) -> Iterator[str]:
    with served(sessions) as address:
        yield address


def test_what_is_filtered_is_left_out_and_what_is_measured_goes_on(url: str) -> None:
    check(data_juicer(rollouts(), server_url=url, operators=at_least(10)))
    nothing = data_juicer(rollouts(), server_url=url, operators=at_least(99))
    assert nothing.left_out is not None and nothing.left_out.all() and not nothing.numbers


def test_a_server_that_was_started_again_is_told_anew(
    url: str, sessions: server.SessionStore
) -> None:
    check(data_juicer(rollouts(), server_url=url, operators=at_least(8)))
    sessions._sessions.clear()
    check(data_juicer(rollouts(), server_url=url, operators=at_least(8)))


def test_stages_may_ask_at_once_a_server_that_was_started_again(
    url: str, sessions: server.SessionStore
) -> None:
    def ask(_: int) -> Changes:
        return data_juicer(rollouts(), server_url=url, operators=at_least(7))

    with ThreadPoolExecutor(4) as stages:
        for _ in range(10):
            sessions._sessions.clear()
            for changes in stages.map(ask, range(4)):
                check(changes)


def test_a_server_at_work_on_another_call_is_no_fault_of_the_samples(url: str) -> None:
    with _server_lock(url), pytest.raises(Unavailable, match="at work on other calls"):
        data_juicer(rollouts(), server_url=url, operators=at_least(6), limit_seconds=0.1)


def test_what_the_server_refuses_is_said(url: str) -> None:
    with pytest.raises(UserError, match=r"answers 400: KeyError: .*no_such_filter"):
        data_juicer(rollouts(), server_url=url, operators=NO_OPERATOR)
    with pytest.raises(UserError, match="answers 500: ArrowInvalid"):
        DataJuicerClient(url, {"operators": at_least(1)}).process_rows(b"no arrow")  # type: ignore[dict-item]


def test_a_server_that_is_not_there_is_no_fault_of_the_samples(
    sessions: server.SessionStore,
) -> None:
    with served(sessions) as gone:
        pass
    with pytest.raises(Unavailable, match="does not answer"):
        data_juicer(rollouts(), server_url=gone, operators=at_least(10))


def test_a_server_that_needs_longer_than_it_may_is_said_with_what_sets_that() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unavailable, match=r"did not answer within 0.2 s: .*`limit_seconds`"):
            data_juicer(rollouts(), server_url=url, operators=at_least(1), limit_seconds=0.2)


@pytest.mark.skipif(not PYTHON, reason="TRINITY_TEST_DATA_JUICER names no Python")
def test_the_same_with_data_juicer_itself() -> None:
    with data_juicer_server() as url:
        operators = at_least(10)
        changes = data_juicer(
            rollouts(), server_url=url, operators=operators, limit_seconds=LIMIT_SECONDS
        )
        check(changes)
        with pytest.raises(UserError, match="answers 400: KeyError: 'no_such_filter'"):
            data_juicer(rollouts(), server_url=url, operators=NO_OPERATOR)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "::", "data-juicer", ""])
def test_a_server_that_others_could_reach_does_not_start(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "import_data_juicer", lambda: pytest.fail("it went on"))
    monkeypatch.setattr(sys, "argv", ["server", "--host", host])
    with pytest.raises(SystemExit) as ended:
        server.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith(f"refusing to listen on {host}") and "use 127.0.0.1" in line


@pytest.mark.parametrize("host", ["10.0.0.7", "data-juicer", "localhost.example", "[fd00::1]"])
def test_rows_do_not_leave_this_machine_plainly(host: str) -> None:
    with pytest.raises(UserError, match=r"without TLS.*127\.0\.0\.1") as refusal:
        DataJuicerClient(f"http://me:secret@{host}:8005", {})
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8005", "http://[::1]:8005", "http://localhost", "https://dj.example"]
)
def test_this_machine_and_a_proxy_with_tls_may_be_asked(url: str) -> None:
    assert DataJuicerClient(url, {}).url == url


@pytest.mark.parametrize("url", ["127.0.0.1:8005", "dj.example", "ftp://127.0.0.1", "http://[::1"])
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(UserError, match=r"no address like http://127\.0\.0\.1:8005"):
        DataJuicerClient(url, {})


@pytest.mark.parametrize(
    "processor",
    [
        {
            "experience_pipeline": {
                "operators": [
                    {"name": "data_juicer", "args": {"operators": [{"text_length_filter": {}}]}}
                ]
            }
        },
        {"task_pipeline": {"operators": [{"name": "text_length_filter"}]}},
    ],
)
def test_planning_already_refuses_it(processor: dict[str, object]) -> None:
    service = {"data_juicer": {"server_url": ELSEWHERE}}
    with pytest.raises(UserError, match=r"stage `main`: .*Data-Juicer at 10\.0\.0\.7 without TLS"):
        stage(GRPO, data_processor=processor, service=service)


def test_the_server_needs_nothing_that_its_environment_lacks() -> None:
    ours = ("grpc", "google.protobuf", "pydantic", "numpy", "cryptography")
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in ours)
    code = f"import sys; {blocked}; import trinity.user_code.data_juicer.server"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
