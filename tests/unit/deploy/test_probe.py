"""What the health check of a container asks, and whom."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from trinity.errors import UserError
from trinity.run.deploy.accounts import passwords_of
from trinity.run.deploy.probe import WRONG, YES, main, question
from trinity.run.deploy.secret_folder import ServerAddresses, write_secrets
from trinity.runtime.rpc.server import serve
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.credentials import CERTIFICATE, TOKEN, VARIABLE, Credentials
from trinity.runtime.settings import ServiceSettings

LISTEN = {"TRINITY_BUFFER_LISTEN": "127.0.0.1:50052"}


def test_without_ready_it_asks_for_the_process_and_with_it_for_the_service() -> None:
    assert question(["buffer"], LISTEN) == ("127.0.0.1:50052", "")
    assert question(["buffer", "--ready"], LISTEN) == (
        "127.0.0.1:50052",
        "trinity.api.v1.BufferService",
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ([], LISTEN, "usage"),
        (["bufer"], LISTEN, "usage"),
        (["buffer", "--redy"], LISTEN, "usage"),
        (["trainer"], LISTEN, "TRINITY_TRAINER_LISTEN names no fixed port"),
        (["buffer"], {"TRINITY_BUFFER_LISTEN": "127.0.0.1:0"}, "names no fixed port"),
    ],
)
def test_a_wrong_question_is_told_from_an_ill_service(
    arguments: list[str],
    environment: dict[str, str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(arguments, environment) == WRONG
    assert said in capsys.readouterr().err


def folder_without(name: str, issued: Path, folder: Path) -> Path:
    """All of it but one file."""
    folder.mkdir()
    for file in issued.iterdir():
        if file.name != name:
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    issuer = CredentialIssuer(tmp_path_factory.mktemp("issued"))
    return issuer.issue(CredentialRole(name="synchronizer", scopes=()), timedelta(hours=1))


async def test_a_service_that_calls_no_other_is_asked_without_a_token(
    issued: Path, tmp_path: Path
) -> None:
    folder = folder_without(TOKEN, issued, tmp_path / "folder")
    async with serve(ServiceSettings(), [], security=Credentials(folder)) as server:
        environment = {
            "TRINITY_SYNCHRONIZER_LISTEN": f"127.0.0.1:{server.port}",
            VARIABLE: str(folder),
        }
        assert await asyncio.to_thread(main, ["synchronizer"], environment) == YES


def test_a_missing_certificate_is_a_mistake_and_no_illness(
    issued: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_without(CERTIFICATE, issued, tmp_path / "folder")
    assert main(["buffer"], {**LISTEN, VARIABLE: str(folder)}) == WRONG
    assert f"probe: {folder / CERTIFICATE} is missing" in capsys.readouterr().err


def test_accounts_have_the_names_of_their_services() -> None:
    synchronizer = "postgresql://synchronizer:p%40ss@db:5432/trinity"
    buffer = "postgresql://buffer:secret@db:5432/trinity"
    assert passwords_of({"buffer": buffer, "synchronizer": synchronizer}) == {
        "buffer": "secret",
        "synchronizer": "p@ss",
    }
    for wrong in (
        "postgresql://admin:secret@db:5432/trinity",
        "postgresql://buffer:secret@db:5432/other",
        "postgresql://buffer@db:5432/trinity",
    ):
        with pytest.raises(UserError, match="TRINITY_ACCOUNTS_BUFFER_DSN") as refusal:
            passwords_of({"buffer": wrong, "synchronizer": synchronizer})
        assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("place", ["postgres", "host:port", "user@host:1", "host:1/db", ":5432"])
def test_a_place_is_host_and_port(tmp_path: Path, place: str) -> None:
    with pytest.raises(UserError, match=r"`--postgres .*` is not host:port"):
        write_secrets(tmp_path, ServerAddresses(postgres=place, nats="nats:4222"))
