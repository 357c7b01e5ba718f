"""The first connection to a broker, and why there is none."""

import pytest

from tests.infra_fixtures import NatsUnderTest
from trinity.errors import Unavailable, UserError
from trinity.local.ports import free_port
from trinity.nats import connect

SETTING = "TRINITY_EXPLORER_NATS_URL"
WRONG = "not-the-password"


def with_wrong_password(url: str) -> str:
    """The same address and user."""
    scheme, _, rest = url.partition("://")
    user, _, where = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}:{WRONG}@{where}"


async def test_a_connection_comes_back_with_the_broker(nats_server: NatsUnderTest) -> None:
    client = await connect(nats_server.url, name="test", setting=SETTING)
    try:
        nats_server.kill()
        await nats_server.start()
        await client.flush()
    finally:
        await client.close()


async def test_a_wrong_password_is_a_users_mistake_and_is_not_shown(
    nats_server: NatsUnderTest,
) -> None:
    with pytest.raises(
        UserError, match=f"refuses the user or the password: correct {SETTING}"
    ) as e:
        await connect(with_wrong_password(nats_server.url), name="test", setting=SETTING)
    assert WRONG not in str(e.value)


async def test_nobody_at_the_address_may_come_later() -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match="does not answer"):
        await connect(url, name="test", setting=SETTING, timeout_seconds=0.1)


async def test_what_is_no_address_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match=f"{SETTING} is no address"):
        await connect("nats://127.0.0.1:port", name="test", setting=SETTING)
