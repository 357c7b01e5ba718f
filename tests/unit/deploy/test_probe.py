"""What the health check of a container asks, and whom."""

from pathlib import Path

import pytest

from trinity.deploy.accounts import passwords_of
from trinity.deploy.probe import WRONG, main, question
from trinity.deploy.secret_folder import Places, write_secrets
from trinity.errors import UserError

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
        write_secrets(tmp_path, Places(postgres=place, nats="nats:4222"))
