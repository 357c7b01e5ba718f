"""The schema's revisions on a real database."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import alembic.command
import psycopg
import pytest
from sqlalchemy.dialects import postgresql

from services.synchronizer.__main__ import MIGRATIONS
from services.synchronizer.store.members import newest_waits_query
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


def test_the_newest_waits_that_ended_of_all_experiments_are_found_without_sorting_all(
    synchronizer_dsn: str,
) -> None:
    MIGRATIONS.upgrade(synchronizer_dsn)
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    query = newest_waits_query(None, "").limit(20).compile(dialect=dialect)
    with psycopg.connect(synchronizer_dsn) as connection:
        connection.execute(
            "INSERT INTO closed_wait SELECT gen_random_uuid(), n, NULL, 'a', 'trainer', '', '',"
            " '', '', '', 1, now() - n * interval '1 second' FROM generate_series(1, 5000) n"
        )
        connection.execute("ANALYZE closed_wait")
        plan = explained(connection, str(query), query.params)
        assert "closed_wait_ended_at_index" in plan and "Seq Scan" not in plan, plan
        connection.execute("DROP INDEX closed_wait_ended_at_index")
        assert "Seq Scan" in explained(connection, str(query), query.params)
        connection.rollback()


def explained(connection: psycopg.Connection, text: str, values: Mapping[str, object]) -> str:
    found = connection.execute(f"EXPLAIN {text}".encode(), values)
    return "\n".join(row[0] for row in found)
