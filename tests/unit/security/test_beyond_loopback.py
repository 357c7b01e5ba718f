"""Beyond loopback nothing starts or connects without TLS and tokens, and the sentence says why."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.unit.subtests import as_subtests
from trinity.errors import UserError
from trinity.runtime.postgres import sqlalchemy_url
from trinity.runtime.rpc.channel import open_channel, open_sync_channel
from trinity.runtime.rpc.server import serve
from trinity.runtime.security.broker import client_options
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.credentials import PLAINTEXT, Credentials
from trinity.runtime.security.loopback import is_loopback
from trinity.runtime.settings import ServiceSettings

SERVER_FILES = ("ca.crt", "tls.crt", "tls.key", "token-keys.pem")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    issuer = CredentialIssuer(tmp_path_factory.mktemp("issued"))
    return issuer.issue(CredentialRole(name="buffer", scopes=()), timedelta(hours=1))


@as_subtests(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
        ("buffer", False),
        ("", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.1.2.3:0", "[::]:0"])
async def test_a_plain_server_beyond_loopback_does_not_start(address: str) -> None:
    with pytest.raises(UserError, match="TRINITY_SECURITY_DIR"):
        async with serve(ServiceSettings(listen=address), [], security=PLAINTEXT):
            pass


async def test_a_secure_server_listens_everywhere(folder: Path) -> None:
    async with serve(
        ServiceSettings(listen="0.0.0.0:0"), [], security=Credentials(folder)
    ) as server:
        assert server.port


@pytest.mark.parametrize("missing", SERVER_FILES)
async def test_a_server_without_one_of_its_files_names_it(
    missing: str, folder: Path, tmp_path: Path
) -> None:
    for name in SERVER_FILES:
        if name != missing:
            (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(UserError, match=missing):
        async with serve(ServiceSettings(), [], security=Credentials(tmp_path)):
            pass


def test_a_plain_channel_beyond_loopback_is_not_opened() -> None:
    for opened in (open_channel, open_sync_channel):
        with pytest.raises(UserError, match="TRINITY_SECURITY_DIR"):
            opened("buffer.example:50051", PLAINTEXT)


def test_a_channel_without_a_token_is_not_opened(folder: Path, tmp_path: Path) -> None:
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(UserError, match="token is missing"):
        open_sync_channel("buffer.example:50051", Credentials(tmp_path))


@pytest.mark.parametrize(
    "url", ["nats://u:p@broker:4222", "tls://u:p@broker:4222", "nats://127.0.0.1,nats://u:p@broker"]
)
def test_a_broker_beyond_loopback_is_not_spoken_to_plainly(url: str) -> None:
    with pytest.raises(UserError, match="the broker at broker") as refusal:
        client_options(url, PLAINTEXT)
    assert "u:p@" not in str(refusal.value)


def test_a_broker_beyond_loopback_takes_a_user(folder: Path) -> None:
    with pytest.raises(UserError, match="without a user"):
        client_options("tls://broker:4222", Credentials(folder))
    options = client_options("tls://explorer:p@broker:4222", Credentials(folder))
    assert options["inbox_prefix"] == "_INBOX.explorer" and "tls" in options


@pytest.mark.parametrize("query", ["", "?sslmode=disable", "?sslmode=prefer", "?sslmode=require"])
def test_a_database_beyond_loopback_must_show_its_certificate(query: str) -> None:
    with pytest.raises(UserError, match="sslmode=verify-full") as refusal:
        sqlalchemy_url(f"postgresql://u:secret@db.example/trinity{query}")
    assert "secret" not in str(refusal.value)


def test_a_database_that_shows_it_is_spoken_to() -> None:
    dsn = "postgresql://u:p@db.example/trinity?sslmode=verify-full&sslrootcert=/ca.crt"
    assert sqlalchemy_url(dsn).query["sslrootcert"] == "/ca.crt"
    assert sqlalchemy_url("postgresql://u:p@127.0.0.1/trinity").host == "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("/x?host=db.example", "db.example"),
        ("127.0.0.1/x?host=db.example", "db.example"),
        ("127.0.0.1/x?hostaddr=10.0.0.5", "10.0.0.5"),
        ("/x?host=/run/postgresql,db.example", "db.example"),
        ("/x?host=localhost&host=db.example", "db.example"),
        ("db.example/x?host=127.0.0.1", "db.example"),
    ],
)
def test_a_host_in_the_query_is_a_host(address: str, host: str) -> None:
    with pytest.raises(UserError, match=f"the database at {host} without TLS") as refusal:
        sqlalchemy_url(f"postgresql://u:secret@{address}")
    assert "secret" not in str(refusal.value)
    sqlalchemy_url(f"postgresql://u:secret@{address}&sslmode=verify-full")


@pytest.mark.parametrize(
    "address",
    [
        "/x",
        "[::1]:5432/x",
        "/x?host=/run/postgresql",
        "/x?host=%2Frun%2Fa%20folder&port=5433",
        "localhost/x?hostaddr=127.0.0.1",
        "/x?host=127.0.0.1,/run/postgresql",
    ],
)
def test_a_database_of_this_machine_needs_no_certificate(address: str) -> None:
    assert sqlalchemy_url(f"postgresql://u:p@{address}").database == "x"
