"""The schema's revisions on a real database."""

from concurrent.futures import ThreadPoolExecutor

import alembic.command
import psycopg
import pytest

from services.synchronizer.__main__ import MIGRATIONS
from trinity.errors import UserError


def table_names(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'synchronizer'"
        )
        return {name for (name,) in rows}


def set_revision(dsn: str, revision: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE alembic_version SET version_num = %s", [revision])


def test_the_schema_goes_up_and_down_and_up_and_is_what_the_code_expects(
    synchronizer_dsn: str,
) -> None:
    MIGRATIONS.upgrade(synchronizer_dsn)
    tables = table_names(synchronizer_dsn)
    assert tables == {
        *("experiment", "stage", "version", "member", "closed_wait"),
        "alembic_version",
    }
    MIGRATIONS.downgrade(synchronizer_dsn)
    assert table_names(synchronizer_dsn) == {"alembic_version"}
    MIGRATIONS.upgrade(synchronizer_dsn)
    assert table_names(synchronizer_dsn) == tables
    with MIGRATIONS.connected(synchronizer_dsn) as (config, _):
        alembic.command.check(config)


def test_two_migrations_at_once_do_not_race(synchronizer_dsn: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        for outcome in [pool.submit(MIGRATIONS.upgrade, synchronizer_dsn) for _ in range(2)]:
            outcome.result()
    MIGRATIONS.check_newest(synchronizer_dsn)


def test_a_plain_database_gets_the_schema(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("DROP SCHEMA synchronizer")
    MIGRATIONS.upgrade(postgres_dsn)
    assert "experiment" in table_names(postgres_dsn)


def test_an_unknown_revision_is_refused(synchronizer_dsn: str) -> None:
    MIGRATIONS.upgrade(synchronizer_dsn)
    set_revision(synchronizer_dsn, "f00d")
    for call in (MIGRATIONS.upgrade, MIGRATIONS.check_newest, MIGRATIONS.downgrade):
        with pytest.raises(UserError, match="is at revision f00d, which this program does not"):
            call(synchronizer_dsn)


def test_a_schema_that_was_never_migrated_is_refused(synchronizer_dsn: str) -> None:
    with pytest.raises(UserError, match=r"run `python -m services\.synchronizer migrate`"):
        MIGRATIONS.check_newest(synchronizer_dsn)
