"""The embedded broker and database as the launcher prepares them."""

import nats
import psycopg
import pytest

from tests.infra_fixtures import Database, NatsUnderTest
from trinity.security.broker import client_options


def test_each_role_works_in_a_schema_of_its_own(postgres_database: Database) -> None:
    with psycopg.connect(postgres_database.buffer_dsn) as buffer:
        buffer.execute("CREATE TABLE rows (id int)")
        schema = buffer.execute("SELECT current_schema()").fetchone()
    assert schema == ("buffer",)
    with (
        psycopg.connect(postgres_database.synchronizer_dsn) as synchronizer,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        synchronizer.execute("SELECT * FROM buffer.rows")


async def test_the_explorer_may_publish_results_and_nothing_else(
    nats_server: NatsUnderTest,
) -> None:
    owner = await nats.connect(nats_server.url)
    await owner.jetstream().add_stream(name="results", subjects=["trinity.runs.>"])
    url = nats_server.explorer_url
    explorer = await nats.connect(url, **client_options(url))
    ack = await explorer.jetstream().publish("trinity.runs.a.b.c", b"x")
    assert ack.seq == 1
    with pytest.raises(nats.errors.Error):
        await explorer.jetstream(timeout=0.5).add_stream(name="other", subjects=["other.>"])
    await explorer.close()
    await owner.close()


async def test_acknowledged_messages_survive_a_killed_broker(nats_server: NatsUnderTest) -> None:
    client = await nats.connect(nats_server.url)
    stream = client.jetstream()
    await stream.add_stream(name="results", subjects=["trinity.>"])
    await stream.publish("trinity.results.1", b"x")
    await client.close()
    nats_server.kill()
    await nats_server.start()
    client = await nats.connect(nats_server.url)
    info = await client.jetstream().stream_info("results")
    assert info.state.messages == 1
    await client.close()
