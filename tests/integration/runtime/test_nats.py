"""The first connection to a broker, and why there is none."""

import asyncio

import pytest

from tests.support.infra_fixtures import NatsUnderTest
from trinity.errors import Unavailable, UserError
from trinity.run.local.addresses import free_port
from trinity.runtime.nats import connect

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
    with pytest.raises(UserError, match=f"{SETTING} is not the address of a broker"):
        await connect("nats://127.0.0.1:port", name="test", setting=SETTING)


async def test_a_refusal_that_comes_with_a_cancellation_does_not_keep_it_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when an address refuses at the moment at which a process is told to stop."""
    refused_at_once = OSError("refused")
    tries = []

    async def refuse(_: object, *__: object, **___: object) -> None:
        tries.append(1)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if len(tries) == 1:
                raise refused_at_once from None
            raise

    monkeypatch.setattr("nats.aio.transport.TcpTransport.connect", refuse)
    with pytest.raises(Unavailable, match="does not answer"):
        async with asyncio.timeout(10):
            await connect(
                f"nats://127.0.0.1:{free_port()}",
                name="test",
                setting=SETTING,
                timeout_seconds=0.1,
            )
    assert len(tries) == 2
