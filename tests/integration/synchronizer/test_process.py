"""The service as a process of its own, started and ended as a person or a supervisor does."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import psycopg
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.synchronizer.__main__ import MIGRATIONS
from services.synchronizer.servicer import SERVICE_NAME
from tests.integration.synchronizer.builders import creation
from tests.support.forking.starts import run_module
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.run.local.addresses import free_port
from trinity.runtime.rpc.channel import open_sync_channel

TIMEOUT = 60.0


def variables_of(settings: dict[str, str]) -> dict[str, str]:
    return {f"TRINITY_SYNCHRONIZER_{name}": value for name, value in settings.items()}


def start(*arguments: str, **settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "services.synchronizer", *arguments],
        env=os.environ | variables_of(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """End the process with the block, however the block ends."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def refusal(*arguments: str, **settings: str) -> str:
    """The one line with which the service refuses to start."""
    env = os.environ | variables_of(settings)
    done = run_module("services.synchronizer", *arguments, env=env, timeout=TIMEOUT)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@contextmanager
def serving(dsn: str) -> Iterator[tuple[subprocess.Popen[str], grpc.Channel]]:
    address = f"127.0.0.1:{free_port()}"
    process = start(LISTEN=address, POSTGRES_DSN=dsn, MIGRATE_ON_START="true")
    with ended(process), open_sync_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=SERVICE_NAME)
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(request, timeout=TIMEOUT, wait_for_ready=True)
        next(a for a in watch if a.status == health_pb2.HealthCheckResponse.SERVING)
        watch.cancel()
        yield process, channel


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_stops_in_order(synchronizer_dsn: str, number: signal.Signals) -> None:
    with serving(synchronizer_dsn) as (process, channel):
        stub = SynchronizerServiceStub(channel)
        assert not stub.CreateExperiment(creation(), timeout=TIMEOUT).resumed
        process.send_signal(number)
        output, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    assert errors == ""
    assert "experiment created" in output


def test_state_survives_a_kill(synchronizer_dsn: str) -> None:
    with serving(synchronizer_dsn) as (_, channel):
        stub = SynchronizerServiceStub(channel)
        first = stub.CreateExperiment(creation(), timeout=TIMEOUT).experiment
    with serving(synchronizer_dsn) as (_, channel):
        stub = SynchronizerServiceStub(channel)
        assert stub.CreateExperiment(creation(), timeout=TIMEOUT).experiment.id == first.id


def test_migrate_brings_the_schema_up_to_date(synchronizer_dsn: str) -> None:
    with ended(start("migrate", POSTGRES_DSN=synchronizer_dsn)) as process:
        _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    MIGRATIONS.check_newest(synchronizer_dsn)


def test_an_old_schema_is_refused_unless_told_to_migrate(synchronizer_dsn: str) -> None:
    assert "run `python -m services.synchronizer migrate`" in refusal(POSTGRES_DSN=synchronizer_dsn)


def test_an_unknown_schema_is_refused(synchronizer_dsn: str) -> None:
    MIGRATIONS.upgrade(synchronizer_dsn)
    with psycopg.connect(synchronizer_dsn) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'f00d'")
    line = refusal(POSTGRES_DSN=synchronizer_dsn, MIGRATE_ON_START="true")
    assert "is at revision f00d, which this program does not know" in line


def test_a_misspelt_setting_is_refused(synchronizer_dsn: str) -> None:
    line = refusal(POSTGRES_DSN=synchronizer_dsn, LOG_LEVLE="INFO")
    assert "TRINITY_SYNCHRONIZER_LOG_LEVLE" in line


def test_a_database_that_does_not_answer_is_named() -> None:
    place = f"127.0.0.1:{free_port()}/trinity"
    line = refusal(POSTGRES_DSN=f"postgresql://me:secret@{place}", POSTGRES_WAIT_SECONDS="0")
    assert f"The database at {place} does not answer" in line
    assert "secret" not in line


def test_it_can_be_stopped_while_it_waits_for_the_database() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"postgresql://me:secret@127.0.0.1:{silent.getsockname()[1]}/trinity"
        with ended(start(POSTGRES_DSN=dsn, POSTGRES_WAIT_SECONDS="1000")) as process:
            silent.accept()[0].close()
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors


def test_a_wrong_password_is_named_without_waiting(synchronizer_dsn: str) -> None:
    user, _, rest = synchronizer_dsn.partition("@")
    wrong = user.rpartition(":")[0] + ":wrong-secret@" + rest
    line = refusal(POSTGRES_DSN=wrong, POSTGRES_WAIT_SECONDS="1000")
    assert "refuses the connection" in line
    assert "wrong-secret" not in line


def test_an_address_that_is_none_is_refused_without_showing_it() -> None:
    line = refusal(POSTGRES_DSN="mysql://me:secret@host/database")
    assert "postgresql://user:password@host:port/database" in line
    assert "secret" not in line


def test_unknown_arguments_are_refused() -> None:
    assert "migrate" in refusal("upgrade")
