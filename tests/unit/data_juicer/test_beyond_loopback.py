"""A Data-Juicer server asks nobody who they are, so nobody beyond this machine may reach it."""

import subprocess
import sys

import pytest

from tests.unit.config.builders import GRPO, stage
from trinity.errors import UserError
from trinity.user_code.data_juicer import server
from trinity.user_code.data_juicer.client import DataJuicerClient

ELSEWHERE = "http://10.0.0.7:8005"


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
