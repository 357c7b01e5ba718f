"""`trinity studio` as a process: where it listens, who gets in, how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.http_answers import HttpAnswer, http_get

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)")


@pytest.fixture
def studio(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".streamlit").mkdir()
    (tmp_path / ".streamlit" / "config.toml").write_text(
        "[browser]\ngatherUsageStats = true\n[server]\nenableAgentApi = true\naddress = '0.0.0.0'\n"
    )
    command = [sys.executable, "-m", "trinity.cli.main", "studio", "--port", "0", "checkpoints"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_it_serves_its_own_browser_on_loopback_and_ends_at_once(
    studio: "subprocess.Popen[str]",
) -> None:
    assert studio.stdout is not None
    found = ADDRESS.search(studio.stdout.readline())
    assert found is not None
    port, token = int(found[1]), found[2]
    assert _get(port, "/").status == 401
    assert _get(port, "/_stcore/agent/openapi.json").status == 404
    entered = _get(port, f"/?token={token}")
    cookie = entered.headers["set-cookie"].partition(";")[0]
    page = _get(port, "/", cookie)
    assert page.status == 200
    assert b"<title>" in page.body
    assert _get(port, "/_stcore/agent/openapi.json", cookie).status == 404
    listening = psutil.Process(studio.pid).net_connections("tcp")
    assert {c.laddr.ip for c in listening if c.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
    studio.send_signal(signal.SIGINT)
    said, _ = studio.communicate(timeout=120)
    assert (studio.returncode, "Traceback" in said) == (0, False)
    assert token not in said  # access logs would keep it


def test_a_taken_port_is_told_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "trinity.cli.main", "studio", "--port", str(port)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: cannot serve Studio on 127.0.0.1:{port}: ")
    assert "--port 0" in done.stderr


def _get(port: int, path: str, cookie: str = "") -> HttpAnswer:
    return http_get(port, path, {"Cookie": cookie} if cookie else {})
