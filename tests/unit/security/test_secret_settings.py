"""What holds a password in a process's memory does not show it when it is printed."""

import pytest
from pydantic import SecretStr

from services.buffer.settings import BufferSettings
from services.explorer.settings import ExplorerSettings
from services.synchronizer.settings import SynchronizerSettings
from services.trainer.settings import TrainerSettings
from trinity.run.deploy.accounts import AccountSettings
from trinity.run.local.infrastructure import ExternalServers
from trinity.runtime.security.broker import BrokerUser
from trinity.runtime.settings import ServiceSettings

ENDINGS = ("_dsn", "_url", "_key", "_password", "_token", "_secret")
PASSWORD = "hunter2"


@pytest.mark.parametrize(
    "settings",
    [AccountSettings, BufferSettings, ExplorerSettings, SynchronizerSettings, TrainerSettings],
)
def test_addresses_and_keys_of_settings_are_secrets(settings: type[ServiceSettings]) -> None:
    fields = settings.model_fields.items()
    secret = (SecretStr, SecretStr | None)
    plain = [n for n, f in fields if n.endswith(ENDINGS) and f.annotation not in secret]
    assert not plain


def test_an_explorers_settings_show_no_password() -> None:
    address = SecretStr(f"nats://explorer:{PASSWORD}@127.0.0.1:4222")
    settings = ExplorerSettings(synchronizer="a:1", buffer="b:1", nats_url=address)
    assert PASSWORD not in f"{settings} {settings!r} {settings.model_dump_json()}"


def test_what_the_launcher_was_given_shows_no_password() -> None:
    given = ExternalServers(
        nats_url=f"nats://a:{PASSWORD}@b", postgres_dsn=f"postgresql://a:{PASSWORD}@b"
    )
    assert PASSWORD not in f"{given} {BrokerUser(name='a', password=PASSWORD)}"
