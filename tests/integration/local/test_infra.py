"""The embedded broker and database as the launcher prepares them."""

import nats
import psycopg
import pytest

from tests.support.infra_fixtures import Database, NatsUnderTest
from trinity.runtime.security.broker import client_options


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


def test_no_role_reads_anothers_schema_or_enters_another_database(
    postgres_database: Database,
) -> None:
    dsns = {"buffer": postgres_database.buffer_dsn}
    dsns["synchronizer"] = postgres_database.synchronizer_dsn
    for role, dsn in dsns.items():
        with psycopg.connect(dsn, autocommit=True) as own:
            own.execute("CREATE TABLE rows (id int)")
            rights = own.execute(
                "SELECT rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls "
                "FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
            assert rights == (False,) * 5
            for statement in (
                "CREATE TABLE public.rows (id int)",
                "CREATE SCHEMA more",
                f"ALTER ROLE {role} CREATEROLE",
                "SELECT * FROM pg_authid",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    own.execute(statement)
        for other in ("postgres", "template1"):
            with pytest.raises(psycopg.OperationalError, match="permission denied"):
                psycopg.connect(dsn.rpartition("/")[0] + f"/{other}")
    for role, dsn in dsns.items():
        (other,) = set(dsns) - {role}
        with psycopg.connect(dsn, autocommit=True) as own:
            for statement in (
                f"SELECT * FROM {other}.rows",
                f"INSERT INTO {other}.rows VALUES (1)",
                f"DROP TABLE {other}.rows",
                f"CREATE TABLE {other}.more (id int)",
                f"SET ROLE {other}",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    own.execute(statement)
