"""Beyond loopback no service starts without certificates and tokens, whatever else it is given."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.forking.starts import run_module
from trinity.run.local.addresses import SERVICES
from trinity.runtime.security.authorization import Scope
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.credentials import VARIABLE

TIMEOUT = 60.0
NOBODY = "127.0.0.1:9"
EACH_SERVICE = pytest.mark.parametrize("service", SERVICES)
OPEN_ADDRESS = pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])


@pytest.fixture
def settings(synchronizer_dsn: str, buffer_dsn: str, nats_url: str) -> dict[str, dict[str, str]]:
    """All that each of them needs to start, but for an address."""
    stores = {"POSTGRES_DSN": buffer_dsn, "NATS_URL": nats_url, "MIGRATE_ON_START": "true"}
    peers = {"SYNCHRONIZER": NOBODY, "BUFFER": NOBODY}
    return {
        "synchronizer": {"POSTGRES_DSN": synchronizer_dsn, "MIGRATE_ON_START": "true"},
        "buffer": stores,
        "trainer": peers,
        "explorer": {**peers, "NATS_URL": nats_url},
    }


def refusal(service: str, settings: dict[str, str], security_dir: str = "") -> str:
    """What the service says for its end, on one line."""
    own = {f"TRINITY_{service.upper()}_{name}": value for name, value in settings.items()}
    env = {**os.environ, **own, VARIABLE: security_dir}
    done = run_module(f"services.{service}", env=env, timeout=TIMEOUT)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{service}: ")
    return line


@EACH_SERVICE
@OPEN_ADDRESS
def test_it_does_not_listen_plainly(
    service: str, address: str, settings: dict[str, dict[str, str]]
) -> None:
    line = refusal(service, {**settings[service], "LISTEN": address})
    assert f"refusing to listen on {address}" in line and VARIABLE in line


@EACH_SERVICE
def test_a_folder_without_certificates_is_no_security(
    service: str, settings: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    line = refusal(service, {**settings[service], "LISTEN": "0.0.0.0:0"}, str(tmp_path))
    assert f"{tmp_path}/" in line and "is missing" in line


@pytest.mark.parametrize("service", ["buffer", "trainer", "explorer"])
def test_it_does_not_speak_to_others_plainly(
    service: str, settings: dict[str, dict[str, str]]
) -> None:
    peer = {**settings[service], "LISTEN": "127.0.0.1:0", "SYNCHRONIZER": "10.1.2.3:50051"}
    assert "refusing to speak to 10.1.2.3:50051" in refusal(service, peer)


@pytest.mark.parametrize("service", ["explorer", "trainer"])
def test_what_runs_tenants_code_takes_no_token_for_all_tenants(
    service: str, settings: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    role = CredentialRole(name=service, tenant="*", scopes=[Scope(service)])
    folder = CredentialIssuer(tmp_path).issue(role, timedelta(hours=1))
    line = refusal(service, settings[service], str(folder))
    assert "is for all tenants" in line and f"TRINITY_{service.upper()}_ALL_TENANTS" in line
