"""The explorer as a process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.explorer.control.explorer import SERVICE
from tests.integration.runtime.test_nats import with_wrong_password
from tests.support.infra_fixtures import NatsUnderTest
from trinity.run.local.addresses import free_port

NOBODY = "127.0.0.1:9"
SETTINGS = {
    "TRINITY_EXPLORER_SYNCHRONIZER": NOBODY,
    "TRINITY_EXPLORER_BUFFER": NOBODY,
    "TRINITY_EXPLORER_NATS_URL": f"nats://{NOBODY}",
}


def start(**settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "services.explorer"],
        env=os.environ | SETTINGS | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_is_live_but_not_ready_while_nobody_answers_and_stops_in_order() -> None:
    address = f"127.0.0.1:{free_port()}"
    process = start(TRINITY_EXPLORER_LISTEN=address)
    try:
        with grpc.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            live = health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=60)
            ready = health.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=10)
        assert live.status == health_pb2.HealthCheckResponse.SERVING
        assert ready.status == health_pb2.HealthCheckResponse.NOT_SERVING
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "not usable: engine, synchronizer, buffer, broker" in output


def test_a_misspelt_setting_is_refused_by_name() -> None:
    process = start(TRINITY_EXPLORER_BUFER=NOBODY)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "TRINITY_EXPLORER_BUFER" in errors


def test_a_broken_plugin_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("\nraise RuntimeError('no')\n")
    process = start(TRINITY_PLUGIN_DIRS=str(tmp_path))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "mine.py, line 2: RuntimeError: no" in errors


def test_a_broker_that_refuses_the_password_ends_it_with_one_sentence(
    nats_server: NatsUnderTest,
) -> None:
    process = start(TRINITY_EXPLORER_NATS_URL=with_wrong_password(nats_server.explorer_url))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    (sentence,) = [line for line in errors.splitlines() if line.startswith("explorer: ")]
    assert "refuses the user or the password: correct TRINITY_EXPLORER_NATS_URL" in sentence
    assert "Traceback" not in errors


def test_nothing_heavy_is_imported_before_the_engine_is_needed() -> None:
    heavy = "{'torch', 'transformers', 'vllm', 'sqlalchemy', 'math_verify'}"
    code = f"import sys, services.explorer.__main__; print({heavy} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
